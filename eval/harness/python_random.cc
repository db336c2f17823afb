// SPDX-License-Identifier: Apache-2.0
#include "eval/harness/python_random.h"

#include <bit>
#include <numeric>
#include <set>

namespace shiftrt {

namespace {

constexpr size_t kWords = 624, kShift = 397;

}  // namespace

// init_by_array with a key of one word.
PythonRandom::PythonRandom(uint32_t seed) : at_(kWords) {
  state_[0] = 19650218;
  const auto mixed = [&](size_t i, uint32_t factor) { return (state_[i - 1] ^ (state_[i - 1] >> 30)) * factor; };
  for (size_t i = 1; i < kWords; ++i) state_[i] = mixed(i, 1812433253) + static_cast<uint32_t>(i);
  size_t i = 1;
  const auto step = [&] {
    if (++i < kWords) return;
    state_[0] = state_[kWords - 1];
    i = 1;
  };
  for (size_t k = 0; k < kWords; ++k, step()) state_[i] = (state_[i] ^ mixed(i, 1664525)) + seed;
  for (size_t k = 1; k < kWords; ++k, step()) state_[i] = (state_[i] ^ mixed(i, 1566083941)) - static_cast<uint32_t>(i);
  state_[0] = 0x80000000;
}

uint32_t PythonRandom::Next() {
  if (at_ == kWords) {
    for (size_t i = 0; i < kWords; ++i) {
      const uint32_t y = (state_[i] & 0x80000000) | (state_[(i + 1) % kWords] & 0x7fffffff);
      state_[i] = state_[(i + kShift) % kWords] ^ (y >> 1) ^ (y & 1 ? 0x9908b0df : 0);
    }
    at_ = 0;
  }
  uint32_t y = state_[at_++];
  y ^= y >> 11;
  y ^= (y << 7) & 0x9d2c5680;
  y ^= (y << 15) & 0xefc60000;
  return y ^ (y >> 18);
}

uint32_t PythonRandom::Bits(int count) { return Next() >> (32 - count); }

int64_t PythonRandom::Below(int64_t n) {
  const int bits = std::bit_width(static_cast<uint64_t>(n));
  int64_t r = Bits(bits);
  while (r >= n) r = Bits(bits);
  return r;
}

std::vector<int64_t> PythonRandom::Sample(int64_t n, int64_t count) {
  std::vector<int64_t> picked;
  // Where a list of the population is smaller than a set of what was picked, Python shuffles a list.
  int64_t set_size = 21;
  if (count > 5) {
    int64_t power = 4;
    while (power < count * 3) power *= 4;
    set_size += power;
  }
  if (n <= set_size) {
    std::vector<int64_t> pool(n);
    std::iota(pool.begin(), pool.end(), int64_t{0});
    for (int64_t i = 0; i < count; ++i) {
      const int64_t j = Below(n - i);
      picked.push_back(pool[j]);
      pool[j] = pool[n - i - 1];
    }
    return picked;
  }
  std::set<int64_t> seen;
  while (static_cast<int64_t>(picked.size()) < count) {
    const int64_t j = Below(n);
    if (seen.insert(j).second) picked.push_back(j);
  }
  return picked;
}

}  // namespace shiftrt
