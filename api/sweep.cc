// SPDX-License-Identifier: Apache-2.0
#include "include/shiftrt/sweep.h"

#include <algorithm>
#include <set>
#include <string>
#include <vector>

#include "api/impl.h"
#include "api/repair.h"
#include "api/sweep_journal.h"
#include "eval/perplexity.h"
#include "eval/summary.h"
#include "models/result_key.h"
#include "runtime/check.h"
#include "runtime/files.h"
#include "runtime/processes.h"
#include "shift/sweep.h"
#include "text/documents.h"
#include "types/suites.h"

namespace shiftrt {

namespace {

// Everything that decides a cell besides its settings.
std::string JournalKey(const SweepSettings& settings, const CalibrationSpec& calibration, const Model& model,
                       const Context& fitting, const Context& measuring) {
  WorkKey key = ResultKey("cells", fitting, model, model.plan);
  key.Add("measured in", measuring.products)
      .Add("source", calibration.source)
      .Add("samples", calibration.samples)
      .Add("tokens", calibration.tokens)
      .Add("protocol", settings.protocol)
      .Add("heldout", HashHex(std::as_bytes(std::span(settings.heldout.tokens))));
  // The files of the calibration text, which may be given by known names.
  for (const std::string& name : TextsIn(calibration.source)) key.AddFile("text", LookForText(name));
  if (!settings.suites.empty()) key.AddRows(SuiteFields(), settings.suites.impl().settings);
  for (const Dataset& suite : settings.suites.impl().datasets) key.Add("data", suite.data_hash);
  return key.Hash();
}

// The suites that a mean accuracy is taken over. Throws UsageError if no suite has right answers.
std::vector<const Dataset*> AveragedSuites(const Suites& suites, int64_t parameters) {
  std::vector<const Task*> given;
  for (const Dataset& suite : suites.impl().datasets) given.push_back(suite.task);
  const std::vector<const Task*> averaged = AveragedTasks(given, parameters);
  if (averaged.empty() && !given.empty())
    FailUsage(Field("suites"), "{}: accuracy is of suites whose right answers are counted",
              suites.impl().settings.tasks);
  std::vector<const Dataset*> chosen;
  for (const Dataset& suite : suites.impl().datasets)
    if (std::find(averaged.begin(), averaged.end(), suite.task) != averaged.end()) chosen.push_back(&suite);
  return chosen;
}

// The mean accuracy over the suites, of which there is one at least.
SuiteMean MeanAccuracy(const SweepJob& with, const DepthPlan& plan, Bos bos,
                       const std::vector<const Dataset*>& suites) {
  const std::vector<Variant> variants = {{"", plan}};
  Journal none("");
  const EvalJob job = {with.context, with.model, variants, EvalOptions{.bos = bos}, none, with.progress};
  std::vector<SuiteResult> results;
  std::vector<const Task*> tasks;
  for (const Dataset* suite : suites) {
    results.push_back(Summarize(*suite, Evaluate(job, *suite), /*all=*/false));
    tasks.push_back(suite->task);
  }
  return Means(results, tasks).models.front();
}

// Throws UsageError for a value that an axis has twice. Its rows would count as independent results.
template <typename T, typename Text>
void CheckDistinct(const char* axis, const std::vector<T>& values, const Text& text) {
  std::set<std::string> seen;
  for (const T& value : values)
    if (std::string name = text(value); !seen.insert(name).second) FailUsage(Field(axis), "{} is there twice", name);
}

}  // namespace

SweepResult Sweep(const LanguageModel& model, const SweepAxes& axes, const SweepSettings& settings,
                  const Resources& resources) {
  const Model& original = model.impl().model;
  CheckOriginal(original);
  CheckDistinct("prunes", axes.prunes, [](const PruneSpec& spec) { return Format(spec); });
  CheckDistinct("seeds", axes.seeds, [](uint64_t seed) { return fmt::format("{}", seed); });
  const int64_t window = ProtocolWindow(settings.protocol, original.weights->config);
  if (!settings.heldout.Scored())
    FailUsage(Field("heldout"), "a perplexity needs 2 tokens, and this text has {}", settings.heldout.tokens.size());
  const std::vector<const Dataset*> suites = AveragedSuites(settings.suites, model.Parameters());
  const CalibrationSpec calibration = TextOf(settings.calibration, original, "calibration");
  const Context context = MakeContext(resources);
  const auto turn = context.TakeTurn();
  Processes& processes = *context.processes;
  ProgressOf progress(settings.progress);
  const Context fitting = context.ReducedPrecision();
  const SweepJob job = {fitting, original, progress};

  SweepResult result;
  for (const Dataset* suite : suites)
    result.averaged.push_back(fmt::format("{} ({} items)", suite->task->title, suite->items.size()));
  SweepSource source;
  source.open = [&](uint64_t seed, int64_t samples) {
    CalibrationSpec spec = calibration;
    spec.samples = samples;
    CalibrationSet set = LoadCalibration(spec, original.RequireTokenizer(), seed, /*batch_tokens=*/spec.tokens);
    processes.CheckSame("calibration text (hash)", set.hash);
    result.calibration = set.source;
    return set;
  };
  source.measure = [&](const DepthPlan& plan) {
    PlanTree measured(context, original.weights, {plan});
    Quality quality{WindowedPerplexities(measured, settings.heldout.tokens, window, progress).front().perplexity};
    if (suites.empty()) return quality;
    const SuiteMean accuracy = MeanAccuracy({context, original, progress}, plan, settings.suites.impl().bos, suites);
    quality.accuracy = accuracy.value;
    quality.accuracy_error = accuracy.standard_error;
    return quality;
  };
  SweepJournal journal(settings.journal, JournalKey(settings, calibration, original, fitting, context));
  processes.CheckSame("journal, which is to be in a directory of all hosts: cells", fmt::format("{}", journal.cells()));
  if (processes.first() && settings.tell) {
    for (const std::string& bad : journal.bad()) settings.tell(bad + "; its cell is computed again");
    if (journal.cells() > 0)
      settings.tell(fmt::format("{} cells come from {}, where an interrupted sweep left them", journal.cells(),
                                settings.journal.string()));
  }
  source.known = [&](const Recipe& recipe, int64_t samples) { return journal.Find(recipe, samples); };
  source.row = [&](const SweepRow& row) {
    if (processes.first() && journal.Find(row.recipe, row.samples) == nullptr) journal.Add(row);
    result.rows.push_back(row);
    if (settings.done) settings.done(row);
  };
  Sweep(job, axes, source);
  return result;
}

}  // namespace shiftrt
