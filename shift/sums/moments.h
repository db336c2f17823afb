// SPDX-License-Identifier: Apache-2.0
// Second moments of a site's tokens, in the memory of a solver, for a fit.
#pragma once

#include "runtime/linalg/solver.h"
#include "shift/sums/statistics.h"

namespace shiftrt {

// The sum over tokens of w (h - mean)'(h - mean) (n, n), upper triangle; `mean` (1, n), the tokens' own or another.
linalg::ArrayPtr GramAbout(linalg::Solver& solver, const RidgeSums& sums, const Matrix<double>& mean);
// The sum of w (h - mean)'(delta - delta_mean) (n, d).
linalg::ArrayPtr CrossAbout(linalg::Solver& solver, const RidgeSums& sums, const Matrix<double>& mean,
                            const Matrix<double>& delta_mean);
// Both about the means of the tokens, as needed for a fit with a free bias.
linalg::ArrayPtr CenteredGram(linalg::Solver& solver, const RidgeSums& sums);
linalg::ArrayPtr CenteredCross(linalg::Solver& solver, const RidgeSums& sums);

}  // namespace shiftrt
