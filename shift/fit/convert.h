// SPDX-License-Identifier: Apache-2.0
// Matrices between the float32 that adapters run in and the float64 they are computed in.
#pragma once

#include <algorithm>

#include "runtime/tensor.h"

namespace shiftrt {

template <typename To, typename From>
Matrix<To> Converted(const Matrix<From>& m) {
  Matrix<To> out(m.rows(), m.cols());
  std::copy(m.span().begin(), m.span().end(), out.data());
  return out;
}

}  // namespace shiftrt
