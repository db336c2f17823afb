#include "tools/evaluation.h"

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <optional>

#include "eval/metrics.h"
#include "paper/paper.h"
#include "paper/paper_tasks.h"
#include "runtime/files.h"
#include "tools/options.h"
#include "tools/table.h"

namespace shiftrt {

namespace {

using Json = nlohmann::json;

constexpr const char* kProtocol = "lm-evaluation-harness 0.4";

// The paper's name of the model: what the user called it, or a part of its directory ("models--Qwen--Qwen2-1.5B" in the
// Hugging Face cache).
std::string PaperModelOf(const Model& model) {
  std::string name = PaperModel(model.name);
  for (const auto& part : model.directory) {
    const std::string folder = part.string();
    const size_t repository = folder.rfind("--");
    if (name.empty()) name = PaperModel(repository == std::string::npos ? folder : folder.substr(repository + 2));
  }
  return name;
}

// One task's results, by variant.
struct TaskResult {
  const Dataset& dataset;
  const EvalScores& scores;
  std::vector<std::vector<Metric>> metrics;
  const PaperSetting& paper;

  // The paper's accuracy, where `metric` is the one it quotes.
  std::optional<double> Paper(const std::string& variant, const Metric& metric) const {
    if (metric.name != dataset.task->metric || dataset.shots > 0) return std::nullopt;
    return PaperAccuracy(paper, variant, dataset.task->name);
  }
  // The metric that is quoted.
  const Metric& Quoted(size_t variant) const {
    for (const Metric& metric : metrics[variant])
      if (metric.name == dataset.task->metric) return metric;
    return metrics[variant].front();
  }
};

bool Counts(const Metric& metric) { return !metric.right.empty(); }

std::string Percent(const Estimate& estimate) {
  return fmt::format("{:.2f} ± {:.2f}", 100 * estimate.value, 100 * estimate.error);
}

// Percent where right answers are counted, the number itself for a perplexity.
std::string Value(const Metric& metric) {
  const Estimate& estimate = metric.estimate;
  if (Counts(metric)) return Percent(estimate);
  if (std::isnan(estimate.error)) return fmt::format("{:.4f}", estimate.value);
  return fmt::format("{:.2f} ± {:.2f}", estimate.value, estimate.error);
}

std::string Difference(const Estimate& difference) {
  return fmt::format("{:+.2f} ± {:.2f}", 100 * difference.value, 100 * difference.error);
}

std::string Probability(double p) { return p < 1e-4 ? fmt::format("{:.0e}", p) : fmt::format("{:.4f}", p); }

void PrintHeader(const Dataset& dataset) {
  const Task& task = *dataset.task;
  const auto items = std::ssize(dataset.items);
  std::string partial;
  if (items != task.rows) partial = fmt::format(", PARTIAL: {} of {} rows", items, task.rows);
  fmt::print("{}: {} items, {} shots{}; data {}, template {}\n", task.title, items, dataset.shots, partial,
             dataset.data_hash, dataset.template_hash);
}

// Of a choice task the metric that is quoted, or with `all` every one.
void PrintResult(const TaskResult& result, const std::vector<EvalVariant>& variants, bool all) {
  const Task& task = *result.dataset.task;
  PrintHeader(result.dataset);
  Table table({"model", "metric", "right", "score", "to " + variants[0].name, "p", "paper"});
  for (size_t m = 0; m < result.metrics[0].size(); ++m) {
    if (!all && task.kind == TaskKind::kChoice && result.metrics[0][m].name != task.metric) continue;
    for (size_t v = 0; v < variants.size(); ++v) {
      const Metric& metric = result.metrics[v][m];
      std::vector<std::string> row = {variants[v].name, metric.name, "", Value(metric), "", "", ""};
      if (Counts(metric)) row[2] = fmt::format("{}/{}", metric.correct, metric.right.size());
      if (Counts(metric) && v > 0) {
        const Paired paired = Compare(result.metrics[0][m].right, metric.right);
        row[4] = Difference(paired.difference);
        row[5] = Probability(paired.p);
      }
      if (const auto paper = result.Paper(variants[v].name, metric)) row[6] = fmt::format("{:.2f}", 100 * *paper);
      table.Add(std::move(row));
    }
  }
  table.DropEmptyColumns();
  const EvalCost& cost = result.scores.cost;
  fmt::print("{}  {} tokens computed for {} in the requests, {} rows through the head\n\n", table.Text(),
             cost.tokens_computed, cost.tokens_requested, cost.head_rows);
}

// NaN, where there is no error, becomes null.
Json MetricJson(const Metric& metric) {
  Json json = {{"value", metric.estimate.value}, {"standard_error", metric.estimate.error}};
  if (Counts(metric)) {
    json["right"] = metric.correct;
    json["items"] = metric.right.size();
  }
  return json;
}

Json PairedJson(const Paired& paired) {
  return {{"difference", paired.difference.value},
          {"standard_error", paired.difference.error},
          {"only_first_right", paired.only_first},
          {"only_this_right", paired.only_second},
          {"mcnemar_p", paired.p}};
}

Json ResultJson(const TaskResult& result, const std::vector<EvalVariant>& variants) {
  const Dataset& dataset = result.dataset;
  const EvalCost& cost = result.scores.cost;
  Json json = {{"task", dataset.task->name},
               {"metric", dataset.task->metric},
               {"files", Json::array()},
               {"items", dataset.items.size()},
               {"full_items", dataset.task->rows},
               {"partial", std::ssize(dataset.items) != dataset.task->rows},
               {"shots", dataset.shots},
               {"data_hash", dataset.data_hash},
               {"template_hash", dataset.template_hash},
               {"requests", cost.requests},
               {"tokens_requested", cost.tokens_requested},
               {"tokens_computed", cost.tokens_computed},
               {"head_rows", cost.head_rows},
               {"shared_stages", cost.shared_stages},
               {"seconds", result.scores.seconds},
               {"variants", Json::array()}};
  for (const auto& file : dataset.files) json["files"].push_back(file.string());
  for (size_t v = 0; v < variants.size(); ++v) {
    Json variant = {{"name", variants[v].name}, {"metrics", Json::object()}};
    for (size_t m = 0; m < result.metrics[v].size(); ++m) {
      const Metric& metric = result.metrics[v][m];
      Json& entry = variant["metrics"][metric.name] = MetricJson(metric);
      if (const auto paper = result.Paper(variants[v].name, metric)) entry["paper"] = *paper;
      if (Counts(metric) && v > 0) entry["to_first"] = PairedJson(Compare(result.metrics[0][m].right, metric.right));
    }
    json["variants"].push_back(std::move(variant));
  }
  return json;
}

// Where all choices share one, it stands once.
template <typename T>
Json OnceIfShared(const std::vector<T>& values) {
  const bool shared = std::all_of(values.begin(), values.end(), [&](const T& value) { return value == values[0]; });
  return shared ? Json{values[0]} : Json(values);
}

// What was scored: texts and token ids of every prompt, cut to the model's context (of a document, its windows).
Json PromptsJson(const Dataset& dataset, const Item& item, PromptEncoder& encoder) {
  std::vector<std::string> contexts, continuations;
  std::vector<std::vector<int32_t>> context_tokens, continuation_tokens;
  for (const Prompt& prompt : item.prompts) {
    contexts.push_back(prompt.context);
    continuations.push_back(prompt.continuation);
    const bool rolling = dataset.task->kind == TaskKind::kPages;
    for (const ScoringRequest& request :
         rolling ? encoder.EncodeRolling(prompt.continuation) : std::vector{encoder.Encode(prompt, item.where)}) {
      const auto cut = request.tokens.end() - request.scored;
      context_tokens.emplace_back(request.tokens.begin(), cut);
      continuation_tokens.emplace_back(cut, request.tokens.end());
    }
  }
  return {{"contexts", OnceIfShared(contexts)},
          {"continuations", OnceIfShared(continuations)},
          {"context_tokens", OnceIfShared(context_tokens)},
          {"continuation_tokens", continuation_tokens}};
}

// A line an item.
void WriteItems(const Dataset& dataset, const EvalScores& scores, const std::vector<EvalVariant>& variants,
                PromptEncoder& encoder, AtomicFile& file) {
  for (size_t i = 0; i < dataset.items.size(); ++i) {
    const Item& item = dataset.items[i];
    Json line = PromptsJson(dataset, item, encoder);
    line["task"] = dataset.task->name;
    line["row"] = item.where;
    line["gold"] = item.gold;
    for (size_t v = 0; v < variants.size(); ++v) {
      Json& entry = line["variants"][variants[v].name];
      for (const Score& score : scores.scores[v][i]) {
        entry["log_likelihoods"].push_back(score.log_likelihood);
        entry["greedy"].push_back(score.greedy);
      }
    }
    file.Write(line.dump() + "\n");
  }
}

// The quoted metric of every task, and the mean of accuracies: of the paper's seven tasks where all are there, else of
// all that have one.
class Summary {
 public:
  Summary(const std::vector<Dataset>& evaluated, const std::vector<EvalVariant>& variants)
      : variants_(variants), averaged_(ParseTasks("paper7")), accuracy_(variants.size()), difference_(variants.size()) {
    std::vector<const Task*> tasks;
    for (const Dataset& dataset : evaluated) tasks.push_back(dataset.task);
    const auto has = [&](const Task* task) { return std::find(tasks.begin(), tasks.end(), task) != tasks.end(); };
    if (!std::all_of(averaged_.begin(), averaged_.end(), has)) averaged_ = tasks;
  }

