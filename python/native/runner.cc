// SPDX-License-Identifier: Apache-2.0
// Binds running a model: generation, logits, and the residual stream.
#include <nanobind/stl/map.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/set.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>

#include <algorithm>
#include <atomic>
#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <string>
#include <string_view>
#include <thread>
#include <tuple>
#include <utility>
#include <vector>

#include "python/native/common.h"

namespace shiftrt::python {

namespace {

using Floats = nb::ndarray<nb::numpy, float, nb::ndim<2>, nb::c_contig>;

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
                                     there + ", the last of which is after all blocks");
  std::map<int64_t, Floats> arrays;
  for (auto& [layer, stream] : streams) arrays.emplace(layer, stream.Release());
  return arrays;
}

}  // namespace

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

}  // namespace shiftrt::python
