// SPDX-License-Identifier: Apache-2.0
#include "tools/run_report.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <optional>
#include <utility>

#include "shift/criteria/prune_spec.h"
#include "tools/comparison.h"
#include "tools/selection.h"
#include "tools/shift_output.h"

namespace shiftrt {

namespace {

constexpr const char* kVariants[] = {"original", "pruned", "corrected"};

// True if the unit, or the window of units that begins with it, is removed.
bool Removed(const Selection& selection, int64_t unit) {
  const BlockPart part = PartOf(selection.unit, unit);
  if (selection.window > 1) return part.begin() == selection.removed.front().begin();
  return Removes(selection, part);
}

std::vector<double> Counting(size_t count, double first) {
  std::vector<double> numbers(count);
  for (size_t i = 0; i < count; ++i) numbers[i] = first + static_cast<double>(i);
  return numbers;
}

Chart ScoreChart(const Selection& selection) {
  Chart chart;
  chart.name = "scores-" + selection.criterion;
  std::replace(chart.name.begin(), chart.name.end(), '*', '-');
  std::replace(chart.name.begin(), chart.name.end(), ':', '-');
  chart.title = "Layer scores: " + selection.criterion;
  const bool halves = selection.unit == Unit::kHalf;
  const char* const unit = halves ? "half block (2 x layer: attention; 2 x layer + 1: MLP)" : "layer";
  chart.x_label = selection.window > 1 ? fmt::format("first of {} {}", selection.window, UnitsName(selection)) : unit;
  chart.whole_x = true;
  Series kept{"kept", Mark::kBars, {}, {}, 0}, removed{"removed", Mark::kBars, {}, {}, 1};
  for (size_t layer = 0; layer < selection.scores.size(); ++layer) {
    Series& series = Removed(selection, static_cast<int64_t>(layer)) ? removed : kept;
    series.x.push_back(static_cast<double>(layer));
    series.y.push_back(selection.scores[layer]);
  }
  chart.series = {kept, removed};
  return chart;
}

Section Scores(const std::vector<Selection>& selections) {
  Section section{"Layer scores by criterion",
                  "Lower is less important. Each criterion's own choice of the same number is marked.",
                  {}};
  for (const Selection& selection : selections)
    if (!selection.scores.empty()) section.parts.push_back(ScoreChart(selection));
  return section;
}

// Values of the adapters' spectra, one line per site. With `energy`, the share of the sum of squares that the leading
// values hold.
Chart SpectrumChart(const std::vector<FitReport>& sites, bool energy) {
  Chart chart;
  chart.name = energy ? "explained-energy" : "singular-values";
  chart.title = energy ? "Energy explained by the leading directions" : "Singular values of each correction";
  chart.x_label = "directions";
  chart.log_x = true;
  chart.log_y = !energy;
  chart.from_zero = energy;
  for (const FitReport& site : sites) {
    Series series{fmt::format("layer {}", site.name), Mark::kLine, {}, {}, static_cast<int>(chart.series.size())};
    series.x = Counting(site.singular_values.size(), 1);
    series.y = site.singular_values;
    if (energy) {
      double total = 0, sum = 0;
      for (double value : site.singular_values) total += value * value;
      for (double& y : series.y) y = total > 0 ? (sum += y * y) / total : 0;
    }
    chart.series.push_back(std::move(series));
  }
  return chart;
}

Chart FitChart(const std::vector<FitReport>& sites) {
  Chart chart;
  chart.name = "r2";
  chart.title = "R² of each correction";
  chart.x_label = "layer";
  chart.from_zero = true;
  Series fitted{"on fitted tokens", Mark::kDots, {}, {}, 0}, heldout{"on held-out tokens", Mark::kDots, {}, {}, 1};
  for (const FitReport& site : sites) {
    const auto x = static_cast<double>(chart.x_names.size());
    chart.x_names.push_back(site.name);
    fitted.x.push_back(x);
    heldout.x.push_back(x);
    fitted.y.push_back(site.r2_fit);
    heldout.y.push_back(site.r2_heldout);
  }
  chart.series = {fitted, heldout};
  return chart;
}

Section Scales(const std::vector<FitReport>& sites) {
  return {"The corrections",
          "The mean factor by which the stream is scaled in place of the removed blocks.",
          {PageTable{{"layers", "mean scale"}, ScaleRows(sites)}}};
}

Section Sites(const std::vector<FitReport>& sites) {
  if (!std::isnan(sites.front().scale)) return Scales(sites);
  const PageTable table{{"layer", "lambda", "condition", "rank", "effective rank", "R² fitted", "R² held out"},
                        SiteTableRows(sites)};
  Section section{"The corrections",
                  "What stands in for the removed blocks. R² far lower on held-out tokens than on fitted ones "
                  "would mean too little calibration text; energy that needs many directions, too low a rank.",
                  {table, SpectrumChart(sites, false), SpectrumChart(sites, true), FitChart(sites)}};
  for (const FitReport& site : sites)
    if (!site.warning.empty()) section.parts.push_back(PageText{fmt::format("layer {}: {}", site.name, site.warning)});
  return section;
}

Section Cuts(const RepairReport& report) {
  Series tried{.name = "tried on a part of the text", .mark = Mark::kDots, .x = {}, .y = {}, .color = 0};
  Series result{.name = "the result", .mark = Mark::kDots, .x = {}, .y = {}, .color = 1};
  for (const CutReport& cut : report.cuts) {
    Series& series = &cut == &report.cuts.back() ? result : tried;
    series.x.push_back(static_cast<double>(cut.units));
    series.y.push_back(cut.divergence);
  }
  Chart chart;
  chart.name = "cuts";
  chart.title = fmt::format("Divergence by the number of removed {}", UnitsName(report.selection));
  chart.x_label = "removed";
  chart.y_label = "nats per token";
  chart.series = {std::move(tried), std::move(result)};
  chart.from_zero = chart.whole_x = true;
  return {
      "The size of the cut",
      "KL(original || repaired) in nats per token of held-out calibration text. The largest cut within the limit is "
      "repaired again on the whole text.",
      {std::move(chart), CutsTable(report)}};
}

Section Trials(const RepairReport& report) {
  Section section{
      "The choice of the recipe",
      "Losses on held-out calibration text, in nats per token. Another recipe takes the place of the first, "
      "the paper's, if its gain is more than twice the standard error of the gain.",
      {TrialsTable(report)}};
  for (const std::string& why : report.untried) section.parts.push_back(PageText{"Not tried: " + why});
  return section;
}

Section Healed(const std::vector<FitReport>& healed) {
  const PageTable table{{"block", "projection", "lambda", "condition", "R² fitted", "R² held out"}, HealedRows(healed)};
  Section section{"Projections that were fitted again",
                  "R² is the share of what the corrected stream lacked there of the original one that the new weights "
                  "supply.",
                  {table}};
  for (const FitReport& fit : healed)
    if (!fit.warning.empty())
      section.parts.push_back(PageText{fmt::format("block {}, {}: {}", fit.name, fit.part, fit.warning)});
  return section;
}

Chart DriftChart(const DriftReport& drift, bool norm) {
  Chart chart;
  chart.name = norm ? "norm-by-depth" : "cosine-by-depth";
  chart.title = norm ? "Size of a token's stream (median RMS)" : "Cosine to the original's stream";
  chart.x_label = "layer that reads the stream";
  chart.whole_x = true;
  for (size_t p = 0; p < drift.models.size(); ++p) {
    Series series{kVariants[p], Mark::kLineAndDots, {}, {}, static_cast<int>(p)};
    for (const DriftPoint& point : drift.models[p]) {
      series.x.push_back(static_cast<double>(point.depth));
      series.y.push_back(norm ? point.norm : point.cosine);
    }
    chart.series.push_back(std::move(series));
  }
  return chart;
}

// Principal components, or t-SNE.
Chart ProjectionChart(const std::vector<std::vector<std::array<double, 2>>>& points, bool tsne) {
  Chart chart;
  chart.name = tsne ? "hidden-states-tsne" : "hidden-states";
  chart.title = tsne ? "Hidden states before the final norm, t-SNE" : "Hidden states before the final norm";
  chart.square = true;
  for (size_t p = 0; p < points.size(); ++p) {
    Series series{kVariants[p], Mark::kDots, {}, {}, static_cast<int>(p)};
    for (const auto& [x, y] : points[p]) {
      series.x.push_back(x);
      series.y.push_back(y);
    }
    chart.series.push_back(std::move(series));
  }
  return chart;
}

// The run's own criterion, whose scores are there, and others at the same amount that read weights alone: a page takes
// no further pass over the calibration text.
std::vector<Selection> ComparedScores(const RunReport& report) {
  const Selection& own = report.repair.report.selection;
  std::vector<PruneSpec> specs;
  for (const char* name : {"magnitude-l1", "magnitude-l2"})
    if (name != own.criterion)
      specs.push_back(ParsePrune(fmt::format("{}:{},unit={}", name, UnitsRemoved(own), Name(own.unit))));
  std::vector<Selection> selections = report.job.Select(specs, &report.progress);
  selections.insert(selections.begin(), own);
  return selections;
}

// Says how far pruning and the repair moved the perplexity and the size, and what the repair gains.
Section Verdict(const RunReport& report) {
  Section section{"Verdict", "", {}};
  const MeasuredVariant &original = report.measured.front(), &last = report.measured.back();
  for (size_t i = 1; i < report.measured.size(); ++i) {
    const MeasuredVariant& variant = report.measured[i];
    const auto change = [](double now, double before) { return fmt::format("{:+.1f}%", 100 * (now / before - 1)); };
    section.parts.push_back(
        PageText{fmt::format("{}: perplexity {} against the original, parameters {}, bytes per token {}.",
                             variant.label, change(variant.perplexity, original.perplexity),
                             change(static_cast<double>(variant.parameters), static_cast<double>(original.parameters)),
                             change(static_cast<double>(variant.bytes), static_cast<double>(original.bytes)))});
  }
  const double pruned = std::log(report.measured[1].perplexity / original.perplexity);
  if (report.measured.size() > 2 && pruned > 0)
    section.parts.push_back(
        PageText{fmt::format("{} returns {:.0f}% of what pruning cost in log perplexity.", last.label,
                             100 * std::log(report.measured[1].perplexity / last.perplexity) / pruned)});
  if (const std::optional<GainReport>& gain = report.repair.report.gain)
    section.parts.push_back(PageText{"When the model was repaired: " + GainText(*gain) + "."});
  return section;
}

}  // namespace

Page RunPage(const RunReport& report, std::vector<Section> more) {
  const RepairReport& found = report.repair.report;
  const Selection& selection = found.selection;
  const LanguageModel& model = report.repair.variants.front().model;
  const CalibrationReport& text = report.job.Text();
  Page page;
  page.title = fmt::format("{}: {} of {} {} {}", model.Name(), UnitsRemoved(selection),
                           UnitsOf(selection, model.Shape().layers), UnitsName(selection), RemovedBy(selection));
  page.summary = fmt::format("Layers {}. Calibrated on {}{}; perplexity ({}) on {}.", Names(selection.removed),
                             report.repair.corrected.MadeBy()->calibration->source,
                             text.source.empty() ? "" : fmt::format(" ({})", report.job.Accounting()),
                             report.comparison.protocol, report.heldout.Description());
  page.sections.push_back(Verdict(report));
  page.sections.push_back({"Comparison", "", {ComparisonTable(report.measured)}});
  if (!report.fidelity.empty()) page.sections.push_back(report.fidelity.ToSection());
  Section continued{"Text", fmt::format("“{}” …", report.comparison.prompt), {}};
  PageTable texts{{"model", "continuation"}, {}};
  for (const MeasuredVariant& v : report.measured) texts.rows.push_back({v.label, v.continuation});
  continued.parts.emplace_back(std::move(texts));
  page.sections.push_back(std::move(continued));
  if (!found.cuts.empty()) page.sections.push_back(Cuts(found));
  page.sections.push_back(Scores(ComparedScores(report)));
  if (!found.trials.empty()) page.sections.push_back(Trials(found));
  if (!found.sites.empty()) page.sections.push_back(Sites(found.sites));
  if (!found.healed.empty() && (!found.healing || found.healing->kept)) page.sections.push_back(Healed(found.healed));
  const DriftReport drift = MeasureDrift(std::vector{model, report.repair.pruned, report.repair.corrected},
                                         report.heldout, report.seed, report.resources, &report.progress);
  page.sections.push_back(
      {"Drift of the residual stream",
       "Held-out text through the three models; the blocks shown are those all of them run, and the final norm. The "
       "points are tokens, each scaled to one size, on the two directions in which they vary most.",
       {DriftChart(drift, false), DriftChart(drift, true), ProjectionChart(drift.components, false)}});
  page.sections.insert(page.sections.end(), more.begin(), more.end());
  page.sections.push_back({"Neighbours",
                           "The same tokens as in the drift, by t-SNE, which shows which of them are neighbours.",
                           {ProjectionChart(drift.neighbours, true)}});
  return page;
}

}  // namespace shiftrt
