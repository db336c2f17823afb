// What two rows have in common, in numbers.
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
  // 1 for a zero row that stays zero: it has not been turned.
  double Cosine() const { return aa == 0 || bb == 0 ? (aa == bb ? 1.0 : 0.0) : dot / std::sqrt(aa * bb); }
};

}  // namespace shiftrt
