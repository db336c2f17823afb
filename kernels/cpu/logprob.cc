// SPDX-License-Identifier: Apache-2.0
#include "kernels/logprob.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <vector>

#include "kernels/cpu/simd_body.h"
#include "kernels/matmul.h"
#include "runtime/check.h"
#include "runtime/parallel.h"

namespace shiftrt {

namespace {

constexpr int64_t kVocabBlock = 2048;
constexpr int64_t kRowBlock = 512;

struct RowState {
  float maximum = -std::numeric_limits<float>::infinity();
  double sum = 0;  // of exp(logit - maximum)
  float target = 0;
  int32_t best = 0;
};

// This overwrites the logits.
void Update(const SimdBody& body, RowState& state, float* logits, int64_t count, int64_t first, int32_t target) {
  const auto at = std::max_element(logits, logits + count);
  if (*at > state.maximum) {
    state.sum *= std::exp(static_cast<double>(state.maximum) - *at);
    state.maximum = *at;
    state.best = static_cast<int32_t>(first + (at - logits));
  }
  if (target >= first && target < first + count) state.target = logits[target - first];
  state.sum += body.exponentiate(logits, count, state.maximum);
}

}  // namespace

void TokenLogProbs(const Context& context, MatrixView<const float> x, const OutputHead& head,
                   std::span<const int32_t> targets, std::span<float> log_probs, std::span<int32_t> argmax) {
  const TensorView& w = head.w;
  const int64_t vocab = w.rows();
  const auto count = static_cast<int64_t>(targets.size());
  Check(count == x.rows && log_probs.size() == targets.size() && (argmax.empty() || argmax.size() == targets.size()),
        "scores of {} targets for {} rows", targets.size(), x.rows);
  for (int32_t target : targets)
    Check(target >= 0 && target < vocab, "target {} is outside the vocabulary of {}", target, vocab);
  const auto* bytes = static_cast<const std::byte*>(w.data);
  const auto row_bytes = w.cols() * static_cast<int64_t>(SizeOf(w.dtype));
  const SimdBody& body = BodyFor(context.isa);
  Buffer<float> logits(std::min(kRowBlock, count) * kVocabBlock);
  for (int64_t r0 = 0; r0 < count; r0 += kRowBlock) {
    const int64_t rows = std::min(kRowBlock, count - r0);
    std::vector<RowState> states(rows);
    for (int64_t v0 = 0; v0 < vocab; v0 += kVocabBlock) {
      const int64_t cols = std::min(kVocabBlock, vocab - v0);
      const MatrixView<float> block(logits.data(), rows, cols);
      MatMul(context, x.Rows(r0, rows), {bytes + v0 * row_bytes, w.dtype, {cols, w.cols()}}, {}, false, block);
      ParallelFor(context, rows, 4, [&](int64_t begin, int64_t end) {
        for (int64_t i = begin; i < end; ++i) {
          if (head.soft_cap > 0) body.soft_cap(block.row(i), cols, 1, head.soft_cap);
          Update(body, states[i], block.row(i), cols, v0, targets[r0 + i]);
        }
      });
    }
    for (int64_t i = 0; i < rows; ++i) {
      const RowState& state = states[i];
      log_probs[r0 + i] = static_cast<float>(static_cast<double>(state.target) - state.maximum - std::log(state.sum));
      if (!argmax.empty()) argmax[r0 + i] = state.best;
    }
  }
}

}  // namespace shiftrt
