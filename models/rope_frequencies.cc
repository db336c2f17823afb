// SPDX-License-Identifier: Apache-2.0
// Computes each step in float32, as the reference does: at position 100,000 the last bit of a frequency is worth a
// hundredth of a radian.
#include <algorithm>
#include <cmath>
#include <numbers>

#include "models/config.h"

namespace shiftrt {

namespace {

// theta^(2 i / head_dim): the number of positions per radian of phase.
float Period(const RopeSpec& rope, int64_t i, int64_t head_dim) {
  const float exponent = static_cast<float>(2 * i) / static_cast<float>(head_dim);
  return static_cast<float>(std::pow(rope.theta, static_cast<double>(exponent)));
}

// Llama 3.1's scaling: `factor` slows long wavelengths, short ones are kept, and those between are interpolated.
float Llama3Frequency(float frequency, const RopeSpec& rope) {
  const auto original = static_cast<double>(rope.original_max_positions);
  const auto factor = static_cast<float>(rope.factor);
  const float wavelength = static_cast<float>(2 * std::numbers::pi) / frequency;
  if (wavelength > static_cast<float>(original / rope.low_freq_factor)) return frequency / factor;
  if (wavelength < static_cast<float>(original / rope.high_freq_factor)) return frequency;
  const float smooth = (static_cast<float>(original) / wavelength - static_cast<float>(rope.low_freq_factor)) /
                       static_cast<float>(rope.high_freq_factor - rope.low_freq_factor);
  return (1 - smooth) * frequency / factor + smooth * frequency;
}

// YaRN (Peng et al., 2023): frequencies up to `low` are kept, those from `high` on are slowed by `factor`, and a ramp
// connects them.
struct YarnRamp {
  double low, high;

  YarnRamp(const RopeSpec& rope, int64_t head_dim) {
    // The dimension that turns `rotations` times over the original context.
    const auto dimension = [&](double rotations) {
      const auto original = static_cast<double>(rope.original_max_positions);
      return static_cast<double>(head_dim) * std::log(original / (rotations * 2 * std::numbers::pi)) /
             (2 * std::log(rope.theta));
    };
    low = dimension(rope.beta_fast);
    high = dimension(rope.beta_slow);
    if (rope.truncate) {
      low = std::floor(low);
      high = std::ceil(high);
    }
    low = std::max(low, 0.0);
    high = std::min(high, static_cast<double>(head_dim - 1));
    if (low == high) high += 0.001;
  }

  float Frequency(float period, int64_t i, double factor) const {
    const float position = (static_cast<float>(i) - static_cast<float>(low)) / static_cast<float>(high - low);
    const float kept = 1 - std::clamp(position, 0.0f, 1.0f);
    return 1 / (static_cast<float>(factor) * period) * (1 - kept) + 1 / period * kept;
  }
};

}  // namespace

float RopeSpec::QueryScale(int64_t position) const {
  const int64_t lengths = position / original_max_positions;
  const auto stretch = std::log(1 + static_cast<float>(lengths));
  return 1 + static_cast<float>(query_beta) * stretch;
}

RopeFrequencies MakeRopeFrequencies(const RopeSpec& rope, int64_t head_dim, bool is_long) {
  const int64_t rotated = rope.RotaryDim(head_dim);
  const YarnRamp ramp(rope, rotated);
  RopeFrequencies out;
  if (rope.kind == RopeKind::kYarn || rope.kind == RopeKind::kLongRope)
    out.scale = static_cast<float>(rope.attention_factor);
  const std::vector<double>& divisors = is_long ? rope.long_factors : rope.short_factors;
  for (int64_t i = 0; i < rotated / 2; ++i) {
    const float period = Period(rope, i, rotated), frequency = 1 / period;
    switch (rope.kind) {
      case RopeKind::kDefault: out.inverse.push_back(frequency); break;
      case RopeKind::kLinear: out.inverse.push_back(frequency / static_cast<float>(rope.factor)); break;
      case RopeKind::kLlama3: out.inverse.push_back(Llama3Frequency(frequency, rope)); break;
      case RopeKind::kYarn: out.inverse.push_back(ramp.Frequency(period, i, rope.factor)); break;
      case RopeKind::kLongRope: out.inverse.push_back(1 / (static_cast<float>(divisors[i]) * period)); break;
    }
  }
  out.inverse.resize(head_dim / 2, 0.0f);
  return out;
}

}  // namespace shiftrt