  void Add(const TaskResult& result) {
    rows_.push_back({result.dataset.task->title});
    for (size_t v = 0; v < variants_.size(); ++v) rows_.back().push_back(Value(result.Quoted(v)));
    const bool averaged = std::find(averaged_.begin(), averaged_.end(), result.dataset.task) != averaged_.end();
    if (!averaged || !Counts(result.Quoted(0))) return;
    for (size_t v = 0; v < variants_.size(); ++v) {
      accuracy_[v].push_back(result.Quoted(v).estimate);
      difference_[v].push_back(Compare(result.Quoted(0).right, result.Quoted(v).right).difference);
    }
  }

  Estimate Mean(size_t variant) const { return MeanOf(accuracy_[variant]); }

  void Print() const {
    std::vector<std::string> header = {"task"}, mean = {fmt::format("mean of {} tasks", accuracy_[0].size())},
                             difference = {"  to " + variants_[0].name};
    for (size_t v = 0; v < variants_.size(); ++v) {
      header.push_back(variants_[v].name);
      mean.push_back(Percent(Mean(v)));
      difference.push_back(v == 0 ? "" : Difference(MeanOf(difference_[v])));
    }
    Table table(header);
    for (const auto& row : rows_) table.Add(row);
    if (accuracy_[0].size() > 1) {
      table.Add(mean);
      if (variants_.size() > 1) table.Add(difference);
    }
    fmt::print("{}", table.Text());
  }

