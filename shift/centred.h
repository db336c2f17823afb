// Sums about the means, which is what a fit with a free bias sees.
#pragma once

#include "shift/statistics.h"

namespace shiftrt {

struct CentredSums {
  Matrix<double> gram;   // (d, d): sum of (h - mean h)'(h - mean h)
  Matrix<double> cross;  // (d, d): sum of (h - mean h)'(delta - mean delta)
  std::vector<double> mean_h, mean_delta;
  double delta_squares = 0;  // sum of squares of delta - mean delta
  int64_t tokens = 0;
};

// Throws Error when there are no tokens.
CentredSums Centre(const RidgeAccumulator& sums);

// mean_delta - mean_h A: the bias that belongs to a map fitted on centred sums. (1, d).
Matrix<double> FreeBias(const CentredSums& centred, MatrixView<const double> a);

}  // namespace shiftrt
