// The scoring functions behind the table in shift/criteria.cc; each gives a score a layer, lower = removed first.
#pragma once

#include <vector>

#include "shift/criteria.h"

namespace shiftrt::criteria {

// Block influence, token form: one pass of the original model, no logits.
std::vector<double> BlockInfluence(const CriterionInput& input, Progress& progress);
// Sums of |w|^p over q, k, v, o, gate, up, down and the two norms (Kim et al., Shortened LLaMA, 2024).
std::vector<double> MagnitudeL1(const CriterionInput& input, Progress& progress);
std::vector<double> MagnitudeL2(const CriterionInput& input, Progress& progress);
// Deepest first; the starred form keeps the final block.
std::vector<double> Reverse(const CriterionInput& input, Progress& progress);
std::vector<double> ReverseStar(const CriterionInput& input, Progress& progress);
// Seeded, uniform.
std::vector<double> RandomOrder(const CriterionInput& input, Progress& progress);

}  // namespace shiftrt::criteria
