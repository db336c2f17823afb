// SPDX-License-Identifier: Apache-2.0
// Python's random.Random, so that shots are drawn as the reference draws them.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <vector>

namespace shiftrt {

// The Mersenne Twister MT19937 (Matsumoto and Nishimura 1998) seeded as CPython seeds it with a small integer.
class PythonRandom {
 public:
  explicit PythonRandom(uint32_t seed);
  uint32_t Bits(int count);  // getrandbits(count), 1 <= count <= 32
  int64_t Below(int64_t n);  // an integer in [0, n), 0 < n < 2^32
  // Indices that random.sample(population, count) picks of a population of `n`; count <= n.
  std::vector<int64_t> Sample(int64_t n, int64_t count);

 private:
  uint32_t Next();

  std::array<uint32_t, 624> state_;
  size_t at_ = 0;  // the next word of state_ to give out
};

}  // namespace shiftrt
