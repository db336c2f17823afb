// SPDX-License-Identifier: Apache-2.0
// Scores tokens without an array of tokens x vocabulary: head and log-sum-exp process the vocabulary in blocks.
#pragma once

#include <span>

#include "runtime/context.h"
#include "runtime/tensor.h"

namespace shiftrt {

// The head, which computes logits from normed rows of the stream.
struct OutputHead {
  const TensorView& w;  // (vocab, hidden)
  float soft_cap = 0;   // a logit l becomes soft_cap tanh(l / soft_cap) (Gemma 2); 0: it is unchanged

  OutputHead(const TensorView& w, float soft_cap = 0) : w(w), soft_cap(soft_cap) {}
};

// For each row of x (tokens, hidden; already normed): log_probs[t] = log softmax(head(x))[targets[t]], natural
// logarithm; if not empty, argmax[t] = the most likely token (lowest id on a tie). Memory: tokens x 2048 floats.
void TokenLogProbs(const Context& context, MatrixView<const float> x, const OutputHead& head,
                   std::span<const int32_t> targets, std::span<float> log_probs, std::span<int32_t> argmax);

// The bytes of logits that TokenLogProbs holds for so many rows.
int64_t TokenLogProbsBytes(int64_t rows);

// A loss per row of x, computed block by block over the vocabulary: cross_entropy * -log softmax(head(x))[target] plus,
// with a teacher, divergence * KL(teacher || student) over the whole vocabulary.
struct HeadLoss {
  const OutputHead& head;
  std::span<const int32_t> targets;  // one per row
  float cross_entropy = 1;
  float divergence = 0;                      // needs a teacher
  MatrixView<const float> teacher = {};      // the teacher's normed rows, (tokens, its hidden size)
  const OutputHead* teacher_head = nullptr;  // with the same vocabulary
  // Memory for logits, which grows as it is needed; null: the call has memory of its own. A caller that keeps it saves
  // the system the clearing of fresh pages in every call.
  Buffer<float>* logits = nullptr;
};
// losses[t] = the loss of row t; dx (tokens, hidden) = scales[t] times its gradient; dw (vocab, hidden), if it is not
// empty, += the gradient of the head's weights of the sum of scales[t] * losses[t]. With both empty, it only measures.
// No result depends on the number of threads. Memory: the logits of at most 1024 rows, and at most 128 MiB of them or
// 32 rows, with those of a teacher. Cost: a product of (tokens, hidden, vocab) for the logits, another for those of a
// teacher, and one each for dx and dw.
void HeadLossGradient(const Context& context, MatrixView<const float> x, const HeadLoss& loss,
                      std::span<const float> scales, std::span<float> losses, MatrixView<float> dx,
                      MatrixView<float> dw = {});

}  // namespace shiftrt
