// SPDX-License-Identifier: Apache-2.0
// The words of a recipe's settings. Those that name a criterion, a correction or a mixture of types are read in shift/,
// which has the tables of these.
#include "include/shiftrt/recipe.h"

#include <algorithm>
#include <cmath>
#include <string_view>

#include "runtime/check.h"
#include "runtime/parse.h"
#include "runtime/words.h"

namespace shiftrt {

namespace {

constexpr Words<Factorization, 3> kFactorizations = {{"svd", "svd-refit", "rrr"}};
constexpr Words<Calibration, 4> kCalibrations = {{"auto", "independent", "sequential", "drift"}};
constexpr Words<Heal, 3> kHeals = {{"off", "down", "all"}};
constexpr Words<Merge, 3> kMerges = {{"off", "full", "lowrank"}};

bool ParsePositive(std::string_view text, int64_t* value) {
  constexpr int64_t kMost = 1'000'000'000;
  return ParseNumber(text, value) && *value >= 1 && *value <= kMost;
}

}  // namespace

bool PruneSpec::halves() const {
  return unit == Unit::kHalf ||
         std::any_of(layers.begin(), layers.end(), [](const BlockPart& part) { return part.halves != Halves::kBoth; });
}

RankSpec ParseRank(const std::string& text) {
  constexpr std::string_view kEnergy = "energy:", kBudget = "budget:";
  const std::string_view view = text;
  if (view == "full") return RankSpec::Full();
  RankSpec spec;
  if (view.starts_with(kEnergy)) {
    spec.kind = RankSpec::Kind::kEnergy;
    if (ParseNumber(view.substr(kEnergy.size()), &spec.energy) && spec.energy > 0 && spec.energy <= 1) return spec;
    FailUsage(Field("rank"), "{}: the share of energy to keep is a number above 0 and at most 1", text);
  }
  if (view.starts_with(kBudget)) {
    spec.kind = RankSpec::Kind::kBudget;
    if (ParseParameters(view.substr(kBudget.size()), &spec.parameters)) return spec;
    FailUsage(Field("rank"), "{}: a budget is a number of parameters (500k, 4M)", text);
  }
  if (!ParseNumber(view, &spec.rank) || spec.rank < 1)
    FailUsage(Field("rank"), "{}: expected a rank of at least 1, full, energy:SHARE or budget:PARAMETERS", text);
  return spec;
}

std::string Format(const RankSpec& spec) {
  switch (spec.kind) {
    case RankSpec::Kind::kFull: return "full";
    case RankSpec::Kind::kFixed: return std::to_string(spec.rank);
    case RankSpec::Kind::kEnergy: return fmt::format("energy:{}", spec.energy);
    case RankSpec::Kind::kBudget: return fmt::format("budget:{}", spec.parameters);
  }
  return "?";
}

LambdaSpec ParseLambda(const std::string& text) {
  if (text == "gcv") return {};
  if (text == "holdout") return {LambdaSpec::Kind::kHoldout, 0};
  std::string_view number = text;
  LambdaSpec spec{LambdaSpec::Kind::kAbsolute, 0};
  if (number.ends_with("rel")) {
    spec.kind = LambdaSpec::Kind::kRelative;
    number.remove_suffix(3);
  }
  if (!ParseNumber(number, &spec.value) || !std::isfinite(spec.value) || spec.value < 0)
    FailUsage(Field("lambda"),
              "\"{}\": expected a number not below 0 (1e-2), one relative to trace(H'H)/d (1e-4rel), gcv or "
              "holdout",
              text);
  return spec;
}

std::string Format(const LambdaSpec& spec) {
  switch (spec.kind) {
    case LambdaSpec::Kind::kAbsolute: return fmt::format("{}", spec.value);
    case LambdaSpec::Kind::kRelative: return fmt::format("{}rel", spec.value);
    case LambdaSpec::Kind::kGcv: return "gcv";
    case LambdaSpec::Kind::kHoldout: return "holdout";
  }
  return "?";
}

Factorization ParseFactorization(const std::string& text) {
  return kFactorizations.Parse(text, "factorization", "unknown factorization \"{}\"");
}

const char* Name(Factorization factorization) { return kFactorizations.Of(factorization); }

Calibration ParseCalibrationMode(const std::string& text) {
  return kCalibrations.Parse(text, "mode", "unknown calibration \"{}\"");
}

const char* Name(Calibration mode) { return kCalibrations.Of(mode); }

TokenWeights ParseTokenWeights(const std::string& text) {
  constexpr std::string_view kFirst = "first:", kMassive = "massive:";
  TokenWeights weighting;
  if (text == "none") return weighting;
  std::string_view rest = text;
  while (true) {
    const std::string_view part = rest.substr(0, rest.find(','));
    const bool first = part.starts_with(kFirst), massive = part.starts_with(kMassive);
    double& weight = first ? weighting.first : weighting.massive;
    const bool good = (first || massive) &&
                      ParseNumber(part.substr(first ? kFirst.size() : kMassive.size()), &weight) &&
                      std::isfinite(weight) && weight >= 0;
    if (part == "norm") {
      weighting.norm = true;
    } else if (!good) {
      FailUsage(Field("weighting"),
                "{}: \"{}\" is none of none, norm, first:W and massive:W with a weight of at least 0", text, part);
    }
    if (part.size() == rest.size()) return weighting;
    rest.remove_prefix(part.size() + 1);
  }
}

std::string Format(const TokenWeights& weighting) {
  if (weighting.uniform()) return "none";
  std::vector<std::string> parts;
  if (weighting.norm) parts.emplace_back("norm");
  if (weighting.first != 1) parts.push_back(fmt::format("first:{}", weighting.first));
  if (weighting.massive != 1) parts.push_back(fmt::format("massive:{}", weighting.massive));
  return fmt::format("{}", fmt::join(parts, ","));
}

Heal ParseHeal(const std::string& text) { return kHeals.Parse(text, "heal", "unknown way to heal \"{}\""); }

const char* Name(Heal heal) { return kHeals.Of(heal); }

Merge ParseMerge(const std::string& text) { return kMerges.Parse(text, "merge", "unknown merge \"{}\""); }

const char* Name(Merge merge) { return kMerges.Of(merge); }

CalibrationSpec ParseCalibration(const std::string& text) {
  CalibrationSpec spec;
  const size_t colon = text.rfind(':');
  const std::string_view size = colon == text.npos ? std::string_view() : std::string_view(text).substr(colon + 1);
  if (colon == text.npos || size.find_first_of("/.") != size.npos) {
    spec.source = text;  // a colon before a '/' or '.' belongs to the name
  } else {
    spec.source = text.substr(0, colon);
    const size_t times = size.find('x');
    if (!ParsePositive(size.substr(0, times), &spec.samples) ||
        (times != size.npos && !ParsePositive(size.substr(times + 1), &spec.tokens)))
      FailUsage(Field("calibration"), "{}: \"{}\" is neither a number of samples (128) nor samples x tokens (128x256)",
                text, size);
  }
  if (spec.source.empty())
    FailUsage(Field("calibration"), "\"{}\" is not of the form NAME|FILE[,NAME|FILE]...[:samples[xtokens]]", text);
  return spec;
}

}  // namespace shiftrt
