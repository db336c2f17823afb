// SPDX-License-Identifier: Apache-2.0
// The dot products of two rows.
#pragma once

#include <cmath>

namespace shiftrt {

struct RowProducts {
  double dot = 0, aa = 0, bb = 0;  // <a, b>, <a, a>, <b, b>

  RowProducts& operator+=(const RowProducts& other) {
    dot += other.dot;
    aa += other.aa;
    bb += other.bb;
    return *this;
  }
  // 1 if both rows are zero, because the row has not changed.
  double Cosine() const { return aa == 0 || bb == 0 ? (aa == bb ? 1.0 : 0.0) : dot / std::sqrt(aa * bb); }
};

}  // namespace shiftrt
