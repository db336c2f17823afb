// SPDX-License-Identifier: Apache-2.0
// Orthonormal Hadamard matrices.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

namespace shiftrt {

// H (n, n) with entries 1/sqrt(n) and -1/sqrt(n) and H H' = I. For n = 2^k it is Sylvester's matrix, the Walsh-Hadamard
// transform in natural order. Otherwise n = m 2^k with odd m, and H is the Kronecker product of Paley's matrix of order
// 4 m (Paley, 1933) and Sylvester's of order 2^(k - 2): Paley's first construction where 4 m - 1 is a prime, his second
// where 2 m - 1 is one. Up to the order and the signs of its rows this is the matrix that LinearPatch's public code has
// for m = 3, 7, 9, 15, 27 and 35, and for m = 5 where k = 2.
class Hadamard {
 public:
  // Throws Error for an order that neither construction gives.
  explicit Hadamard(int64_t n);
  // x = H x, in O(n (m + log n)).
  void Transform(std::span<double> x) const;

 private:
  int64_t order_, power_;      // the sizes of the two factors
  std::vector<int8_t> paley_;  // (order, order): 1 and -1; [1] for a power of two
};

}  // namespace shiftrt
