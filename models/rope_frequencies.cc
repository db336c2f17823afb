#include <algorithm>
#include <cmath>
#include <numbers>

#include "models/config.h"

namespace shiftrt {

namespace {

// Llama 3.1's stretch: long wavelengths are slowed by `factor`, short ones kept, those between interpolated.
double Llama3Frequency(double frequency, const RopeSpec& rope) {
  const auto original = static_cast<double>(rope.original_max_positions);
  const double wavelength = 2 * std::numbers::pi / frequency;
  if (wavelength > original / rope.low_freq_factor) return frequency / rope.factor;
  if (wavelength < original / rope.high_freq_factor) return frequency;
  const double smooth = (original / wavelength - rope.low_freq_factor) / (rope.high_freq_factor - rope.low_freq_factor);
  return (1 - smooth) * frequency / rope.factor + smooth * frequency;
}

// The dimension whose wavelength turns `rotations` times over the original context (Peng et al., YaRN, 2023).
double YarnDimension(double rotations, const RopeSpec& rope, int64_t head_dim) {
  const auto original = static_cast<double>(rope.original_max_positions);
  return static_cast<double>(head_dim) * std::log(original / (rotations * 2 * std::numbers::pi)) /
         (2 * std::log(rope.theta));
}

}  // namespace

RopeFrequencies MakeRopeFrequencies(const ModelConfig& config) {
  const RopeSpec& rope = config.rope;
  const int64_t half = config.head_dim / 2;
  RopeFrequencies out;
  double low = 0, high = 0;
  if (rope.kind == RopeKind::kYarn) {
    out.scale = static_cast<float>(rope.attention_factor > 0 ? rope.attention_factor : 0.1 * std::log(rope.factor) + 1);
    low = YarnDimension(rope.beta_fast, rope, config.head_dim);
    high = YarnDimension(rope.beta_slow, rope, config.head_dim);
    if (rope.truncate) {
      low = std::floor(low);
      high = std::ceil(high);
    }
    low = std::max(low, 0.0);
    high = std::min(high, static_cast<double>(config.head_dim - 1));
    if (low == high) high += 0.001;
  }
  for (int64_t i = 0; i < half; ++i) {
    const double exponent = 2.0 * static_cast<double>(i) / static_cast<double>(config.head_dim);
    double frequency = std::pow(rope.theta, -exponent);
    switch (rope.kind) {
      case RopeKind::kDefault: break;
      case RopeKind::kLinear: frequency /= rope.factor; break;
      case RopeKind::kLlama3: frequency = Llama3Frequency(frequency, rope); break;
      case RopeKind::kYarn: {
        const double ramp = std::clamp((static_cast<double>(i) - low) / (high - low), 0.0, 1.0);
        frequency = frequency / rope.factor * ramp + frequency * (1 - ramp);
        break;
      }
    }
    out.inverse.push_back(static_cast<float>(frequency));
  }
  return out;
}

}  // namespace shiftrt
