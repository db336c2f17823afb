// SPDX-License-Identifier: Apache-2.0
#include "shift/corrections/hadamard.h"

#include <algorithm>
#include <cmath>

#include "runtime/check.h"

namespace shiftrt {

namespace {

bool IsPrime(int64_t n) {
  for (int64_t divisor = 2; divisor * divisor <= n; ++divisor)
    if (n % divisor == 0) return false;
  return n > 1;
}

// The quadratic character of the integers modulo the odd prime q: 0 for 0, 1 for squares, -1 for the others.
std::vector<int8_t> QuadraticCharacter(int64_t q) {
  std::vector<int8_t> character(q, -1);
  character[0] = 0;
  for (int64_t i = 1; i < q; ++i) character[i * i % q] = 1;
  return character;
}

// I + S for the prime q = order - 1, 3 modulo 4.
void FirstConstruction(int64_t order, std::vector<int8_t>& h) {
  const int64_t q = order - 1;
  const std::vector<int8_t> character = QuadraticCharacter(q);
  for (int64_t i = 0; i < order; ++i)
    for (int64_t j = 0; j < order; ++j) {
      int8_t& entry = h[i * order + j];
      if (i == j || j == 0) {
        entry = 1;
      } else {
        entry = i == 0 ? -1 : character[(i - j + q) % q];
      }
    }
}

// [C + I, C - I; C - I, -C - I] with the symmetric conference matrix C of the prime q = order / 2 - 1, 1 modulo 4.
void SecondConstruction(int64_t order, std::vector<int8_t>& h) {
  const int64_t half = order / 2, q = half - 1;
  const std::vector<int8_t> character = QuadraticCharacter(q);
  for (int64_t i = 0; i < half; ++i)
    for (int64_t j = 0; j < half; ++j) {
      const bool border = (i == 0) != (j == 0);
      const int c = border ? 1 : i == 0 ? 0 : character[(i - j + q) % q], one = i == j ? 1 : 0;
      h[i * order + j] = static_cast<int8_t>(c + one);
      h[i * order + half + j] = h[(half + i) * order + j] = static_cast<int8_t>(c - one);
      h[(half + i) * order + half + j] = static_cast<int8_t>(-c - one);
    }
}

}  // namespace

Hadamard::Hadamard(int64_t n) : order_(1), power_(1), paley_{1} {
  Check(n > 0, "a Hadamard matrix of order {}", n);
  int64_t odd = n;
  for (; odd % 2 == 0; odd /= 2) power_ *= 2;
  if (odd == 1) return;
  order_ = 4 * odd;
  const bool first = IsPrime(order_ - 1), second = IsPrime(2 * odd - 1) && (2 * odd - 1) % 4 == 1;
  Check(
      power_ % 4 == 0 && (first || second),
      "no Hadamard matrix of order {} = {} x {}: the second factor would have to be a multiple of 4, and {}, or {} = 1 "
      "modulo 4, a prime; the correction linearpatch-diag needs no such matrix",
      n, odd, power_, order_ - 1, 2 * odd - 1);
  power_ /= 4;
  paley_.resize(order_ * order_);
  if (first) {
    FirstConstruction(order_, paley_);
  } else {
    SecondConstruction(order_, paley_);
  }
}

void Hadamard::Transform(std::span<double> x) const {
  const int64_t n = order_ * power_;
  Check(std::ssize(x) == n, "{} numbers for a Hadamard matrix of order {}", x.size(), n);
  for (int64_t step = 1; step < power_; step *= 2)
    for (int64_t begin = 0; begin < n; begin += 2 * step)
      for (int64_t i = begin; i < begin + step; ++i) {
        const double sum = x[i] + x[i + step];
        x[i + step] = x[i] - x[i + step];
        x[i] = sum;
      }
  const double scale = 1 / std::sqrt(static_cast<double>(n));
  std::vector<double> mixed(n, 0.0);
  for (int64_t i = 0; i < order_; ++i)
    for (int64_t j = 0; j < order_; ++j) {
      const double sign = paley_[i * order_ + j] * scale;
      for (int64_t k = 0; k < power_; ++k) mixed[i * power_ + k] += sign * x[j * power_ + k];
    }
  std::copy(mixed.begin(), mixed.end(), x.begin());
}

}  // namespace shiftrt
