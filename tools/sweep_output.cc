// SPDX-License-Identifier: Apache-2.0
#include "tools/sweep_output.h"

#include <algorithm>
#include <cmath>
#include <map>
#include <set>

#include "runtime/check.h"
#include "tools/paper/paper.h"

namespace shiftrt {

namespace {

// A setting that can vary: as text and, if it is a number, as one.
struct TableAxis {
  const char* name;
  const char* label;
  std::string (*text)(const SweepRow&);
  double (*number)(const SweepRow&, int64_t hidden);  // null: has none
  bool log;
};

std::string OrNone(bool has, std::string text) { return has ? std::move(text) : "-"; }

// The text of a field that the correction reads.
std::string IfRead(const SweepRow& row, const char* field, std::string text) {
  return OrNone(Reads(row.recipe, field), std::move(text));
}

std::string RankText(const SweepRow& row) { return IfRead(row, "rank", "rank " + Format(row.recipe.rank)); }

std::string ModeText(const SweepRow& row) { return IfRead(row, "mode", Name(row.recipe.mode)); }

std::string WeightText(const SweepRow& row) {
  return IfRead(row, "weighting", "weights " + Format(row.recipe.weighting));
}

std::string FactorizationText(const SweepRow& row) {
  return IfRead(row, "factorization", Name(row.recipe.factorization));
}

std::string LambdaText(const SweepRow& row) { return IfRead(row, "lambda", "lambda " + Format(row.recipe.lambda)); }

double RankNumber(const SweepRow& row, int64_t hidden) {
  const RankSpec& rank = row.recipe.rank;
  return !Reads(row.recipe, "rank")            ? std::nan("")
         : rank.kind == RankSpec::Kind::kFull  ? static_cast<double>(hidden)
         : rank.kind == RankSpec::Kind::kFixed ? static_cast<double>(rank.rank)
                                               : std::nan("");
}

std::string UnitText(const SweepRow& r) { return r.recipe.prune.halves() ? "half" : "block"; }
// A half counts as half a block.
double BlocksRemoved(const SweepRow& r) {
  int64_t halves = 0;
  for (const BlockPart& part : r.removed) halves += part.end() - part.begin();
  return static_cast<double>(halves) / 2;
}
std::string RemovedText(const SweepRow& r) {
  return r.recipe.prune.halves() ? fmt::format("{:g} half blocks", 2 * BlocksRemoved(r))
                                 : fmt::format("{:g} layers", BlocksRemoved(r));
}

std::string PrunedSeries(const SweepRow& r) {
  return r.recipe.prune.criterion + (r.recipe.prune.halves() ? " (halves)" : "");
}

double LambdaNumber(const SweepRow& row, int64_t) {
  const LambdaSpec& lambda = row.recipe.lambda;
  const bool fixed = lambda.kind == LambdaSpec::Kind::kAbsolute || lambda.kind == LambdaSpec::Kind::kRelative;
  return fixed ? lambda.value : std::nan("");
}

const std::vector<TableAxis>& Axes() {
  static const std::vector<TableAxis> axes = {
      {"criterion", "criterion", [](const SweepRow& r) { return r.recipe.prune.criterion; }, nullptr, false},
      {"unit", "unit", UnitText, nullptr, false},
      {"removed", "layers removed", RemovedText, [](const SweepRow& r, int64_t) { return BlocksRemoved(r); }, false},
      {"correction", "correction", [](const SweepRow& r) { return r.recipe.correction; }, nullptr, false},
      {"healed", "healed", [](const SweepRow& r) { return std::string(Name(r.recipe.heal)); }, nullptr, false},
      {"calibration", "calibration", ModeText, nullptr, false},
      {"token weights", "token weights", WeightText, nullptr, false},
      {"samples", "calibration samples", [](const SweepRow& r) { return fmt::format("{} samples", r.samples); },
       [](const SweepRow& r, int64_t) { return static_cast<double>(r.samples); }, true},
      {"lambda", "lambda", LambdaText, LambdaNumber, true},
      {"factorization", "factorization", FactorizationText, nullptr, false},
      {"rank", "rank", RankText, RankNumber, true},
  };
  return axes;
}

bool Varies(const TableAxis& axis, const std::vector<SweepSummary>& summaries) {
  std::set<std::string> values;
  for (const SweepSummary& summary : summaries) values.insert(axis.text(summary.first));
  return values.size() > 1;
}

bool VariesAsNumber(const TableAxis& axis, const std::vector<SweepSummary>& summaries, int64_t hidden) {
  std::set<double> values;
  if (axis.number != nullptr)
    for (const SweepSummary& summary : summaries)
      if (const double x = axis.number(summary.first, hidden); !std::isnan(x)) values.insert(x);
  return values.size() > 1;
}

// A score that charts draw for each setting.
struct Measured {
  const char *name, *title, *unit;
  double (*of)(const Quality&);
};
constexpr Measured kPerplexity = {"perplexity", "Held-out perplexity", "perplexity",
                                  [](const Quality& quality) { return quality.perplexity; }};
constexpr Measured kAccuracy = {"accuracy", "Zero-shot accuracy", "percent",
                                [](const Quality& quality) { return 100 * quality.accuracy; }};

bool HasAccuracy(const std::vector<SweepSummary>& summaries) {
  return !std::isnan(summaries.front().original.accuracy);
}

// A series for each choice of what else varies; settings without that number are left to the table.
Chart ByAxis(const TableAxis& axis, const Measured& measure, const std::vector<SweepSummary>& summaries,
             int64_t hidden) {
  Chart chart;
  chart.name = fmt::format("{}-by-{}", measure.name, axis.name);
  chart.title = fmt::format("{} by {}", measure.title, axis.label);
  chart.x_label = axis.label;
  chart.y_label = measure.unit;
  chart.log_x = axis.log;
  chart.whole_x = true;
  std::map<std::string, std::map<double, double>> pruned, corrected;  // series -> x -> y
  double low = measure.of(summaries.front().original), high = low;
  for (const SweepSummary& summary : summaries) {
    std::vector<std::string> others;
    for (const TableAxis& other : Axes())
      if (&other != &axis && Varies(other, summaries)) others.push_back(other.text(summary.first));
    const double x = axis.number(summary.first, hidden);
    if (std::isnan(x)) continue;
    const double repaired = measure.of(summary.corrected), bare = measure.of(summary.pruned);
    corrected[fmt::format("{}", fmt::join(others, ", "))][x] = repaired;
    // Without adapters nothing but the layers removed matters.
    if (axis.name == std::string("removed")) pruned[PrunedSeries(summary.first)][x] = bare;
    low = std::min({low, repaired, bare});
    high = std::max({high, repaired, bare});
  }
  chart.log_y = high > 5 * low;
  const auto add = [&](const std::string& name, const std::map<double, double>& points, int color) {
    Series series{name, Mark::kLineAndDots, {}, {}, color};
    for (const auto& [x, y] : points) {
      series.x.push_back(x);
      series.y.push_back(y);
    }
    chart.series.push_back(std::move(series));
  };
  int color = 0;
  for (const auto& [name, points] : corrected) add(name.empty() ? "corrected" : name, points, color++);
  for (const auto& [name, points] : pruned) add(pruned.size() == 1 ? "pruned" : "pruned, " + name, points, color++);
  return chart;
}

// Draws the settings side by side. It is for sweeps in which no axis that varies is a number.
Chart BySetting(const Measured& measure, const std::vector<SweepSummary>& summaries) {
  Chart chart;
  chart.name = measure.name;
  chart.title = measure.title;
  chart.y_label = measure.unit;
  Series original{"original", Mark::kLine, {}, {}, 0}, pruned{"pruned", Mark::kDots, {}, {}, 1},
      corrected{"corrected", Mark::kDots, {}, {}, 2};
  for (const SweepSummary& summary : summaries) {
    std::vector<std::string> names;
    for (const TableAxis& axis : Axes())
      if (Varies(axis, summaries) || axis.name == std::string("criterion")) names.push_back(axis.text(summary.first));
    const auto x = static_cast<double>(chart.x_names.size());
    chart.x_names.push_back(fmt::format("{}", fmt::join(names, ", ")));
    for (Series* series : {&original, &pruned, &corrected}) series->x.push_back(x);
    original.y.push_back(measure.of(summary.original));
    pruned.y.push_back(measure.of(summary.pruned));
    corrected.y.push_back(measure.of(summary.corrected));
  }
  chart.log_y = &measure == &kPerplexity;
  chart.series = {original, pruned, corrected};
  return chart;
}

std::vector<PagePart> Charts(const Measured& measure, const std::vector<SweepSummary>& summaries, int64_t hidden) {
  std::vector<PagePart> charts;
  for (const TableAxis& axis : Axes())
    if (VariesAsNumber(axis, summaries, hidden)) charts.push_back(ByAxis(axis, measure, summaries, hidden));
  if (charts.empty()) charts.push_back(BySetting(measure, summaries));
  return charts;
}

std::string WithDeviation(double mean, double deviation, int64_t seeds) {
  return seeds > 1 ? fmt::format("{:.2f} ± {:.2f}", mean, deviation) : fmt::format("{:.2f}", mean);
}

std::string Known(double value) { return OrNone(!std::isnan(value), fmt::format("{:.2f}", value)); }

}  // namespace

std::string SweepCsv(const std::vector<SweepRow>& rows) {
  std::string csv =
      "prune,removed,seed,samples,tokens,correction,calibration,token_weight,lambda,factorization,rank,heal,"
      "adapter_parameters,r2_fit,r2_heldout,"
      "perplexity_original,perplexity_pruned,perplexity_corrected,"
      "accuracy_original,accuracy_pruned,accuracy_corrected,chosen\n";
  for (const SweepRow& r : rows)
    csv += fmt::format(
        "\"{}\",{},{},{},{},{},{},\"{}\",{},{},{},{},{},{:.6g},{:.6g},{:.6g},{:.6g},{:.6g},{:.6g},{:.6g},{:.6g},\"{}"
        "\"\n",
        Format(r.recipe.prune), Names(r.removed, " "), r.recipe.seed, r.samples, r.tokens, r.recipe.correction,
        Name(r.recipe.mode), Format(r.recipe.weighting), Format(r.recipe.lambda), Name(r.recipe.factorization),
        Format(r.recipe.rank), Name(r.recipe.heal), r.parameters, r.r2_fit, r.r2_heldout, r.original.perplexity,
        r.pruned.perplexity, r.corrected.perplexity, r.original.accuracy, r.pruned.accuracy, r.corrected.accuracy,
        r.chosen);
  return csv;
}

nlohmann::json SweepJson(const std::vector<SweepRow>& rows) {
  nlohmann::json out = nlohmann::json::array();
  const auto both = [](const SweepRow& r, double Quality::*value) {
    return nlohmann::json{
        {"original", r.original.*value}, {"pruned", r.pruned.*value}, {"corrected", r.corrected.*value}};
  };
  for (const SweepRow& r : rows) {
    nlohmann::json removed = nlohmann::json::array();
    for (const BlockPart& part : r.removed)
      removed.push_back(part.halves == Halves::kBoth ? nlohmann::json(part.layer) : nlohmann::json(Name(part)));
    out.push_back({{"prune", Format(r.recipe.prune)},
                   {"criterion", r.recipe.prune.criterion},
                   {"unit", UnitText(r)},
                   {"removed", removed},
                   {"seed", r.recipe.seed},
                   {"samples", r.samples},
                   {"tokens", r.tokens},
                   {"correction", r.recipe.correction},
                   {"heal", Name(r.recipe.heal)},
                   {"calibration", Name(r.recipe.mode)},
                   {"token_weight", Format(r.recipe.weighting)},
                   {"lambda", Format(r.recipe.lambda)},
                   {"factorization", Name(r.recipe.factorization)},
                   {"rank", Format(r.recipe.rank)},
                   {"adapter_parameters", r.parameters},
                   {"chosen", r.chosen},
                   {"r2_fit", r.r2_fit},
                   {"r2_heldout", r.r2_heldout},
                   {"perplexity", both(r, &Quality::perplexity)},
                   {"accuracy", both(r, &Quality::accuracy)},  // NaN becomes null
                   {"accuracy_error", both(r, &Quality::accuracy_error)}});
  }
  return out;
}

PageTable SweepTable(const std::vector<SweepRow>& rows, const PaperTable& paper) {
  const std::vector<SweepSummary> summaries = Summarize(rows);
  std::vector<const TableAxis*> shown;
  for (const TableAxis& axis : Axes())
    if (axis.name == std::string("criterion") || Varies(axis, summaries)) shown.push_back(&axis);
  const bool chooses = std::any_of(summaries.begin(), summaries.end(), [](const auto& s) { return !s.chosen.empty(); });
  PageTable table;
  for (const TableAxis* axis : shown) table.header.push_back(axis->name);
  if (chooses) table.header.push_back("chosen");
  table.header.insert(table.header.end(), {"R2 held out", "pruned", "corrected", "gain"});
  if (HasAccuracy(summaries)) table.header.insert(table.header.end(), {"accuracy: pruned", "corrected"});
  if (!paper.model.empty())
    table.header.insert(table.header.end(), {"paper: pruned", "corrected", "accuracy: pruned", "corrected"});
  for (const SweepSummary& s : summaries) {
    std::vector<std::string>& line = table.rows.emplace_back();
    for (const TableAxis* axis : shown) line.push_back(axis->text(s.first));
    if (chooses) line.push_back(OrNone(!s.chosen.empty(), s.chosen));
    line.push_back(OrNone(!std::isnan(s.r2_heldout), fmt::format("{:.3f}", s.r2_heldout)));
    const auto add = [&](const Measured& measure, const Quality& mean, const Quality& deviation) {
      line.push_back(WithDeviation(measure.of(mean), measure.of(deviation), s.seeds));
    };
    add(kPerplexity, s.pruned, s.pruned_deviation);
    add(kPerplexity, s.corrected, s.corrected_deviation);
    line.push_back(fmt::format("{:+.2f}", s.pruned.perplexity - s.corrected.perplexity));
    if (HasAccuracy(summaries)) {
      add(kAccuracy, s.pruned, s.pruned_deviation);
      add(kAccuracy, s.corrected, s.corrected_deviation);
    }
    if (paper.model.empty()) continue;
    const PaperResult said =
        PaperNumbers(paper, s.first).value_or(PaperResult{std::nan(""), std::nan(""), std::nan(""), std::nan("")});
    for (double value :
         {said.pruned_perplexity, said.corrected_perplexity, said.pruned_accuracy, said.corrected_accuracy})
      line.push_back(Known(value));
  }
  return table;
}

std::string SweepMarkdown(const std::vector<SweepRow>& rows, const PaperTable& paper) {
  const PageTable table = SweepTable(rows, paper);
  const auto line = [](const std::vector<std::string>& cells) {
    return fmt::format("| {} |\n", fmt::join(cells, " | "));
  };
  std::string text = line(table.header);
  text += fmt::format("|{}\n", fmt::join(std::vector<const char*>(table.header.size(), "---|"), ""));
  for (const std::vector<std::string>& row : table.rows) text += line(row);
  return text;
}

Page SweepPage(const std::string& title, const std::string& summary, const std::vector<SweepRow>& rows,
               const PaperTable& paper, int64_t hidden) {
  const std::vector<SweepSummary> summaries = Summarize(rows);
  Page page{title, summary, {}};
  page.sections.push_back(
      {"Perplexity", "Held-out text; means over seeds. Lower is better.", Charts(kPerplexity, summaries, hidden)});
  if (HasAccuracy(summaries))
    page.sections.push_back({"Accuracy", "Mean of zero-shot suites; means over seeds. Higher is better.",
                             Charts(kAccuracy, summaries, hidden)});
  page.sections.push_back(
      {"All settings", "Gain: perplexity before the correction less after it.", {SweepTable(rows, paper)}});
  return page;
}

}  // namespace shiftrt