  Json ToJson() const {
    Json json = Json::array();
    for (size_t v = 0; v < variants_.size() && !accuracy_[v].empty(); ++v) {
      const Estimate mean = Mean(v), difference = MeanOf(difference_[v]);
      Json entry = {{"name", variants_[v].name},
                    {"tasks", accuracy_[v].size()},
                    {"value", mean.value},
                    {"standard_error", mean.error}};
      if (v > 0) entry["to_first"] = {{"difference", difference.value}, {"standard_error", difference.error}};
      json.push_back(std::move(entry));
    }
    return json;
  }

 private:
  const std::vector<EvalVariant>& variants_;
  std::vector<const Task*> averaged_;
  std::vector<std::vector<std::string>> rows_;
  std::vector<std::vector<Estimate>> accuracy_, difference_;  // by variant, of the averaged tasks
};

// Where an evaluation of these tasks and variants keeps what it has done: the file the user named, or one in the cache
// that the same command finds again.
std::filesystem::path JournalFile(const EvaluationOptions& options, const Model& model,
                                  const std::vector<EvalVariant>& variants) {
  if (!options.journal.empty()) return options.journal;
  const char* cache = std::getenv("XDG_CACHE_HOME");
  const char* home = std::getenv("HOME");
  if (cache == nullptr && home == nullptr) return "";
  std::string what = fmt::format("{} {} {} {} {} {}", model.directory.string(), options.tasks, options.shots,
                                 options.limit, options.bos, fmt::join(options.data, " "));
  for (const EvalVariant& variant : variants)
    what += fmt::format(" {} {}", variant.name, fmt::join(variant.plan.KeptLayers(), ","));
  const std::filesystem::path root = cache != nullptr ? cache : std::filesystem::path(home) / ".cache";
  return root / "shiftrt" / ("eval-" + HashHex(what) + ".jsonl");
}

}  // namespace

void EvaluationOptions::AddTasksTo(CLI::App& app, const std::string& flag) {
  CLI::Option* const names = app.add_option(flag, tasks, "zero-shot suites: names with commas between, paper7 or all");
  if (!tasks.empty()) names->capture_default_str();
  const auto add = [&](CLI::Option* option) {
    if (tasks.empty()) option->needs(names);
    return option;
  };
  add(app.add_option("--data", data,
                     "directory with the data sets' files, or TASK=FILE; may be repeated (also looked at: the Hugging "
                     "Face cache)"));
  add(app.add_option("--shots", shots, "solved rows before each question")->check(CLI::Range(0, 100)))
      ->capture_default_str();
  add(app.add_option("--limit", limit, "only the first N rows of a task (of each subject); 0: all")
          ->check(CLI::Range(0, 1 << 30)))
      ->capture_default_str();
  add(app.add_option("--bos", bos, "a BOS token before every text: auto (as the tokenizer says), always or never")
          ->check(CLI::IsMember({"auto", "always", "never"})))
      ->capture_default_str();
}

void EvaluationOptions::AddTo(CLI::App& app, const std::string& flag) {
  AddTasksTo(app, flag);
  const auto add = [&](CLI::Option* option) {
    if (tasks.empty()) option->needs(app.get_option(flag));
    return option;
  };
  add(app.add_option("--metrics", metrics, "paper (the one quoted), or all")->check(CLI::IsMember({"paper", "all"})))
      ->capture_default_str();
  add(app.add_option("--items", items, "write every item's prompts and scores to this file, a JSON line each"))
      ->check(FileOutput());
  add(app.add_option("--journal", journal,
                     "what is done is noted in this file, and an interrupted evaluation goes on from it (default: a "
                     "file in ~/.cache/shiftrt); it goes when all is done"));
}

std::vector<Dataset> EvaluationOptions::Load() const {
  std::vector<Dataset> datasets;
  for (const Task* task : ParseTasks(tasks)) datasets.push_back(LoadDataset(*task, {data, limit, shots}));
  return datasets;
}

Estimate MeanAccuracy(const Context& context, const Model& model, const DepthPlan& plan,
                      const std::vector<Dataset>& datasets, const EvaluationOptions& options, Progress& progress) {
  const std::vector<EvalVariant> variants = {{"", plan}};
  Summary summary(datasets, variants);
  Journal none("");
  for (const Dataset& dataset : datasets) {
    const EvalScores scores =
        Evaluate(context, model, variants, dataset, {.bos = ParseBos(options.bos)}, none, progress);
    summary.Add({dataset, scores, {Measure(*dataset.task, dataset.items, scores.scores[0], false)}, {}});
  }
  return summary.Mean(0);
}

std::string PaperCriterion(const Selection& selection, int64_t layers) {
  return std::ssize(selection.removed) == layers / 4 ? selection.criterion : "";
}

std::vector<std::string> VariantNames(const ShiftOptions& shift) {
  std::vector<std::string> names = {"original", "pruned"};
  if (shift.correction->name != "none")
    names.emplace_back(shift.correction->name == "auto" ? "lra" : shift.correction->name);
  if (shift.merge != Merge::kOff) names.push_back("merged");
  return names;
}

std::vector<EvalVariant> VariantsOf(const Model& model, const ShiftResult& result, const ShiftOptions& shift) {
  std::vector<EvalVariant> variants;
  for (const std::string& name : VariantNames(shift))
    variants.push_back({name, name == "original" ? model.plan
                              : name == "pruned" ? result.pruned
                              : name == "merged" ? *result.merged
                                                 : result.corrected});
  return variants;
}

Json RunEvaluation(const Context& context, const Model& model, const std::vector<EvalVariant>& variants,
                   const std::string& criterion, const std::vector<Dataset>& datasets, const EvaluationOptions& options,
                   Progress& progress) {
  const EvalOptions eval{.bos = ParseBos(options.bos)};
  const bool all = options.metrics == "all";
  PromptEncoder encoder(model.RequireTokenizer(), eval.bos, model.weights->config.max_positions);
  Journal journal(JournalFile(options, model, variants));
  if (journal.batches() > 0)
    fmt::print(stderr,
               "{} has {} batches of an evaluation that was interrupted; those of this one are not scored again\n",
               journal.file().string(), journal.batches());
  fmt::print("protocol {}, BOS {} ({})\n\n", kProtocol, options.bos, encoder.adds_bos() ? "added" : "not added");
  Json json = {{"model", model.name},
               {"fingerprint", model.weights->Fingerprint()},
               {"protocol", kProtocol},
               {"bos", options.bos},
               {"adds_bos", encoder.adds_bos()},
               {"tasks", Json::array()}};
  const PaperSetting paper{PaperModelOf(model), criterion};
  Summary summary(datasets, variants);
  std::optional<AtomicFile> items;
  if (!options.items.empty()) items.emplace(options.items);
  for (const Dataset& dataset : datasets) {
    const EvalScores scores = Evaluate(context, model, variants, dataset, eval, journal, progress);
    TaskResult result{dataset, scores, {}, paper};
    for (const auto& of_variant : scores.scores)
      result.metrics.push_back(Measure(*dataset.task, dataset.items, of_variant, all));
    PrintResult(result, variants, all);
    std::fflush(stdout);
    json["tasks"].push_back(ResultJson(result, variants));
    summary.Add(result);
    if (items) WriteItems(dataset, scores, variants, encoder, *items);
  }
  summary.Print();
  json["mean"] = summary.ToJson();
  if (items) items->Commit();
  journal.Remove();
  return json;
}

}  // namespace shiftrt
