// SPDX-License-Identifier: Apache-2.0
#include "shift/sums/moments.h"

#include <algorithm>

namespace shiftrt {

namespace {

// moments (n, d) of the raw sums become those about `mean`. With g the column sums of W H, y those of W Y, and n the
// weight, sum w (h - m)'(y - m_y) = sum w h'y - m'y - (g - n m)' m_y: two outer products.
void Shift(linalg::Solver& solver, const RidgeSums& sums, const Matrix<double>& mean, const Matrix<double>& column_sums,
           const Matrix<double>& other_mean, linalg::Array& moments) {
  const int64_t n = sums.inputs(), d = moments.cols();
  Matrix<double> left(2, n), right(2, d);
  const Matrix<double> input_sums = sums.InputSums();
  const double weight = sums.weight();
  std::copy_n(mean.data(), n, left.row(0));
  for (int64_t j = 0; j < n; ++j) left(1, j) = input_sums(0, j) - weight * mean(0, j);
  std::copy_n(column_sums.data(), d, right.row(0));
  std::copy_n(other_mean.data(), d, right.row(1));
  solver.Gemm({*solver.Uploaded(left.view()), true}, {*solver.Uploaded(right.view())}, {-1, 1}, moments);
}

}  // namespace

linalg::ArrayPtr GramAbout(linalg::Solver& solver, const RidgeSums& sums, const Matrix<double>& mean) {
  const int64_t n = sums.inputs();
  linalg::ArrayPtr gram = solver.Make(n, n);
  solver.Copy(*sums.matrices().gram.On(solver), *gram);
  Shift(solver, sums, mean, sums.InputSums(), mean, *gram);
  return gram;
}

linalg::ArrayPtr CrossAbout(linalg::Solver& solver, const RidgeSums& sums, const Matrix<double>& mean,
                            const Matrix<double>& delta_mean) {
  linalg::ArrayPtr cross = solver.Make(sums.inputs(), sums.hidden());
  solver.Copy(*sums.matrices().cross.On(solver), *cross);
  Shift(solver, sums, mean, sums.DeltaSums(), delta_mean, *cross);
  return cross;
}

linalg::ArrayPtr CenteredGram(linalg::Solver& solver, const RidgeSums& sums) {
  return GramAbout(solver, sums, sums.InputMean());
}

linalg::ArrayPtr CenteredCross(linalg::Solver& solver, const RidgeSums& sums) {
  return CrossAbout(solver, sums, sums.InputMean(), sums.DeltaMean());
}

}  // namespace shiftrt
