// SPDX-License-Identifier: Apache-2.0
// The extension module shiftrt._native: the public face for the Python package beside it, which adds defaults, tables
// and what other packages take part in. Every call that computes releases the GIL. Python's handlers of signals run
// whenever the library reports progress, so Ctrl-C ends a computation there.
#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>
#include <nanobind/stl/filesystem.h>
#include <nanobind/stl/map.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/set.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/string_view.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>
#include <shiftrt/shiftrt.h>

#include <algorithm>
#include <atomic>
#include <filesystem>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <thread>
#include <tuple>
#include <utility>
#include <vector>

namespace nb = nanobind;
using nb::literals::operator""_a;
namespace fs = std::filesystem;

namespace shiftrt::python {

namespace {

using Tokens = nb::ndarray<const int32_t, nb::ndim<1>, nb::c_contig, nb::device::cpu>;
using Floats = nb::ndarray<nb::numpy, float, nb::ndim<2>, nb::c_contig>;

std::span<const int32_t> View(const Tokens& tokens) { return {tokens.data(), tokens.size()}; }

// Owns (rows, cols) floats that are not initialised, until it hands them to numpy, which does not copy them.
class Buffer {
 public:
  Buffer(size_t rows, size_t cols) : rows_(rows), cols_(cols), data_(new float[rows * cols]) {}

  std::span<float> span() { return {data_.get(), rows_ * cols_}; }
  Floats Release() {
    float* const data = data_.get();
    const nb::capsule owner(data_.release(), [](void* p) noexcept { delete[] static_cast<float*>(p); });
    return Floats(data, {rows_, cols_}, owner);
  }

 private:
  size_t rows_, cols_;
  std::unique_ptr<float[]> data_;
};

// Calls a function without the GIL.
template <typename Call>
auto Released(Call&& call) {
  const nb::gil_scoped_release release;
  return call();
}

// Runs Python's handlers of the signals that have come. Their exception, such as KeyboardInterrupt, ends the caller's
// computation. Needs the GIL.
void HandleSignals() {
  if (PyErr_CheckSignals() != 0) throw nb::python_error();
}

// Reports progress to a Python object with the methods begin(phase, total), advance(count) and end(), or to None.
class Reports : public Progress {
 public:
  explicit Reports(nb::object listener) : listener_(std::move(listener)) {}

  void Begin(std::string_view phase, int64_t total) override {
    const nb::gil_scoped_acquire acquire;
    HandleSignals();
    if (!listener_.is_none()) listener_.attr("begin")(nb::str(phase.data(), phase.size()), total);
  }
  void Advance(int64_t count) override {
    const nb::gil_scoped_acquire acquire;
    HandleSignals();
    if (!listener_.is_none()) listener_.attr("advance")(count);
  }
  void End() override {
    const nb::gil_scoped_acquire acquire;
    if (!listener_.is_none()) listener_.attr("end")();
  }

 private:
  nb::object listener_;
};

// One runner for the threads of a program: it lets them in one after the other.
class SharedRunner {
 public:
  SharedRunner(const LanguageModel& model, const Resources& resources) : runner_(model, resources) {}

  // Calls `use` with the runner. The caller does not hold the GIL. Throws UsageError for a call from a callback of
  // Generate(), for which the runner is busy.
  template <typename Use>
  auto With(Use&& use) {
    if (user_ == std::this_thread::get_id())
      throw UsageError("a callback of generate() cannot run the model that is generating");
    const std::lock_guard lock(mutex_);
    struct Mark {
      explicit Mark(std::atomic<std::thread::id>& user) : user(user) { user = std::this_thread::get_id(); }
      ~Mark() { user = std::thread::id(); }
      std::atomic<std::thread::id>& user;
    } const mark(user_);
    return use(runner_);
  }

