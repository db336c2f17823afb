// SPDX-License-Identifier: Apache-2.0
// The divergence of models from the first of them over the same sequences.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "engine/decoder.h"
#include "include/shiftrt/measurements.h"
#include "runtime/progress.h"

namespace shiftrt {

// The softmax of a row of logits.
struct RowSoftmax {
  double log_sum = 0;  // the logarithm of the sum of the exponentials
  int32_t best = 0;    // the likeliest token, the lowest id first among equals

  explicit RowSoftmax(std::span<const float> logits);
};
// Compares two rows of logits for the prediction of `token`. A token whose probability under the original is 0 in
// float32 adds nothing to the divergence. One that has this probability under the variant does, because what is
// compared is the logarithms, which the logits give.
TokenFidelity CompareLogits(std::span<const float> original, const RowSoftmax& softmax, std::span<const float> variant,
                            int32_t token);

// A model of a comparison.
struct ComparedModel {
  std::shared_ptr<const Weights> weights;
  DepthPlan plan;
};
// As MeasureTokenFidelity() of include/shiftrt/fidelity.h. The batches are shared out (runtime/shared_items.h); a model
// that is split over processes is not taken.
std::vector<SequenceFidelities> MeasureTokenFidelity(const Context& context, std::span<const ComparedModel> models,
                                                     std::span<const FidelitySequence> sequences, Progress& progress);

// The windows of a text that a perplexity is measured on: disjoint, of `window` tokens, without the rest. A text of
// less than one window is one.
std::vector<FidelitySequence> WindowsOf(std::span<const int32_t> tokens, int64_t window);

}  // namespace shiftrt
