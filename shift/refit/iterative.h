// SPDX-License-Identifier: Apache-2.0
// The ridge regression of a projection without its Gram: conjugate gradients (Hestenes and Stiefel, 1952), which only
// need the products of the Gram with some vectors. Each of these takes one pass over the rows.
#pragma once

#include <functional>
#include <span>

#include "runtime/progress.h"
#include "shift/fit/ridge.h"

namespace shiftrt {

// Some tokens of a fit: its inputs (tokens, n), what its output should have in addition (tokens, d), and the tokens'
// weights, which are empty where all count alike. On the host.
struct FitRows {
  MatrixView<const float> inputs, missing;
  std::span<const double> weights;
};
// Hands over all rows, a batch at a time, the same ones at every call.
using RowPass = std::function<void(const std::function<void(const FitRows&)>& take)>;

struct IterativeProblem {
  RowPass fit, heldout;  // heldout: empty without held-out tokens
  int64_t inputs = 0, hidden = 0;
  int64_t tokens = 0;  // that `fit` hands over, for the progress
  bool free_bias = false;
  int64_t memory = 0;  // bytes that may be used
};

// The residual of the normal equations at which an output counts as solved, relative to their right side, in the norm
// of the preconditioner (the diagonal of the Gram).
constexpr double kIterativeTolerance = 1e-6;

// The memory of a fit of n inputs and d outputs that solves for `columns` outputs at once: 8 n d + 40 n columns bytes
// and 16 to 256 tokens in float64.
int64_t IterativeBytes(int64_t inputs, int64_t hidden, int64_t columns);
// Throws Error unless `memory` bytes have room for one output at a time.
void CheckIterativeMemory(int64_t inputs, int64_t hidden, int64_t memory);

// As SolveRidge, of the rows of `problem.fit`. As many outputs are solved for together as `problem.memory` has room
// for; every group of outputs takes its own passes. There is no GCV without the Gram: for gcv and holdout, lambda goes
// from a hundred times the mean of the Gram's diagonal downwards in powers of ten, each solution starting from the one
// before, as long as the error on the held-out rows falls; the first group of outputs decides for all. `condition` is
// not known: NaN. The warning says what was done, and how many passes it took. Throws Error where a lambda has to be
// chosen and there are no held-out rows, where not even one output fits into the memory, and for sums that are not
// finite.
RidgeSolution SolveIteratively(const Context& context, const IterativeProblem& problem, const LambdaSpec& lambda,
                               Progress& progress);

// As RSquared, by a pass over the rows.
double RSquaredOver(const Context& context, const RowPass& pass, const Matrix<double>& map, const Matrix<double>& bias);

}  // namespace shiftrt
