// SPDX-License-Identifier: Apache-2.0
// A small seeded generator whose numbers are the same on every machine.
#pragma once

#include <cmath>
#include <cstdint>

namespace shiftrt {

// Output number `i`, from 0, of the generator SplitMix64 (Steele, Lea, Flood 2014) with this seed.
constexpr uint64_t SplitMix64(uint64_t seed, uint64_t i) {
  uint64_t z = seed + (i + 1) * 0x9e3779b97f4a7c15u;
  z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
  z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
  return z ^ (z >> 31);
}

// The outputs of SplitMix64 one after the other.
class Random {
 public:
  explicit Random(uint64_t seed) : seed_(seed) {}
  uint64_t Next() { return SplitMix64(seed_, next_++); }
  // Uniform in [0, 1).
  double Uniform() { return static_cast<double>(Next() >> 11) * 0x1p-53; }
  // Uniform in [0, n), n > 0. The bias is below n / 2^64.
  int64_t Below(int64_t n) { return static_cast<int64_t>(Next() % static_cast<uint64_t>(n)); }
  // Standard normal (Box-Muller, one of the pair).
  double Normal() {
    const double u = 1.0 - Uniform(), v = Uniform();
    return std::sqrt(-2.0 * std::log(u)) * std::cos(6.283185307179586 * v);
  }

 private:
  uint64_t seed_, next_ = 0;
};

}  // namespace shiftrt
