// SPDX-License-Identifier: Apache-2.0
#include "tools/shift_output.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <nlohmann/json.hpp>

#include "models/part_json.h"
#include "tools/selection.h"
#include "tools/table.h"

namespace shiftrt {

namespace {

using Json = nlohmann::json;

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

void PrintHealed(const std::vector<SiteReport>& healed) {
  if (healed.empty()) return;
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

Json SelectionJson(const Selection& selection) {
  return {{"criterion", selection.criterion},
          {"scores", selection.scores},
          {"removed", selection.removed},
          {"window", selection.window},
          {"unit", Name(selection.unit)}};
}

Json SitesJson(const std::vector<SiteReport>& sites) {
  Json out = Json::array();
  for (const SiteReport& site : sites)
    out.push_back({{"layers", site.site.Parts()},
                   {"part", site.part},
                   {"lambda", site.lambda},
                   {"tokens", site.tokens},
                   {"rank", site.rank},
                   {"effective_rank", site.effective_rank},
                   {"scale", site.scale},
                   {"r2_fit", site.r2_fit},
                   {"r2_heldout", site.r2_heldout},
                   {"condition", site.condition},
                   {"singular_values", site.singular_values},
                   {"warning", site.warning}});
  return out;
}

Json TrialsJson(const ShiftResult& result) {
  Json out = Json::array();
  for (const Trial& trial : result.trials)
    out.push_back({{"correction", trial.recipe.correction},
                   {"calibration", Name(trial.recipe.mode)},
                   {"token_weight", Format(trial.recipe.weighting)},
                   {"factorization", Name(trial.recipe.factorization)},
                   {"lambda", Format(trial.recipe.lambda)},
                   {"metric", Name(trial.recipe.metric)},
                   {"recipe", Format(trial.recipe)},
                   {"adapter_parameters", trial.parameters},
                   {"tokens", trial.tokens},
                   {"loss", trial.loss},
                   {"gain", trial.gain},
                   {"gain_error", trial.error},
                   {"chosen", &trial == &result.trials[result.chosen_trial]}});
  return out;
}

Json GateJson(const std::vector<GateVerdict>& verdicts) {
  Json out = Json::array();
  for (const GateVerdict& v : verdicts)
    out.push_back({{"layers", v.parts}, {"with", v.with}, {"without", v.without}, {"kept", v.kept}});
  return out;
}

// What is not finite is null in JSON.
double Number(const Json& json, double null = std::numeric_limits<double>::quiet_NaN()) {
  return json.is_null() ? null : json.get<double>();
}

std::vector<double> Numbers(const Json& json) {
  std::vector<double> numbers;
  for (const Json& number : json) numbers.push_back(Number(number));
  return numbers;
}

Selection SelectionFromJson(const Json& json) {
  return {json.at("criterion").get<std::string>(), Numbers(json.at("scores")),
          json.at("removed").get<std::vector<BlockPart>>(), json.at("window").get<int64_t>(),
          ParseUnit(json.at("unit").get<std::string>())};
}

std::vector<SiteReport> SitesFromJson(const Json& json) {
  std::vector<SiteReport> sites;
  for (const Json& from : json) {
    SiteReport& site = sites.emplace_back();
    const auto parts = from.at("layers").get<std::vector<BlockPart>>();
    site.site = Site::Between(parts.at(0).begin(), parts.back().end());
    site.part = from.at("part").get<std::string>();
    site.lambda = Number(from.at("lambda"));
    site.tokens = from.at("tokens").get<int64_t>();
    site.rank = from.at("rank").get<int64_t>();
    site.effective_rank = Number(from.at("effective_rank"));
    site.scale = Number(from.value("scale", Json()));
    site.r2_fit = Number(from.at("r2_fit"));
    site.r2_heldout = Number(from.at("r2_heldout"));
    site.condition = Number(from.at("condition"));
    site.singular_values = Numbers(from.at("singular_values"));
    site.warning = from.at("warning").get<std::string>();
  }
  return sites;
}

void TrialsFromJson(const Json& json, ShiftResult& result) {
  for (const Json& from : json) {
    if (from.at("chosen").get<bool>()) result.chosen_trial = result.trials.size();
    Trial& trial = result.trials.emplace_back();
    const auto text = [&](const char* key) { return from.at(key).get<std::string>(); };
    trial.recipe = {ParseCalibrationMode(text("calibration")),
                    ParseTokenWeighting(text("token_weight")),
                    ParseFactorization(text("factorization")),
                    ParseLambda(text("lambda")),
                    ParseMetric(text("metric")),
                    text("correction")};
    trial.parameters = from.at("adapter_parameters").get<int64_t>();
    trial.tokens = from.at("tokens").get<int64_t>();
    trial.loss = Number(from.at("loss"));
    trial.gain = Number(from.at("gain"));
    trial.error = Number(from.at("gain_error"), std::numeric_limits<double>::infinity());
  }
}

std::vector<GateVerdict> GateFromJson(const Json& json) {
  std::vector<GateVerdict> verdicts;
  for (const Json& from : json)
    verdicts.push_back({from.at("layers").get<std::vector<BlockPart>>(), Number(from.at("with")),
                        Number(from.at("without")), from.at("kept").get<bool>()});
  return verdicts;
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
  PrintHealed(result.healed);
  PrintMergedRuns(result.merged_runs);
  PrintTrials(result);
  PrintGate(result.gate);
}

Json ShiftJson(const ShiftResult& result, const CalibrationSet& calibration) {
  return {{"selection", SelectionJson(result.selection)},
          {"calibration",
           {{"source", result.calibration},
            {"hash", calibration.hash},
            {"tokens", result.sites.empty() ? calibration.fit_tokens : result.sites.front().tokens},
            {"heldout_tokens", calibration.heldout_tokens}}},
          {"sites", SitesJson(result.sites)},
          {"healed", SitesJson(result.healed)},
          {"merged_runs", SitesJson(result.merged_runs)},
          {"trials", TrialsJson(result)},
          {"untried", result.untried},
          {"gate", GateJson(result.gate)},
          {"seconds",
           {{"select", result.seconds.select},
            {"calibrate", result.seconds.calibrate},
            {"solve", result.seconds.solve},
            {"factorize", result.seconds.factorize}}}};
}

ShiftResult ShiftFromJson(const Json& json) {
  ShiftResult result;
  result.selection = SelectionFromJson(json.at("selection"));
  result.calibration = json.at("calibration").at("source").get<std::string>();
  result.sites = SitesFromJson(json.at("sites"));
  result.healed = SitesFromJson(json.at("healed"));
  result.merged_runs = SitesFromJson(json.at("merged_runs"));
  TrialsFromJson(json.at("trials"), result);
  result.untried = json.at("untried").get<std::vector<std::string>>();
  result.gate = GateFromJson(json.at("gate"));
  const Json& seconds = json.at("seconds");
  const auto second = [&](const char* step) { return seconds.at(step).get<double>(); };
  result.seconds = {second("select"), second("calibrate"), second("solve"), second("factorize")};
  return result;
}

}  // namespace shiftrt
