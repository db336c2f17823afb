// SPDX-License-Identifier: Apache-2.0
#include "tools/shift_output.h"

#include <algorithm>
#include <cmath>

#include "tools/selection.h"
#include "tools/table.h"

namespace shiftrt {

namespace {

void PrintSelection(const Selection& selection, int64_t layers) {
  fmt::print("layers removed by {}: {}\n", selection.criterion, Names(selection.removed));
  if (selection.scores.empty()) return;
  if (selection.window > 1)
    fmt::print("scores of {} consecutive {}, by the first\n", selection.window, UnitsName(selection));
  Table table({"layer", "score", ""});
  for (int64_t unit = 0; unit < UnitsOf(selection, layers); ++unit) {
    const BlockPart part = PartOf(selection.unit, unit);
    table.Add({Name(part), ScoreText(selection, unit), Removes(selection, part) ? "removed" : ""});
  }
  fmt::print("{}\n", table.Text());
}

void PrintScales(const std::vector<SiteReport>& sites) {
  Table table({"in place of layers", "mean scale"});
  for (const SiteReport& site : sites) table.Add({site.site.Name(), fmt::format("{:.4f}", site.scale)});
  fmt::print("{}\n", table.Text());
}

void PrintSites(const std::vector<SiteReport>& sites) {
  if (sites.empty()) return;
  if (!std::isnan(sites.front().scale)) return PrintScales(sites);
  Table table({"in place of layers", "lambda", "condition", "rank", "effective", "R2 fitted", "R2 held out"});
  for (const SiteReport& site : sites)
    table.Add({site.site.Name(), fmt::format("{:.3g}", site.lambda), Condition(site), std::to_string(site.rank),
               fmt::format("{:.1f}", site.effective_rank), fmt::format("{:.3f}", site.r2_fit),
               std::isnan(site.r2_heldout) ? "-" : fmt::format("{:.3f}", site.r2_heldout)});
  fmt::print("{}", table.Text());
  for (const SiteReport& site : sites)
    if (!site.warning.empty()) fmt::print("  layer {}: {}\n", site.site.Name(), site.warning);
  fmt::print("\n");
}

void PrintHealed(const std::vector<SiteReport>& healed, const std::optional<GateVerdict>& verdict) {
  if (healed.empty()) return;
  if (verdict && !verdict->kept) {
    fmt::print("healing is not applied: the loss on held-out calibration text is {:.4f} with it and {:.4f} without\n\n",
               verdict->with, verdict->without);
    return;
  }
  const double best = std::max_element(healed.begin(), healed.end(), [](const SiteReport& a, const SiteReport& b) {
                        return a.r2_heldout < b.r2_heldout;
                      })->r2_heldout;
  if (best <= 0) {
    fmt::print("healing explains nothing on held-out tokens: R2 is at most {:.3f} in {} fits\n\n", best, healed.size());
    return;
  }
  Table table({"fitted again", "projection", "lambda", "condition", "R2 fitted", "R2 held out"});
  for (const SiteReport& fit : healed)
    table.Add({fmt::format("block {}", fit.site.Name()), fit.part, fmt::format("{:.3g}", fit.lambda), Condition(fit),
               fmt::format("{:.3f}", fit.r2_fit),
               std::isnan(fit.r2_heldout) ? "-" : fmt::format("{:.3f}", fit.r2_heldout)});
  fmt::print("{}", table.Text());
  for (const SiteReport& fit : healed)
    if (!fit.warning.empty()) fmt::print("  block {}, {}: {}\n", fit.site.Name(), fit.part, fit.warning);
  fmt::print("\n");
}

void PrintMergedRuns(const std::vector<SiteReport>& runs) {
  if (runs.empty()) return;
  Table table({"merged run", "rank", "R2 fitted", "R2 held out"});
  for (const SiteReport& run : runs)
    table.Add({run.site.Name(), std::to_string(run.rank), fmt::format("{:.3f}", run.r2_fit),
               fmt::format("{:.3f}", run.r2_heldout)});
  fmt::print("{}\n", table.Text());
}

void PrintTrials(const ShiftResult& result) {
  if (result.trials.empty()) return;
  const std::vector<std::vector<std::string>> rows = TrialsTable(result);
  Table table(rows.front());
  for (size_t i = 1; i < rows.size(); ++i) table.Add(rows[i]);
  fmt::print("{}", table.Text());
  for (const std::string& why : result.untried) fmt::print("  not tried: {}\n", why);
  fmt::print("\n");
}

void PrintGate(const std::vector<GateVerdict>& verdicts) {
  if (verdicts.empty()) return;
  Table table({"gate at layer", "loss with", "loss without", ""});
  for (const GateVerdict& v : verdicts)
    table.Add({Names(v.parts, ","), fmt::format("{:.4f}", v.with), fmt::format("{:.4f}", v.without),
               v.kept ? "kept" : "dropped"});
  fmt::print("{}\n", table.Text());
}

}  // namespace

std::string Condition(const SiteReport& fit) { return fmt::format("{:.1e}", fit.condition); }

std::vector<std::vector<std::string>> TrialsTable(const ShiftResult& result) {
  std::vector<std::vector<std::string>> table = {
      {"recipe tried", "tokens fitted", "adapter parameters", "held-out loss", "gain over the first", ""}};
  for (const Trial& trial : result.trials)
    table.push_back({Format(trial.recipe), std::to_string(trial.tokens), std::to_string(trial.parameters),
                     fmt::format("{:.4f}", trial.loss),
                     &trial == &result.trials.front() ? "" : fmt::format("{:+.4f} ± {:.4f}", trial.gain, trial.error),
                     &trial == &result.trials[result.chosen_trial] ? "chosen" : ""});
  return table;
}

void PrintShift(const ShiftResult& result, int64_t layers) {
  PrintSelection(result.selection, layers);
  PrintSites(result.sites);
  PrintHealed(result.healed, result.healing);
  PrintMergedRuns(result.merged_runs);
  PrintTrials(result);
  PrintGate(result.gate);
}

}  // namespace shiftrt
