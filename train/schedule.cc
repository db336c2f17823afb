// SPDX-License-Identifier: Apache-2.0
#include "train/schedule.h"

#include <algorithm>
#include <cmath>
#include <numbers>
#include <span>
#include <string_view>

#include "runtime/check.h"
#include "runtime/parse.h"
#include "runtime/words.h"

namespace shiftrt {

namespace {

constexpr Words<Decay, 3> kDecays = {{"constant", "linear", "cosine"}};

}  // namespace

const char* Name(Decay decay) { return kDecays.Of(decay); }

Decay ParseDecay(const std::string& name) { return kDecays.Parse(name, "decay", "\"{}\" is not a schedule"); }

double Schedule::Rate(int64_t step, TrainedPart part) const {
  const double highest = rate * (part == TrainedPart::kAdapters ? adapters : part == TrainedPart::kHead ? head : 1);
  if (step < warmup) return highest * static_cast<double>(step + 1) / static_cast<double>(warmup);
  const double done = static_cast<double>(step - warmup) / static_cast<double>(steps - warmup);
  switch (decay) {
    case Decay::kConstant: break;
    case Decay::kLinear: return highest * (1 - done);
    case Decay::kCosine: return highest * 0.5 * (1 + std::cos(std::numbers::pi * done));
  }
  return highest;
}

double DefaultRate(Method method, int64_t hidden) {
  constexpr double kHighest = 1e-2;
  const double scale = method == Method::kLora || method == Method::kReplacement ? 1.2
                       : method == Method::kPartial                              ? 0.3
                                                                                 : 0.15;
  return std::min(kHighest, scale / static_cast<double>(hidden));
}

double RecoveryRate(int64_t hidden) {
  constexpr int64_t kSmall = 640;
  constexpr double kOfSmall = 1e-4, kTimesHidden = 0.018;
  return hidden <= kSmall ? kOfSmall : std::min(kOfSmall, kTimesHidden / static_cast<double>(hidden));
}

int64_t WarmupSteps(double warmup, int64_t steps) {
  if (!std::isfinite(warmup) || warmup < 0 || (warmup >= 1 && warmup != std::floor(warmup)))
    FailUsage(Field("warmup"), "\"{}\" is neither a number of steps (100) nor a share of them (0.05)", warmup);
  if (warmup >= static_cast<double>(steps) && warmup >= 1)
    FailUsage(Field("warmup"), "{} steps of warm-up, but there are only {} steps", warmup, steps);
  return warmup < 1 ? std::llround(warmup * static_cast<double>(steps)) : static_cast<int64_t>(warmup);
}

TrainingBudget ParseTrainingBudget(const std::string& text) {
  constexpr std::string_view kTokens = "tokens=";
  struct Unit {
    std::string_view name;
    double factor;
  };
  constexpr Unit kTimes[] = {{"s", 1}, {"min", 60}, {"h", 3600}},
                 kCounts[] = {{"", 1}, {"k", 1e3}, {"M", 1e6}, {"G", 1e9}};
  const bool counts = text.starts_with(kTokens);
  const std::string value = text.substr(counts ? kTokens.size() : 0);
  const size_t digits = std::min(value.find_first_not_of("0123456789."), value.size());
  double number = 0;
  for (const Unit& unit : counts ? std::span<const Unit>(kCounts) : std::span<const Unit>(kTimes)) {
    if (value.substr(digits) != unit.name || !ParseNumber(value.substr(0, digits), &number)) continue;
    const double amount = number * unit.factor;
    if (amount < 1 || amount > 1e15) break;
    if (counts) return {.tokens = std::llround(amount)};
    return {.seconds = amount};
  }
  FailUsage(Field("budget"), "\"{}\" is neither a time of at least a second (90s, 30min, 2h) nor tokens=1M", text);
}

std::string Format(const TrainingBudget& budget) {
  if (budget.tokens > 0) return fmt::format("tokens={}", budget.tokens);
  return budget.seconds > 0 ? fmt::format("{}s", budget.seconds) : "";
}

}  // namespace shiftrt
