// SPDX-License-Identifier: Apache-2.0
// Low rank: P (d, r) and Q (r, d) in place of A (d, d).
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "include/shiftrt/recipe.h"
#include "models/plan.h"
#include "shift/fit/ridge.h"

namespace shiftrt {

// Throws UsageError for a fixed rank outside 1 .. hidden.
void CheckRank(const RankSpec& spec, int64_t hidden);

// A rank for each site from its singular values (`hidden` of them, descending; unused for kFull and kFixed). energy:
// the smallest rank, at least 1, that keeps the share. budget: the direction with the largest singular value of all
// sites first, until the parameters are spent; a site gets 0 (a bias alone) when others need them more, and hidden (the
// full map) once its factors would be no smaller. Throws Error for a budget that does not hold the biases.
std::vector<int64_t> ChooseRanks(const RankSpec& spec, const std::vector<std::vector<double>>& singular_values,
                                 int64_t hidden);

struct LowRank {
  Matrix<double> p, q, b = {};  // (d, r), (r, d), (1, d)
  double bias_penalty = 0;      // RidgeSolution::bias_penalty
  // All of them or the leading ones, descending: those of A (svd, svd-refit), or of G_c^(1/2) A (rrr).
  std::vector<double> singular_values = {};
  // A matrix whose eigenvalues are the squares of all of them; without its reflectors.
  linalg::Tridiagonal squares = {};
};
// Appends to the leading singular values those that are missing. The host computes them: O(d^2) in one thread.
void CompleteSpectrum(const linalg::Tridiagonal& squares, std::vector<double>& singular_values);

// svd: the truncated SVD of A, b kept (paper eq. svd_truncation). svd-refit: the BestBias of A_r instead. rrr:
// minimises tr((A - A_r)' G_c (A - A_r)) over maps of rank r with the centred Gram G_c of `sums`, and refits b: on the
// fitted tokens never farther than the others from what A computes, and so, but for what lambda leaves, from the
// updates. Throws UsageError for a rank below 1 or above d.
LowRank Factorize(const Context& context, const RidgeSums& sums, const RidgeSolution& solution, int64_t rank,
                  Factorization factorization);

// The map of a site that is factorized. The references outlive what takes it.
struct ToFactorize {
  const Context& context;
  const RidgeSums& sums;
  const RidgeSolution& solution;
  Factorization factorization;
};
// As Factorize, with the leading singular values alone: the host has less to compute. CompleteSpectrum() adds the
// others.
LowRank LeadingFactors(const ToFactorize& map, int64_t rank);
// The same in two steps. In between, the host decomposes a tridiagonal matrix in a thread of its own, while the GPU
// works on something else. The bits are those of one step.
class PendingFactors {
 public:
  // Starts on the GPU of the context. Null where that has no memory, or the problem is better solved on the host.
  static std::unique_ptr<PendingFactors> Start(const ToFactorize& map, int64_t rank);
  virtual ~PendingFactors() = default;
  virtual LowRank Finish() = 0;  // once
};
// FLOP of either for a map (d, d), about.
double FactorizeFlops(int64_t d);
// All singular values alone, descending: of A (svd), or of G_c^(1/2) A (rrr); and LowRank::squares alone.
std::vector<double> SingularValues(const Context& context, const RidgeSums& sums, const RidgeSolution& solution,
                                   Factorization factorization);
linalg::Tridiagonal SquaredSpectrum(const ToFactorize& map);
// Returns the result of Factorize for the smaller `rank`, given that for a larger one; rank 0 is a bias alone.
LowRank Truncate(const Context& context, const RidgeSums& sums, const LowRank& factors, int64_t rank,
                 Factorization factorization);
// exp of the entropy of the normalised singular values (Roy and Vetterli 2007): how many directions matter.
double EffectiveRank(const std::vector<double>& singular_values);

// Float32 adapters for a plan.
std::shared_ptr<const Lra> MakeLra(const RidgeSolution& solution);
std::shared_ptr<const Lra> MakeLra(const LowRank& factors);
// A (d, d) of an adapter of either kind, whatever its rank.
Matrix<double> DenseMap(const Context& context, const Lra& lra);

}  // namespace shiftrt
