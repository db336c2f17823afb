// SPDX-License-Identifier: Apache-2.0
#include "shift/setting.h"

#include "runtime/check.h"
#include "shift/options.h"

namespace shiftrt {

const std::vector<SettingRow>& Settings() {
  using enum Setting;
  static const Recipe defaults;
  static const char* const kOneAdapter = "it does not make one adapter per removed block";
  static const char* const kNoRank = "it has no adapters whose rank can be chosen";
  static const char* const kFileSums = "files have sums for adapters that are fitted independently, one per layer";
  static const std::vector<SettingRow> table = {
      {kHalves, "", "removing half blocks", "it is defined for whole blocks",
       [](const Recipe& r) { return r.prune.halves(); }},
      {kSplit, "", "a split model", "it needs the whole model in one process"},
      {kUpdateNorms, "", "a model that norms or scales the updates of its blocks",
       "nothing can be folded into a projection whose output is normed or scaled before it is added"},
      {kMixture, "", "a model with mixtures of experts",
       "the experts of a mixture have no one projection that could be fitted or folded into"},
      {kMode, "mode", "calibration mode sequential or drift",
       "the mode is chosen for adapters that are fitted by a given recipe",
       [](const Recipe& r) { return r.mode == Calibration::kSequential || r.mode == Calibration::kDrift; },
       [](Recipe& r) { r.mode = Calibration::kIndependent; }},
      {kRank, "rank", "a rank", kNoRank, nullptr, [](Recipe& r) { r.rank = RankSpec::Full(); }},
      {kFullRank, "rank", "a full rank", kNoRank,
       [](const Recipe& r) { return CorrectionOf(r).has_rank() && r.rank.kind == RankSpec::Kind::kFull; }},
      {kBudget, "rank", "a budget of parameters", "a budget is spread over low-rank adapters that are fitted together",
       [](const Recipe& r) { return r.rank.kind == RankSpec::Kind::kBudget; }},
      {kFactorization, "factorization", "a factorization", "it has no adapters whose factorization can be chosen",
       nullptr, [](Recipe& r) { r.factorization = defaults.factorization; }},
      {kLambda, "lambda", "a lambda", "it solves no ridge regression whose lambda can be chosen", nullptr,
       [](Recipe& r) { r.lambda = defaults.lambda; }},
      {kPenalizedBias, "penalize_bias", "a penalised bias", "its fit has no bias that can be penalised",
       [](const Recipe& r) { return r.penalize_bias; }, [](Recipe& r) { r.penalize_bias = false; }},
      {kWeights, "weighting", "token weights", "its fit has no token weights that can be chosen",
       [](const Recipe& r) { return !r.weighting.uniform(); }, [](Recipe& r) { r.weighting = defaults.weighting; }},
      {kSpan, "span", "a span", kOneAdapter, [](const Recipe& r) { return r.span; }},
      {kMerge, "merge", "merging", kOneAdapter, [](const Recipe& r) { return r.merge != Merge::kOff; }},
      {kHeal, "heal", "healing", "it divides the stream after a removed block, and healing aims at the original stream",
       [](const Recipe& r) { return r.heal != Heal::kOff; }, nullptr, true},
      {kGate, "gate", "the gate", "it has no corrections that can be taken out one by one",
       [](const Recipe& r) { return r.gate; }, nullptr, true},
      {kLoadedSums, "gram.load", "loading sums", kFileSums, [](const Recipe& r) { return !r.gram.load.empty(); }},
      {kSavedSums, "gram.save", "saving sums", kFileSums, [](const Recipe& r) { return !r.gram.save.empty(); }},
      {kAllSums, "gram.all_layers", "saving the sums of all layers", kFileSums,
       [](const Recipe& r) { return r.gram.all_layers; }},
      {kQuantise, "quantize", "rounding to fewer bits", "", [](const Recipe& r) { return r.quantise.any(); }},
      {kMaxDivergence, "prune", "an amount by divergence (max-kl)", "",
       [](const Recipe& r) { return r.prune.max_divergence > 0; }, nullptr, true},
  };
  return table;
}

const SettingRow& RowOf(Setting setting) { return Settings()[static_cast<size_t>(setting)]; }

const std::vector<SettingConflict>& SettingConflicts() {
  using enum Setting;
  static const char* const kSingle = "files have the sums of single blocks";
  static const char* const kOnePass = "files have the sums of all sites from one pass";
  static const char* const kWhole = "it needs the whole model in each process";
  static const char* const kStays = "sums stay in the process that holds the block";
  static const std::vector<SettingConflict> table = {
      {kLoadedSums, kMode, kOnePass},
      {kSavedSums, kMode, kOnePass},
      {kBudget, kMode, "the budget is spread over adapters that are fitted from one pass"},
      {kMode, kSplit, "no process has the streams of the whole model"},
      {kAllSums, kHalves, "the sums of halves do not follow from those of whole blocks"},
      {kSpan, kMerge, "it leaves nothing to merge"},
      {kLoadedSums, kSpan, kSingle},
      {kSavedSums, kSpan, kSingle},
      {kLoadedSums, kSavedSums, "sums are either loaded, or collected and saved"},
      {kHeal, kUpdateNorms, RowOf(kUpdateNorms).why.data()},
      {kHeal, kMixture, RowOf(kMixture).why.data()},
      {kHeal, kSplit, kWhole},
      {kGate, kSplit, kWhole},
      {kQuantise, kSplit, kWhole},
      {kGate, kQuantise, "it would take rounded blocks for corrections, and try the model without each of them"},
      {kMaxDivergence, kSplit, kWhole},
      {kMaxDivergence, kLoadedSums, "it fits cuts of several sizes to the text"},
      {kMaxDivergence, kSavedSums, "it fits cuts of several sizes to the text"},
      {kLoadedSums, kSplit, kStays},
      {kSavedSums, kSplit, kStays},
  };
  return table;
}

void RefuseSetting(const SettingRow& row, const char* field, const std::string& subject,
                   const std::vector<std::string_view>& accepting) {
  FailUsage(Field(row.field.empty() ? field : std::string(row.field)), "{} does not go with {}: {}; these do: {}",
            subject, row.name, row.why, fmt::join(accepting, ", "));
}

}  // namespace shiftrt
