// SPDX-License-Identifier: Apache-2.0
// What tests look at of a decoder's rows.
#pragma once

#include <algorithm>

#include "engine/rows.h"

namespace shiftrt::test {

// A copy in host memory.
inline Matrix<float> Copied(const Rows& rows) {
  const HostRows here = rows.ToHost();
  Matrix<float> out(rows.count(), rows.hidden());
  for (int64_t i = 0; i < out.rows(); ++i) std::copy_n(here.view().row(i), out.cols(), out.row(i));
  return out;
}

}  // namespace shiftrt::test