 private:
  ModelRunner runner_;
  std::mutex mutex_;
  std::atomic<std::thread::id> user_;
};

// Raises the exception of shiftrt/errors.py with this name and these attributes.
void Raise(const char* name, const char* message, const std::map<std::string, nb::object>& attributes = {}) {
  const nb::object type = nb::module_::import_("shiftrt.errors").attr(name);
  const nb::object error = type(message);
  for (const auto& [attribute, value] : attributes) nb::setattr(error, attribute.c_str(), value);
  PyErr_SetObject(type.ptr(), error.ptr());
}

void Translate(const std::exception_ptr& thrown, void*) {
  try {
    std::rethrow_exception(thrown);
  } catch (const UsageError& error) {
    Raise("UsageError", error.what(), {{"field", nb::cast(error.field())}, {"reason", nb::cast(error.reason())}});
  } catch (const OutOfMemory& error) {
    Raise("OutOfMemory", error.what(), {{"free_bytes", nb::int_(error.free_bytes)}});
  } catch (const Interrupted&) {
    PyErr_SetNone(PyExc_KeyboardInterrupt);
  } catch (const Error& error) {
    Raise("Error", error.what());
  }
}

WeightType WeightTypeOf(const std::string& name) {
  const std::map<std::string, WeightType> types = {{"as-stored", WeightType::kAsStored},
                                                   {"float32", WeightType::kFloat32},
                                                   {"float16", WeightType::kFloat16},
                                                   {"bfloat16", WeightType::kBFloat16}};
  const auto found = types.find(name);
  if (found == types.end())
    throw UsageError("weights", "\"" + name + "\" is none of as-stored, float32, float16 and bfloat16");
  return found->second;
}

LanguageModel Open(const std::string& name, const std::string& weights, bool check_finite, const fs::path& lora,
                   nb::object progress) {
  Reports reports(std::move(progress));
  return Released([&] {
    return LanguageModel::Open(name, {.weights = WeightTypeOf(weights),
                                      .check_finite = check_finite,
                                      .lora = lora,
                                      .processes = {},
                                      .progress = &reports});
  });
}

// The model without parts that are named as "3", "3.attn" or "3.mlp".
LanguageModel Without(const LanguageModel& model, const std::vector<std::string>& names) {
  std::vector<BlockPart> parts;
  parts.reserve(names.size());
  for (const std::string& name : names) {
    const std::optional<BlockPart> part = ParseBlockPart(name);
    if (!part) throw UsageError("parts", "\"" + name + "\" is no block or half of one, such as 3, 3.attn or 3.mlp");
    parts.push_back(*part);
  }
  return model.Without(parts);
}

std::optional<std::string> ProvenanceJson(const LanguageModel& model) {
  return model.MadeBy() == nullptr ? std::nullopt : std::optional(ToJson(*model.MadeBy()));
}

using Repaired = std::tuple<LanguageModel, LanguageModel, std::optional<LanguageModel>>;

Repaired RepairModel(const LanguageModel& model, const std::string& name,
                     const std::map<std::string, std::string>& settings, const Resources& resources,
                     nb::object progress, const fs::path& keep) {
  Reports reports(std::move(progress));
  return Released([&]() -> Repaired {
    Recipe recipe = name.empty() ? Recipe() : FindRecipe(name);
    for (const auto& [field, text] : settings) Set(field, text, recipe);
    RepairResult result = Repair(model, recipe, resources, &reports, keep);
    return {std::move(result.pruned), std::move(result.corrected), std::move(result.merged)};
  });
}

auto Perplexity(const LanguageModel& model, const std::string& text, const std::string& protocol, int64_t tokens,
                const Resources& resources, nb::object progress) {
  Reports reports(std::move(progress));
  const TextPerplexity measured = Released(
      [&] { return MeasurePerplexity(model, text, {.protocol = protocol, .tokens = tokens}, resources, &reports); });
  return std::tuple(measured.perplexity, measured.mean_nll, measured.predicted, measured.window, measured.tokens,
                    measured.all, measured.text, measured.seconds);
}

using Metric = std::tuple<std::string, double, double>;
using TaskScores = std::tuple<std::string, std::string, int64_t, double, std::vector<std::vector<Metric>>>;

std::vector<TaskScores> EvaluateModels(const std::vector<LanguageModel>& models, const std::string& tasks,
                                       const std::vector<std::string>& data, int64_t shots, int64_t limit,
                                       const Resources& resources, nb::object progress) {
  Reports reports(std::move(progress));
  return Released([&] {
    std::vector<TaskScores> all;
    const SuiteSettings settings = {.tasks = tasks, .data = data, .shots = shots, .limit = limit};
    for (const SuiteResult& result : Evaluate(models, settings, resources, &reports)) {
      std::vector<std::vector<Metric>> scores(result.scores.size());
      for (size_t m = 0; m < scores.size(); ++m) {
        scores[m].reserve(result.scores[m].size());
        for (const SuiteScore& score : result.scores[m])
          scores[m].emplace_back(score.metric, score.value, score.standard_error);
      }
      all.emplace_back(result.task, result.quoted_metric, result.items, result.seconds, std::move(scores));
    }
    return all;
  });
}

using TokenSequence = std::pair<std::vector<int32_t>, int64_t>;  // token ids, and how many of the last are scored

std::vector<TokenSequence> TokenSequencesOf(std::vector<ScoredSequence> sequences) {
  std::vector<TokenSequence> pairs;
  pairs.reserve(sequences.size());
  for (ScoredSequence& sequence : sequences) pairs.emplace_back(std::move(sequence.tokens), sequence.scored);
  return pairs;
}

std::vector<TokenSequence> EncodedContinuations(const LanguageModel& model,
                                                const std::vector<std::pair<std::string, std::string>>& texts) {
  return TokenSequencesOf(Released([&] {
    std::vector<Continuation> continuations;
    continuations.reserve(texts.size());
    for (const auto& [context, text] : texts) continuations.push_back({context, text});
    return EncodeContinuations(model, continuations);
  }));
}

std::vector<std::pair<double, bool>> Scores(const LanguageModel& model, const std::vector<TokenSequence>& sequences,
                                            const Resources& resources, nb::object progress) {
  Reports reports(std::move(progress));
  return Released([&] {
    std::vector<ScoredSequence> wanted;
    wanted.reserve(sequences.size());
    for (const auto& [tokens, scored] : sequences) wanted.push_back({tokens, scored});
    std::vector<std::pair<double, bool>> scores;
    scores.reserve(wanted.size());
    for (const SequenceScore& score : ScoreSequences(model, wanted, resources, &reports))
      scores.emplace_back(score.log_likelihood, score.greedy);
    return scores;
  });
}

std::vector<std::string> ExportModel(const LanguageModel& model, const fs::path& output, const std::string& format,
                                     int64_t shard_bytes, bool q8_0, const std::string& base_name,
                                     const Resources& resources, nb::object progress) {
  Reports reports(std::move(progress));
  return Released([&] {
    return Export(model, output, {.format = format, .shard_bytes = shard_bytes, .q8_0 = q8_0, .base_name = base_name},
                  resources, &reports);
  });
}

// Reads a value of the settings of a training.
using Setter = std::function<void(FinetuneSettings& settings, nb::handle value)>;

template <typename Object, typename T>
Setter Into(T Object::*member) {
  return [member](FinetuneSettings& settings, nb::handle value) {
    if constexpr (std::is_same_v<Object, LoraOptions>) {
      settings.lora.*member = nb::cast<T>(value);
    } else {
      settings.*member = nb::cast<T>(value);
    }
  };
}
// A word that a parser reads.
template <typename T>
Setter Parsed(T FinetuneSettings::*member, T (*parse)(const std::string&)) {
  return [=](FinetuneSettings& settings, nb::handle value) { settings.*member = parse(nb::cast<std::string>(value)); };
}

Halves HalvesOf(const std::string& name) {
  const std::optional<Halves> halves = ParseHalves(name);
  if (!halves) throw UsageError("\"" + name + "\" is none of both, attention and mlp");
  return *halves;
}

const std::map<std::string, Setter>& FinetuneSetters() {
  using S = FinetuneSettings;
  static const std::map<std::string, Setter> table = {
      {"method", Parsed(&S::method, ParseMethod)},
      {"targets", Into(&LoraOptions::targets)},
      {"rank", Into(&LoraOptions::rank)},
      {"alpha", Into(&LoraOptions::alpha)},
      {"dropout", Into(&LoraOptions::dropout)},
      {"layers", Into(&S::layers)},
      {"head", Into(&S::head)},
      {"adapters", Into(&S::adapters)},
      {"loss", Parsed(&S::loss, ParseTrainingLoss)},
      {"replacement", Parsed(&S::replacement, HalvesOf)},
      {"keep_correction", Into(&S::keep_correction)},
      {"text", Into(&S::text)},
      {"samples", Into(&S::samples)},
      {"length", Into(&S::length)},
      {"validation", Into(&S::validation)},
      {"validation_text", Into(&S::validation_text)},
      {"divide", Into(&S::divide)},
      {"train_on_inputs", Into(&S::train_on_inputs)},
      {"epochs", Into(&S::epochs)},
      {"steps", Into(&S::steps)},
      {"batch", Into(&S::batch)},
      {"pass_tokens", Into(&S::pass_tokens)},
      {"rate", Into(&S::rate)},
      {"decay", Parsed(&S::decay, ParseDecay)},
      {"warmup", Into(&S::warmup)},
      {"weight_decay", Into(&S::weight_decay)},
      {"clip", Into(&S::clip)},
      {"validate_every", Into(&S::validate_every)},
      {"keep_best", Into(&S::keep_best)},
      {"budget", Parsed(&S::budget, ParseTrainingBudget)},
      {"seed", Into(&S::seed)},
      {"checkpoint", Into(&S::checkpoint)},
      {"checkpoint_seconds", Into(&S::checkpoint_seconds)},
  };
  return table;
}

FinetuneSettings FinetuneSettingsOf(const nb::dict& values, bool recovery) {
  FinetuneSettings settings = recovery ? RecoverySettings() : FinetuneSettings();
  for (const auto& [key, value] : values) {
    const auto name = nb::cast<std::string>(key);
    const auto found = FinetuneSetters().find(name);
    if (found == FinetuneSetters().end()) {
      std::string known;
      for (const auto& [field, setter] : FinetuneSetters()) known += (known.empty() ? "" : ", ") + field;
      throw UsageError(name, "a training has no such setting; it has " + known);
    }
    try {
      found->second(settings, value);
    } catch (const nb::cast_error&) {
      throw UsageError(name,
                       "a " + nb::cast<std::string>(nb::str(value.type().attr("__name__"))) + " cannot be its value");
    }
  }
  return settings;
}

// A trained model, what was trained in words, and the losses: of the steps, and of the validations by step.
using Trained = std::tuple<LanguageModel, std::string, std::vector<double>, std::vector<std::pair<int64_t, double>>,
                           int64_t, int64_t, double, double>;

// `step` is called with the steps done, all steps and the last loss; or it is None.
Trained FinetuneModel(const LanguageModel& model, const nb::dict& values, bool recovery, const Resources& resources,
                      const nb::object& step) {
  const FinetuneSettings settings = FinetuneSettingsOf(values, recovery);
  FinetuneObserver observer;
  observer.step = [&](const TrainingHistory& history, int64_t steps) {
    const nb::gil_scoped_acquire acquire;
    HandleSignals();
    if (!step.is_none() && history.steps() > 0) step(history.steps(), steps, history.losses.back());
  };
  return Released([&]() -> Trained {
    FinetunedModel tuned = Finetune(model, settings, resources, observer);
    std::vector<std::pair<int64_t, double>> validations;
    validations.reserve(tuned.history.validations.size());
    for (const TrainingHistory::Validation& validation : tuned.history.validations)
      validations.emplace_back(validation.step, validation.loss);
    return {std::move(tuned.model), tuned.outline.trained, std::move(tuned.history.losses), std::move(validations),
            tuned.history.tokens,   tuned.parameters,      tuned.history.seconds,           tuned.rounding};
  });
}

using Generated = std::tuple<std::vector<int32_t>, std::string, int64_t, double, double>;

Generated Generate(SharedRunner& runner, const Tokens& prompt, int64_t max_tokens, double temperature, double top_p,
                   int64_t top_k, uint64_t seed, bool stop_at_end, const std::vector<std::string>& stop,
                   const nb::object& on_text) {
  std::string text;
  GenerationSettings settings = {.max_tokens = max_tokens,
                                 .temperature = temperature,
                                 .top_p = top_p,
                                 .top_k = top_k,
                                 .seed = seed,
                                 .stop_at_end = stop_at_end};
  settings.on_text = [&](std::string_view piece) {
    text += piece;
    if (on_text.is_none()) return;
    const nb::gil_scoped_acquire acquire;
    on_text(nb::str(piece.data(), piece.size()));
  };
  // A stop may have come with the last characters, which are text only once no other token can change them.
  const auto stopped = [&] {
    return std::any_of(stop.begin(), stop.end(),
                       [&](const std::string& word) { return text.find(word) != std::string::npos; });
  };
  const auto on_token = [&](int32_t) {
    {
      const nb::gil_scoped_acquire acquire;
      HandleSignals();
    }
    return !stopped();
  };
  return Released([&]() -> Generated {
    Generation made = runner.With([&](ModelRunner& r) { return r.Generate(View(prompt), settings, on_token); });
    size_t end = made.text.size();
    for (const std::string& word : stop) end = std::min(end, made.text.find(word));
    made.text.resize(end);
    return {std::move(made.tokens), std::move(made.text), made.prompt_tokens, made.prefill_seconds,
            made.decode_seconds};
  });
}

std::vector<Generated> GenerateMany(SharedRunner& runner, const std::vector<std::vector<int32_t>>& prompts,
                                    int64_t max_tokens, double temperature, double top_p, int64_t top_k, uint64_t seed,
                                    bool stop_at_end, int64_t batch) {
  const GenerationSettings settings = {.max_tokens = max_tokens,
                                       .temperature = temperature,
                                       .top_p = top_p,
                                       .top_k = top_k,
                                       .seed = seed,
                                       .stop_at_end = stop_at_end};
  const auto on_token = [](size_t, int32_t) {
    const nb::gil_scoped_acquire acquire;
    HandleSignals();
    return true;
  };
  std::vector<Generated> replies(prompts.size());
  const auto on_reply = [&](size_t i, const Generation& made) {
    replies[i] = {made.tokens, made.text, made.prompt_tokens, 0, 0};
  };
  Released([&] { runner.With([&](ModelRunner& r) { r.GenerateMany(prompts, settings, batch, on_reply, on_token); }); });
  return replies;
}

Floats Logits(SharedRunner& runner, const Tokens& tokens, int64_t vocabulary) {
  Buffer logits(tokens.size(), static_cast<size_t>(vocabulary));
  Released([&] { runner.With([&](ModelRunner& r) { r.Logits(View(tokens), logits.span()); }); });
  return logits.Release();
}

std::map<int64_t, Floats> Hidden(SharedRunner& runner, const Tokens& tokens, const std::set<int64_t>& layers) {
  std::map<int64_t, Buffer> streams;
  std::string there;
  Released([&] {
    runner.With([&](ModelRunner& r) {
      r.HiddenStates(View(tokens), [&](int64_t layer, std::span<const float> stream) {
        there += (there.empty() ? "" : ", ") + std::to_string(layer);
        if (!layers.empty() && !layers.contains(layer)) return;
        const auto [at, is_new] = streams.try_emplace(layer, tokens.size(), stream.size() / tokens.size());
        std::copy(stream.begin(), stream.end(), at->second.span().begin());
      });
    });
  });
  for (const int64_t layer : layers)
    if (!streams.contains(layer))
      throw UsageError("layers", "there is no stream before block " + std::to_string(layer) + "; there is one before " +
                                     there + ", the last of which is behind all blocks");
  std::map<int64_t, Floats> arrays;
  for (auto& [layer, stream] : streams) arrays.emplace(layer, stream.Release());
  return arrays;
}

// The names and the directories of the repositories.
std::vector<std::pair<std::string, std::string>> PullAll(const std::string& name, bool dataset,
                                                         const std::vector<std::string>& include,
                                                         const std::vector<std::string>& exclude, bool verify) {
  PullObserver observer;
  observer.progress = [](std::span<const FileProgress>) {
    const nb::gil_scoped_acquire acquire;
    HandleSignals();
  };
  return Released([&] {
    const PullSettings settings = {
        .name = name, .dataset = dataset, .revision = {}, .include = include, .exclude = exclude, .verify = verify};
    std::vector<std::pair<std::string, std::string>> pulled;
    for (const PulledRepository& repository : Pull(settings, observer))
      pulled.emplace_back(repository.name, repository.directory.string());
    return pulled;
  });
}

std::vector<std::pair<std::string, std::string>> Pairs(const std::vector<Choice>& choices) {
  std::vector<std::pair<std::string, std::string>> pairs;
  pairs.reserve(choices.size());
  for (const Choice& choice : choices) pairs.emplace_back(choice.name, choice.summary);
  return pairs;
}

void AddModel(nb::module_& module) {
  nb::class_<LanguageModel>(module, "LanguageModel", "A handle of shared weights, a tokenizer and a depth plan.")
      .def_prop_ro("name", &LanguageModel::Name, "The name under which the model was opened.")
      .def_prop_ro(
          "directory", [](const LanguageModel& model) { return model.Directory().string(); },
          "The directory of the original model, or its GGUF file.")
      .def_prop_ro(
          "shape",
          [](const LanguageModel& model) {
            const ModelShape shape = model.Shape();
            return std::tuple(shape.layers, shape.hidden, shape.vocabulary, shape.max_positions);
          },
          "(layers, hidden, vocabulary, max_positions) of the original model.")
      .def_prop_ro("removed_layers", &LanguageModel::RemovedLayers, "Layers of which nothing runs, ascending.")
      .def_prop_ro("blocks", &LanguageModel::Blocks, "Blocks of which at least one half runs.")
      .def_prop_ro("adapters", &LanguageModel::Adapters, "Adapters that run.")
      .def_prop_ro("parameters", &LanguageModel::Parameters, "Parameters as the model runs, adapters included.")
      .def_prop_ro("bytes_per_token", &LanguageModel::BytesPerToken, "Bytes that decoding one token reads.")
      .def("provenance", &ProvenanceJson, "How the model was made, as JSON; None for an original model.")
      .def("encode", &LanguageModel::Encode, "text"_a, "Token ids of a text.")
      .def(
          "decode", [](const LanguageModel& model, const Tokens& tokens) { return model.Decode(View(tokens)); },
          "tokens"_a, "The text of token ids, without special tokens.")
      .def("without", &Without, "parts"_a, "The same weights without some blocks or halves, and without adapters.")
      .def("save", &LanguageModel::Save, "directory"_a, "with_weights"_a, "merge_lora"_a,
           nb::call_guard<nb::gil_scoped_release>(), "Writes the plan and what it changes.");
}

void AddRunner(nb::module_& module) {
  nb::class_<SharedRunner>(module, "Runner", "Runs one model; threads use it one after the other.")
      .def(nb::init<const LanguageModel&, const Resources&>(), "model"_a, "resources"_a,
           nb::call_guard<nb::gil_scoped_release>())
      .def("generate", &Generate, "prompt"_a, "max_tokens"_a, "temperature"_a, "top_p"_a, "top_k"_a, "seed"_a,
           "stop_at_end"_a, "stop"_a, "on_text"_a.none(),
           "Continues a prompt: (tokens, text, prompt tokens, seconds of the prompt, seconds of the other tokens).")
      .def("generate_many", &GenerateMany, "prompts"_a, "max_tokens"_a, "temperature"_a, "top_p"_a, "top_k"_a, "seed"_a,
           "stop_at_end"_a, "batch"_a, "Continues many prompts: what generate() returns for each, without seconds.")
      .def("logits", &Logits, "tokens"_a, "vocabulary"_a, "Logits of all positions: (tokens, vocabulary).")
      .def("hidden", &Hidden, "tokens"_a, "layers"_a, "The residual stream before blocks: (tokens, hidden) each.");
}

}  // namespace

}  // namespace shiftrt::python

