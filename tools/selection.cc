// SPDX-License-Identifier: Apache-2.0
#include "tools/selection.h"

#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cmath>
#include <iterator>
#include <nlohmann/json.hpp>
#include <string_view>
#include <vector>

#include "api/impl.h"
#include "export/formats.h"
#include "models/as_original.h"
#include "runtime/check.h"
#include "shift/criteria/prune_spec.h"
#include "shift/options.h"
#include "types/part_json.h"

namespace shiftrt {

std::string CriteriaHelp() {
  std::string text;
  for (const Criterion& criterion : Criteria()) text += fmt::format("\n  {:<20}{}", criterion.name, criterion.summary);
  return text;
}

std::string CorrectionsHelp() {
  std::string text;
  for (const Correction& correction : Corrections())
    text += fmt::format("\n{:<18}{}", correction.name, correction.summary);
  return text;
}

std::string MixturesHelp() {
  std::string help;
  for (const Choice& mixture : MixtureNames()) help += fmt::format("\n  {:<8} {}", mixture.name, mixture.summary);
  return help;
}

namespace {

// In the order of Setting.
constexpr const char* kSettingFlags[] = {"unit=half in --prune",
                                         "--split N",
                                         "a model with normed or scaled updates",
                                         "a model with mixtures of experts",
                                         "--calibration-mode sequential, drift",
                                         "--lra RANK",
                                         "--lra full",
                                         "--lra budget:N",
                                         "--factorize",
                                         "--lambda",
                                         "--penalize-bias",
                                         "--token-weight",
                                         "--span",
                                         "--merge",
                                         "--heal",
                                         "--gate",
                                         "--load-gram",
                                         "--save-gram",
                                         "--gram-layers all",
                                         "--quantize MIXTURE",
                                         "max-kl=D in --prune"};
static_assert(std::size(kSettingFlags) == static_cast<size_t>(Setting::kCount));

// "all", "all but X, Y", or "X, Y"; the shorter of the last two.
template <typename Rows, typename Accepts>
std::string Accepting(const Rows& rows, const Accepts& accepts) {
  std::vector<std::string_view> with, without;
  for (const auto& row : rows) (accepts(row) ? with : without).emplace_back(row.name);
  if (without.empty()) return "all";
  return without.size() < with.size() ? fmt::format("all but {}", fmt::join(without, ", "))
                                      : fmt::format("{}", fmt::join(with, ", "));
}

}  // namespace

std::string OptionsTable() {
  std::string text;
  for (const SettingRow& row : Settings()) {
    const Setting setting = row.setting;
    const auto accepts = [&](const auto& one) { return one.accepts.has(setting); };
    text += fmt::format("{}\n    corrections: {}{}\n", kSettingFlags[static_cast<size_t>(setting)],
                        Accepting(Corrections(), accepts), kTakenByHealing.has(setting) ? "; with --heal all" : "");
    if (std::ranges::any_of(Criteria(), accepts))
      text += fmt::format("    criteria: {}\n", Accepting(Criteria(), accepts));
    std::vector<const char*> without;
    for (const auto& [first, second, why] : SettingConflicts())
      if (first == setting || second == setting)
        without.push_back(kSettingFlags[static_cast<size_t>(first == setting ? second : first)]);
    if (!without.empty()) text += fmt::format("    not with: {}\n", fmt::join(without, "; "));
  }
  for (const ExportFormat& format : ExportFormats())
    text += fmt::format(
        "--export {}\n    corrections: {}\n", format.name, Accepting(Corrections(), [&](const Correction& one) {
          return (format.adapters || !one.adapters() || (format.normed_adapters && one.normed_adapters())) &&
                 (format.own_tensors || !one.changes_blocks());
        }));
  return text;
}

void AddYes(CLI::App& app, bool& yes) {
  app.add_flag("--yes", yes, "remove the layers even if the amount of --prune is more than half of them");
}

void CheckRemoval(const LanguageModel& model, const PruneSpec& prune, bool yes) {
  if (!prune.layers.empty()) {
    RemovalCount(prune, *model.impl().model.weights);
    return;
  }
  const Model original = AsOriginal(model.impl().model);  // a model that is pruned already has fewer blocks
  const Weights& weights = *original.weights;
  const int64_t count = RemovalCount(prune, weights);
  const int64_t units = weights.config.layers * (prune.halves() ? 2 : 1);
  if (yes || 2 * count <= units) return;
  std::string meant;
  if (prune.count > 0 && prune.count <= 50) {  // a percentage that was written as a number of layers
    PruneSpec share = prune;
    share.count = 0;
    share.ratio = static_cast<double>(prune.count) / 100;
    meant = fmt::format("did you mean {}? ", Format(share));
  }
  FailUsage(Field("prune"), "{} removes {} of {} {}, which is more than half; {}--yes removes them", Format(prune),
            count, units, prune.halves() ? "half blocks" : "blocks", meant);
}

std::string ScoreText(const Selection& selection, int64_t unit) {
  const bool scored = unit < static_cast<int64_t>(selection.scores.size()) && std::isfinite(selection.scores[unit]);
  return scored ? fmt::format("{:.5g}", selection.scores[unit]) : "";
}

int64_t UnitsOf(const Selection& selection, int64_t layers) { return UnitsOf(selection.unit, layers); }

bool Removes(const Selection& selection, const BlockPart& part) {
  return std::any_of(selection.removed.begin(), selection.removed.end(), [&](const BlockPart& removed) {
    return removed.begin() <= part.begin() && part.end() <= removed.end();
  });
}

double Overlap(const Selection& a, const Selection& b) {
  int64_t places = 0;
  for (const BlockPart& x : a.removed)
    for (const BlockPart& y : b.removed)
      places += std::max<int64_t>(0, std::min(x.end(), y.end()) - std::max(x.begin(), y.begin()));
  return static_cast<double>(places) / 2;
}

nlohmann::json SelectionsJson(const std::vector<Selection>& selections) {
  nlohmann::json json = nlohmann::json::array();
  for (const Selection& s : selections) {
    std::vector<double> overlap;
    overlap.reserve(selections.size());
    for (const Selection& other : selections) overlap.push_back(Overlap(s, other));
    json.push_back({{"criterion", s.criterion},
                    {"scores", s.scores},
                    {"removed", s.removed},
                    {"window", s.window},
                    {"unit", Name(s.unit)},
                    {"overlap", overlap}});
  }
  return json;
}

std::string RemovedBy(const Selection& selection) {
  return selection.criterion == "layers" ? "removed, given as a list" : "removed by " + selection.criterion;
}

const char* UnitsName(const Selection& selection) { return selection.unit == Unit::kHalf ? "half blocks" : "layers"; }

int64_t UnitsRemoved(const Selection& selection) {
  int64_t halves = 0;
  for (const BlockPart& part : selection.removed) halves += part.end() - part.begin();
  return selection.unit == Unit::kHalf ? halves : halves / 2;
}

}  // namespace shiftrt
