// SPDX-License-Identifier: Apache-2.0
#include "tools/shift_output.h"

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>

#include "shift/criteria/prune_spec.h"
#include "shiftrt/export.h"
#include "tools/selection.h"
#include "tools/table.h"
#include "types/provenance.h"

namespace shiftrt {

namespace {

// Says which formats take half blocks, if any were removed: it is better known before the fit than at the export.
void PrintExportsOfHalves(const std::vector<BlockPart>& removed) {
  if (std::all_of(removed.begin(), removed.end(), [](const BlockPart& part) { return part.halves == Halves::kBoth; }))
    return;
  std::vector<std::string> names;
  for (const ExportFormatName& format : ExportFormatNames())
    if (format.half_blocks) names.push_back(format.name);
  fmt::print("half blocks are exported as {} alone (hf and gguf: Llama, Mistral and Qwen 2)\n",
             fmt::join(names, " or "));
}

void PrintSelection(const Selection& selection, int64_t layers) {
  fmt::print("layers {}: {}\n", RemovedBy(selection), Names(selection.removed));
  PrintExportsOfHalves(selection.removed);
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

std::string R2(double value) { return std::isnan(value) ? "-" : fmt::format("{:.3f}", value); }

// The warning without the value of a fit, which its row of the table has.
std::string WithoutValue(const std::string& warning) {
  const size_t begin = warning.find(" (R2 "), end = warning.find(')', begin);
  return begin == std::string::npos || end == std::string::npos ? warning
                                                                : warning.substr(0, begin) + warning.substr(end + 1);
}

// One line per warning, with the names of all fits that have it, in the order in which they come.
void PrintWarnings(const std::vector<FitReport>& fits, const char* of, const auto& name) {
  std::vector<std::pair<std::string, std::vector<const FitReport*>>> warnings;
  for (const FitReport& fit : fits) {
    if (fit.warning.empty()) continue;
    const std::string text = WithoutValue(fit.warning);
    auto known = std::ranges::find(warnings, text, [](const auto& one) { return one.first; });
    if (known == warnings.end()) known = warnings.insert(known, {text, {}});
    known->second.push_back(&fit);
  }
  for (const auto& [text, which] : warnings) {
    std::vector<std::string> names;
    for (const FitReport* fit : which) names.push_back(name(*fit));
    fmt::print("  {}{} {}: {}\n", of, names.size() > 1 ? "s" : "", fmt::join(names, ", "),
               names.size() > 1 ? text : which.front()->warning);
  }
}

void PrintSites(const std::vector<FitReport>& sites) {
  if (sites.empty()) return;
  if (!std::isnan(sites.front().scale)) {
    fmt::print("{}\n", Table(PageTable{{"in place of layers", "mean scale"}, ScaleRows(sites)}).Text());
    return;
  }
  fmt::print(
      "{}",
      Table(PageTable{{"in place of layers", "lambda", "condition", "rank", "effective", "R2 fitted", "R2 held out"},
                      SiteTableRows(sites)})
          .Text());
  PrintWarnings(sites, "layer", [](const FitReport& site) { return site.name; });
  fmt::print("\n");
}

void PrintHealed(const std::vector<FitReport>& healed, const std::optional<GateVerdict>& verdict) {
  if (healed.empty()) return;
  if (verdict && !verdict->kept) {
    fmt::print("healing is not applied: the loss on held-out calibration text is {:.4f} with it and {:.4f} without\n\n",
               verdict->with, verdict->without);
    return;
  }
  const double best = std::max_element(healed.begin(), healed.end(), [](const FitReport& a, const FitReport& b) {
                        return a.r2_heldout < b.r2_heldout;
                      })->r2_heldout;
  if (best <= 0) {
    fmt::print("healing explains nothing on held-out tokens: R2 is at most {:.3f} in {} fits\n\n", best, healed.size());
    return;
  }
  PageTable table{{"fitted again", "projection", "lambda", "condition", "R2 fitted", "R2 held out"},
                  HealedRows(healed)};
  for (std::vector<std::string>& row : table.rows) row.front() = "block " + row.front();
  fmt::print("{}", Table(table).Text());
  PrintWarnings(healed, "projection", [](const FitReport& fit) { return fmt::format("{}.{}", fit.name, fit.part); });
  const auto worse = std::ranges::count_if(healed, [](const FitReport& fit) { return fit.r2_heldout < 0; });
  if (worse > 0)
    fmt::print(
        "  {} of {} fitted projections explain{} nothing on held-out tokens (R2 below 0): more calibration text "
        "helps, or --heal off\n",
        worse, healed.size(), worse == 1 ? "s" : "");
  fmt::print("\n");
}

void PrintMergedRuns(const std::vector<FitReport>& runs) {
  if (runs.empty()) return;
  Table table({"merged run", "rank", "R2 fitted", "R2 held out"});
  for (const FitReport& run : runs)
    table.Add(
        {run.name, std::to_string(run.rank), fmt::format("{:.3f}", run.r2_fit), fmt::format("{:.3f}", run.r2_heldout)});
  fmt::print("{}\n", table.Text());
}

void PrintTrials(const RepairReport& report) {
  if (report.trials.empty()) return;
  fmt::print("{}", Table(TrialsTable(report)).Text());
  for (const std::string& why : report.untried) fmt::print("  not tried: {}\n", why);
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

std::vector<std::vector<std::string>> ScaleRows(const std::vector<FitReport>& sites) {
  std::vector<std::vector<std::string>> rows;
  rows.reserve(sites.size());
  for (const FitReport& site : sites) rows.push_back({site.name, fmt::format("{:.4f}", site.scale)});
  return rows;
}

std::vector<std::vector<std::string>> SiteTableRows(const std::vector<FitReport>& sites) {
  std::vector<std::vector<std::string>> rows;
  rows.reserve(sites.size());
  for (const FitReport& site : sites) {
    const bool adapter = site.effective_rank > 0;  // not a projection that was fitted again
    rows.push_back({site.name, fmt::format("{:.3g}", site.lambda), fmt::format("{:.1e}", site.condition),
                    adapter ? std::to_string(site.rank) : "-",
                    adapter ? fmt::format("{:.1f}", site.effective_rank) : "-", fmt::format("{:.3f}", site.r2_fit),
                    R2(site.r2_heldout)});
  }
  return rows;
}

std::vector<std::vector<std::string>> HealedRows(const std::vector<FitReport>& healed) {
  std::vector<std::vector<std::string>> rows;
  rows.reserve(healed.size());
  for (const FitReport& fit : healed)
    rows.push_back({fit.name, fit.part, fmt::format("{:.3g}", fit.lambda), fmt::format("{:.1e}", fit.condition),
                    fmt::format("{:.3f}", fit.r2_fit), R2(fit.r2_heldout)});
  return rows;
}

std::string GainText(const GainReport& gain) {
  std::string text = fmt::format("on {} held-out tokens of the calibration text, the repair ", gain.tokens);
  if (gain.corrected == gain.pruned) return text + "changes nothing: the model is pruned alone";
  text += fmt::format("{} the loss from {:.4f} to {:.4f}, by {:.4f}{}", gain.gain >= 0 ? "lowers" : "raises",
                      gain.pruned, gain.corrected, std::abs(gain.gain), PlusMinus(gain.error, 4));
  if (!gain.kept) return text + ";\nit is left out, and the model is pruned alone (--no-gate keeps it)";
  if (gain.gain < 0) return text + ";\nthe model is better without it";
  if (std::isnan(gain.error)) return text + ";\none held-out sample has no error, so it may not help";
  if (!gain.Clear()) return text + ";\nthat is within twice its error, so it may not help";
  return std::isnan(gain.Share())
             ? text
             : text + fmt::format(";\nit returns {:.0f}% of what pruning cost", 100 * gain.Share());
}

std::string OtherChoiceText(const OtherChoice& other, const GainReport& gain, const PruneSpec& prune) {
  PruneSpec proposed = prune;
  proposed.criterion = other.criterion;
  return fmt::format(
      "{} would remove {}; without a repair, the loss is then {:.4f} instead of {:.4f}, lower by {:.4f}{};\ntry "
      "--prune {}, and compare the repaired models",
      other.criterion, Names(other.removed), other.pruned, gain.pruned, other.gain, PlusMinus(other.error, 4),
      Format(proposed));
}

void PrintProposals(const RepairReport& report, const Recipe& recipe) {
  if (report.other && report.gain && report.other->Clear())
    fmt::print("{}\n\n", OtherChoiceText(*report.other, *report.gain, recipe.prune));
  if (!report.gain || report.gain->Clear()) return;
  fmt::print("what may help more:\n");
  if (!report.sites.empty() && recipe.gram.load.empty())
    fmt::print(
        "  more calibration text (--calib TEXT:SAMPLES): four times these {} tokens take about {:.0f} s to read\n",
        report.sites.front().tokens, 4 * report.seconds.calibrate);
  if (Reads(recipe, "rank") && recipe.rank.kind != RankSpec::Kind::kFull)
    fmt::print("  --lra full: the fit takes as long, but a full map per adapter costs more memory at run time\n");
  if (CorrectionName(recipe) == "lra")
    fmt::print("  --correction joint: the fit takes longer, and there is one adapter per run of removed blocks\n");
  if (!recipe.gate && report.sites.size() > 1 && Reads(recipe, "gate"))
    fmt::print("  --gate: keeps those corrections that help, after {} losses or more on held-out text\n",
               report.sites.size() + 1);
  fmt::print("  --recover 15min: trains the repaired model for as long as it says\n\n");
}

PageTable TrialsTable(const RepairReport& report) {
  PageTable table{{"recipe tried", "tokens fitted", "adapter parameters", "held-out loss", "gain over the first", ""},
                  {}};
  for (const TrialReport& trial : report.trials)
    table.rows.push_back(
        {trial.recipe, std::to_string(trial.tokens), std::to_string(trial.adapter_parameters),
         fmt::format("{:.4f}", trial.loss),
         &trial == &report.trials.front() ? "" : fmt::format("{:+.4f}{}", trial.gain, PlusMinus(trial.gain_error, 4)),
         trial.chosen ? "chosen" : ""});
  return table;
}

PageTable CutsTable(const RepairReport& report) {
  PageTable table{{UnitsName(report.selection), "tokens fitted", "KL from the original", "", "removed"}, {}};
  for (const CutReport& cut : report.cuts)
    table.rows.push_back({std::to_string(cut.units), std::to_string(cut.tokens),
                          fmt::format("{:.4f}{}", cut.divergence, PlusMinus(cut.error, 4)),
                          &cut == &report.cuts.back() ? "the result"
                          : cut.within                ? "within"
                                                      : "above",
                          Names(cut.removed)});
  return table;
}

void PrintRepair(const RepairReport& report, int64_t layers) {
  if (!report.cuts.empty()) fmt::print("{}\n", Table(CutsTable(report)).Text());
  PrintSelection(report.selection, layers);
  PrintSites(report.sites);
  PrintHealed(report.healed, report.healing);
  PrintMergedRuns(report.merged_runs);
  PrintTrials(report);
  PrintGate(report.gate);
  if (report.quantised) PrintQuantised(*report.quantised);
  if (report.gain) fmt::print("{}\n\n", GainText(*report.gain));
}

void PrintQuantised(const QuantiseReport& rounded) {
  fmt::print("rounded to {}: {} matrices, {:.1f} MB to {:.1f} MB", rounded.mixture, rounded.matrices,
             static_cast<double>(rounded.bytes_before) / 1e6, static_cast<double>(rounded.bytes_after) / 1e6);
  if (rounded.eight_bits > 0)
    fmt::print("; {} of them to q8_0, because fewer bits would change the stream too much", rounded.eight_bits);
  if (!std::isnan(rounded.error))
    fmt::print("; error of their products {:.2f}% over {} tokens", 100 * std::sqrt(rounded.error), rounded.tokens);
  fmt::print("\n\n");
}

nlohmann::json ResultsJson(Provenance made) {
  made.recipe = {};
  made.state.clear();
  return ProvenanceJson(made);
}

}  // namespace shiftrt