NB_MODULE(_native, module) {
  namespace face = shiftrt;
  namespace python = shiftrt::python;
  module.doc() = "The public C++ face of shiftrt; use the package shiftrt, which is made of it.";
  nb::register_exception_translator(python::Translate);
  nb::class_<face::Resources>(module, "Resources", "What computations may use of the machine.")
      .def(
          "__init__",
          [](face::Resources* self, int threads, int64_t memory, std::vector<int> gpus) {
            new (self) face::Resources(
                face::Prepare({.threads = threads, .calibration_memory = memory, .gpus = std::move(gpus)}));
          },
          "threads"_a, "memory"_a, "gpus"_a);
  python::AddModel(module);
  python::AddRunner(module);
  module.def("open", &python::Open, "name"_a, "weights"_a, "check_finite"_a, "lora"_a, "progress"_a.none(),
             "Opens a model.");
  module.def("repair", &python::RepairModel, "model"_a, "recipe"_a, "settings"_a, "resources"_a, "progress"_a.none(),
             "keep"_a, "Prunes and repairs: (pruned, corrected, merged or None).");
  module.def("perplexity", &python::Perplexity, "model"_a, "text"_a, "protocol"_a, "tokens"_a, "resources"_a,
             "progress"_a.none(), "Measures perplexity on a text file.");
  module.def("evaluate", &python::EvaluateModels, "models"_a, "tasks"_a, "data"_a, "shots"_a, "limit"_a, "resources"_a,
             "progress"_a.none(), "Runs suites: (task, quoted metric, items, seconds, metrics of each model) each.");
  module.def("score", &python::Scores, "model"_a, "sequences"_a, "resources"_a, "progress"_a.none(),
             "Scores the last tokens of (token ids, count): (log-likelihood, greedy) each.");
  module.def("encode_continuations", &python::EncodedContinuations, "model"_a, "texts"_a,
             "Encodes (context, text) pairs as lm-evaluation-harness does: (token ids, count of scored ones) each.");
  module.def(
      "encode_document",
      [](const face::LanguageModel& model, const std::string& document) {
        return python::TokenSequencesOf(face::EncodeDocument(model, document));
      },
      "model"_a, "document"_a, "Encodes the windows of a document: (token ids, count of scored ones) each.");
  module.def("export", &python::ExportModel, "model"_a, "output"_a, "format"_a, "shard_bytes"_a, "q8_0"_a,
             "base_name"_a, "resources"_a, "progress"_a.none(), "Writes a model for other programs; returns notes.");
  module.def("finetune", &python::FinetuneModel, "model"_a, "settings"_a, "recovery"_a, "resources"_a, "step"_a.none(),
             "Trains a model further.");
  module.def("pull", &python::PullAll, "name"_a, "dataset"_a, "include"_a, "exclude"_a, "verify"_a,
             "Downloads from the Hugging Face hub: (repository, directory) each.");
  module.def(
      "export_formats",
      [] {
        std::vector<std::pair<std::string, std::string>> formats;
        for (const face::ExportFormatName& format : face::ExportFormatNames())
          formats.emplace_back(format.name, format.summary);
        return formats;
      },
      "(name, summary) of each format.");
  module.def(
      "criteria", [] { return python::Pairs(face::CriteriaNames()); }, "(name, summary) of each criterion.");
  module.def(
      "corrections", [] { return python::Pairs(face::CorrectionNames()); }, "(name, summary) of each correction.");
  module.def(
      "recipes",
      [] {
        std::vector<std::tuple<std::string, std::string, std::string>> recipes;
        for (const face::NamedRecipe& recipe : face::NamedRecipes())
          recipes.emplace_back(recipe.name, recipe.summary, recipe.cost);
        return recipes;
      },
      "(name, summary, cost at run time) of each named recipe.");
  module.def("version", &face::Version, "The version of the library.");
}
