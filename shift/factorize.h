// Low rank: P (d, r) and Q (r, d) in place of A (d, d).
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "models/plan.h"
#include "shift/ridge.h"

namespace shiftrt {

enum class Factorization { kSvd, kReducedRank };  // "svd", "rrr"
Factorization ParseFactorization(const std::string& text);
const char* Name(Factorization factorization);

struct LowRank {
  Matrix<double> p, q, b;               // (d, r), (r, d), (1, d)
  std::vector<double> singular_values;  // all of them, descending: of A (svd), or of G_c^(1/2) A (rrr)
};

// svd: the truncated SVD of A, b kept (paper eq. svd_truncation). rrr: reduced-rank regression, minimises
// tr((A - A_r)' G_c (A - A_r)) over maps of rank r with the centred Gram G_c of `sums`, and refits b; never worse than
// svd on the fitted tokens. Throws UsageError for a rank below 1 or above d.
LowRank Factorize(const Context& context, const RidgeAccumulator& sums, const RidgeSolution& solution, int64_t rank,
                  Factorization factorization);

// Float32 adapters for a plan.
std::shared_ptr<const Lra> MakeLra(const RidgeSolution& solution);
std::shared_ptr<const Lra> MakeLra(const LowRank& factors);

}  // namespace shiftrt
