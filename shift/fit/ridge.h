// SPDX-License-Identifier: Apache-2.0
// Closed-form adapters from ridge sums (paper eq. ridge_objective, closed_form_solution).
#pragma once

#include <string>

#include "include/shiftrt/recipe.h"
#include "runtime/context.h"
#include "runtime/linalg/placed.h"
#include "shift/sums/statistics.h"

namespace shiftrt {

struct RidgeOptions {
  LambdaSpec lambda;
  bool penalize_bias = false;  // the paper's main text; false: the bias is free (its supplement), centred regression
};

// FLOP of the eigendecomposition of a Gram (n, n), eigenvectors included: the largest part of a solve that chooses
// lambda. About what LAPACK's dsyevd takes.
double EigenFlops(int64_t n);

struct RidgeSolution {
  linalg::PlacedMatrix a;   // (n, d), row-vector convention
  Matrix<double> b;         // (1, d)
  double lambda = 0;        // the absolute value used
  double bias_penalty = 0;  // lambda if the bias is penalised too
  double condition = 0;     // estimated condition number of the regularised Gram
  std::string warning;      // empty unless the solve had to fall back
};

// Solves (G + lambda I) X = C. With a free bias G and C are centred first and lambda acts on A alone. gcv minimises the
// generalised cross-validation score summed over outputs, over a logarithmic grid whose steps become finer around the
// best of the coarser ones, from one eigendecomposition, or where Solver::AvoidsEigen() from one tridiagonal form if no
// direction has to be left out; holdout minimises the squared error on the tokens of `heldout`, over the same grid.
// Throws Error when there are no tokens, or none held out for holdout.
RidgeSolution SolveRidge(const Context& context, const RidgeSums& sums, const RidgeOptions& options,
                         const RidgeSums* heldout = nullptr);

// A (n, d) as it is, or as its factors.
struct LinearMap {
  LinearMap(MatrixView<double> a) : p(a) {}
  LinearMap(MatrixView<double> p, MatrixView<double> q) : p(p), q(q) {}
  bool factored() const { return q.cols > 0; }
  MatrixView<const double> p, q;  // A itself; or P (n, r) and Q (r, d), r >= 0
};

// The bias (1, d) with the least squared error plus `penalty` times its square: mean(D) - mean(H) A, which leaves no
// mean error, times weight / (weight + penalty).
Matrix<double> BestBias(const Context& context, const RidgeSums& sums, const LinearMap& map, double penalty = 0);

// 1 - residual / total on the tokens of `sums`, both about the mean of D; 0 where D does not vary, NaN without tokens.
// Any map will do.
double RSquared(const Context& context, const RidgeSums& sums, const LinearMap& map, MatrixView<const double> b);

}  // namespace shiftrt
