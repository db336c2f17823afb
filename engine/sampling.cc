// SPDX-License-Identifier: Apache-2.0
#include "engine/sampling.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <vector>

#include "runtime/check.h"
#include "runtime/not_finite.h"

namespace shiftrt {

void FailOfNaN() { throw NotFinite("a logit is NaN"); }

namespace {

// The tokens in the order of their logits, the lowest id first among equals. They are put into order band by band from
// the likeliest on, because a choice rarely reads more than the first few of them.
class Ranking {
 public:
  Ranking(std::span<const float> logits, int32_t best, double temperature)
      : logits_(logits), best_(logits[best]), width_(kBand * temperature) {}

  // The token of rank i, which is less than the number of tokens.
  int32_t At(size_t i) {
    while (i >= order_.size()) AddBand();
    return order_[i];
  }

 private:
  static constexpr double kBand = 5.5;  // the weights of a band differ by a factor of at most e^5.5, which is 245
  static constexpr int kBands = 8;      // the last band has all tokens that are left

  void AddBand() {
    ++bands_;
    const double from = bands_ < kBands ? best_ - bands_ * width_ : -std::numeric_limits<double>::infinity();
    const auto begin = std::ssize(order_);
    for (size_t token = 0; token < logits_.size(); ++token)
      if (logits_[token] >= from && (bands_ == 1 || logits_[token] < below_))
        order_.push_back(static_cast<int32_t>(token));
    std::stable_sort(order_.begin() + begin, order_.end(),
                     [&](int32_t a, int32_t b) { return logits_[a] > logits_[b]; });
    if (bands_ < kBands) below_ = from;
  }

  std::span<const float> logits_;
  double best_, width_;
  double below_ = 0;  // after the first band, logits from here on are in order_
  int bands_ = 0;
  std::vector<int32_t> order_;
};

}  // namespace

int32_t SampleToken(std::span<const float> logits, const SamplingOptions& options, double uniform) {
  Check(!std::isnan(options.temperature) && !std::isnan(options.top_p), "temperature {} and top-p {}: one is NaN",
        options.temperature, options.top_p);
  for (float logit : logits)
    if (std::isnan(logit)) FailOfNaN();
  const auto best = static_cast<int32_t>(std::max_element(logits.begin(), logits.end()) - logits.begin());
  if (options.temperature <= 0) return best;

  Ranking ranking(logits, best, options.temperature);
  const auto weight = [&](int32_t token) {
    return std::exp((static_cast<double>(logits[token]) - logits[best]) / options.temperature);
  };
  size_t kept = logits.size();
  double nucleus = 0;  // the sum of the weights of the `kept` likeliest tokens
  if (options.top_k > 0 && options.top_k < std::ssize(logits)) {
    kept = static_cast<size_t>(options.top_k);
    for (size_t i = 0; i < kept; ++i) nucleus += weight(ranking.At(i));
  } else {
    for (int32_t token = 0; token < std::ssize(logits); ++token) nucleus += weight(token);
  }
  if (options.top_p < 1) {
    const double wanted = options.top_p * nucleus;
    const size_t most = kept;
    nucleus = 0;
    kept = 0;
    while (kept < most && (kept == 0 || nucleus < wanted)) nucleus += weight(ranking.At(kept++));
  }

  double draw = uniform * nucleus;
  for (size_t i = 0; i + 1 < kept; ++i)
    if ((draw -= weight(ranking.At(i))) < 0) return ranking.At(i);
  return ranking.At(kept - 1);
}

}  // namespace shiftrt
