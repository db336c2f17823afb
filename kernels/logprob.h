// Scoring without a tokens x vocabulary array: the head's product and the log-sum-exp go over the vocabulary in blocks.
#pragma once

#include <span>

#include "runtime/context.h"
#include "runtime/tensor.h"

namespace shiftrt {

// From a normed row of the stream to logits.
struct OutputHead {
  const TensorView& w;  // (vocab, hidden)
  float soft_cap = 0;   // a logit l counts as soft_cap tanh(l / soft_cap) (Gemma 2); 0: as it is

  OutputHead(const TensorView& w, float soft_cap = 0) : w(w), soft_cap(soft_cap) {}
};

// For each row of x (tokens, hidden; already normed): log_probs[t] = log softmax(head(x))[targets[t]] in natural
// logarithm, and, where not empty, argmax[t] = the most likely token (lowest id on a tie). Memory: tokens x 2048.
void TokenLogProbs(const Context& context, MatrixView<const float> x, const OutputHead& head,
                   std::span<const int32_t> targets, std::span<float> log_probs, std::span<int32_t> argmax);

}  // namespace shiftrt
