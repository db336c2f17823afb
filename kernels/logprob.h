// Scoring without a tokens x vocabulary array: the head's product and the log-sum-exp go over the vocabulary in blocks.
#pragma once

#include <span>

#include "runtime/context.h"
#include "runtime/tensor.h"

namespace shiftrt {

// For each row of x (tokens, hidden; already normed): log_probs[t] = log softmax(x W')[targets[t]] in natural
// logarithm, and, where not empty, argmax[t] = the most likely token (lowest id on a tie). W (vocab, hidden). Memory:
// tokens x 2048.
void TokenLogProbs(const Context& context, MatrixView<const float> x, const TensorView& w,
                   std::span<const int32_t> targets, std::span<float> log_probs, std::span<int32_t> argmax);

}  // namespace shiftrt
