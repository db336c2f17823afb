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
constexpr int64_t kGradientRows = 1024;  // a head's gradient is read and written once per block of rows
constexpr int64_t kPart = 256;           // logits of a row that become gradients at a time

struct RowState {
  float maximum = -std::numeric_limits<float>::infinity();
  double sum = 0;  // of exp(logit - maximum)
  float target = 0;
  int32_t best = 0;
};

// Rows v0 .. v0 + cols of the head's weights.
TensorView WeightRows(const OutputHead& head, int64_t v0, int64_t cols) {
  const auto row_bytes = head.w.cols() * static_cast<int64_t>(SizeOf(head.w.dtype));
  return {static_cast<const std::byte*>(head.w.data) + v0 * row_bytes, head.w.dtype, {cols, head.w.cols()}};
}

void CheckTargets(std::span<const int32_t> targets, int64_t rows, int64_t vocab) {
  Check(std::ssize(targets) == rows, "scores of {} targets for {} rows", targets.size(), rows);
  for (int32_t target : targets)
    Check(target >= 0 && target < vocab, "target {} is outside the vocabulary of {}", target, vocab);
}

// The logits of x for part of the vocabulary, before the soft cap.
void Logits(const Context& context, MatrixView<const float> x, const OutputHead& head, int64_t v0,
            MatrixView<float> logits) {
  MatMul(context, x, WeightRows(head, v0, logits.cols), {}, false, logits);
}

// The largest value, computed in lanes whose comparisons do not wait for one another. NaN is skipped.
float Largest(const float* values, int64_t count) {
  constexpr int64_t kLanes = 16;
  float lanes[kLanes];
  std::fill_n(lanes, kLanes, -std::numeric_limits<float>::infinity());
  int64_t i = 0;
  for (; i + kLanes <= count; i += kLanes)
    for (int64_t lane = 0; lane < kLanes; ++lane)
      lanes[lane] = values[i + lane] > lanes[lane] ? values[i + lane] : lanes[lane];
  float largest = *std::max_element(lanes, lanes + kLanes);
  for (; i < count; ++i) largest = values[i] > largest ? values[i] : largest;
  return largest;
}

// Adds a block of logits to the row's state. Overwrites the logits.
void Update(const SimdBody& body, RowState& state, float* logits, int64_t count, int64_t first, int32_t target) {
  const float largest = Largest(logits, count);
  if (largest > state.maximum) {
    state.sum *= std::exp(static_cast<double>(state.maximum) - largest);
    state.maximum = largest;
    state.best = static_cast<int32_t>(first + (std::find(logits, logits + count, largest) - logits));
  }
  if (target >= first && target < first + count) state.target = logits[target - first];
  state.sum += body.exponentiate(logits, count, state.maximum);
}

// The states of all rows of x after the whole vocabulary. `logits` has room for a block of it.
std::vector<RowState> RowStates(const Context& context, MatrixView<const float> x, const OutputHead& head,
                                std::span<const int32_t> targets, const Buffer<float>& logits) {
  const SimdBody& body = BodyFor(context.isa);
  std::vector<RowState> states(x.rows);
  for (int64_t v0 = 0; v0 < head.w.rows(); v0 += kVocabBlock) {
    const MatrixView<float> block(logits.data(), x.rows, std::min(kVocabBlock, head.w.rows() - v0));
    Logits(context, x, head, v0, block);
    ParallelFor(context, x.rows, 4, [&](int64_t begin, int64_t end) {
      for (int64_t i = begin; i < end; ++i) {
        if (head.soft_cap > 0) body.soft_cap(block.row(i), block.cols, 1, head.soft_cap);
        Update(body, states[i], block.row(i), block.cols, v0, targets[i]);
      }
    });
  }
  return states;
}

// Part of a row's logits as probabilities, and the capped logits that they were computed from.
struct Probabilities {
  float capped[kPart], values[kPart];

  void Set(const SimdBody& body, const float* logits, int64_t count, float soft_cap, const RowState& state) {
    std::copy_n(logits, count, capped);
    if (soft_cap > 0) body.soft_cap(capped, count, 1, soft_cap);
    std::copy_n(capped, count, values);
    body.exponentiate(values, count, state.maximum);
    const auto inverse = static_cast<float>(1 / state.sum);
    for (int64_t j = 0; j < count; ++j) values[j] *= inverse;
  }
};

// The loss of one row, for a block of its logits, which are replaced by `scale` times the gradients of the loss.
class RowLoss {
 public:
  RowLoss(const SimdBody& body, const HeadLoss& loss) : body_(body), loss_(loss) {}

  // teacher_logits and teacher may be null. Returns the block's part of the divergence.
  double Gradient(float scale, const RowState& state, float* logits, const RowState* teacher,
                  const float* teacher_logits, int64_t count) const {
    const float cap = loss_.head.soft_cap, both = loss_.cross_entropy + loss_.divergence;
    Probabilities own, others;
    double divergence = 0;
    for (int64_t at = 0; at < count; at += kPart) {
      const int64_t n = std::min(kPart, count - at);
      float* out = logits + at;
      own.Set(body_, out, n, cap, state);
      if (teacher != nullptr) {
        others.Set(body_, teacher_logits + at, n, loss_.teacher_head->soft_cap, *teacher);
        divergence += Divergence(own, state, others, *teacher, n);
        for (int64_t j = 0; j < n; ++j) out[j] = scale * (both * own.values[j] - loss_.divergence * others.values[j]);
      } else {
        for (int64_t j = 0; j < n; ++j) out[j] = scale * loss_.cross_entropy * own.values[j];
      }
      if (cap > 0)
        for (int64_t j = 0; j < n; ++j) out[j] *= CapSlope(own.capped[j]);
    }
    return divergence;
  }

  // The derivative of a soft cap whose result is `capped`.
  float CapSlope(float capped) const {
    const float tanh = capped / loss_.head.soft_cap;
    return 1 - tanh * tanh;
  }

 private:
  // The sum of p log(p / q) over part of the vocabulary, with the teacher's probabilities p and the student's q.
  static double Divergence(const Probabilities& own, const RowState& state, const Probabilities& others,
                           const RowState& teacher, int64_t n) {
    const double offset =
        (state.maximum - static_cast<double>(teacher.maximum)) + (std::log(state.sum) - std::log(teacher.sum));
    double sum = 0;
    for (int64_t j = 0; j < n; ++j)
      sum += others.values[j] * (static_cast<double>(others.capped[j]) - own.capped[j] + offset);
    return sum;
  }

  const SimdBody& body_;
  const HeadLoss& loss_;
};

void CheckHeadLoss(MatrixView<const float> x, const HeadLoss& loss, std::span<const float> scales,
                   std::span<float> losses, MatrixView<float> dx, MatrixView<float> dw) {
  const TensorView& w = loss.head.w;
  CheckTargets(loss.targets, x.rows, w.rows());
  Check(std::ssize(scales) == x.rows && std::ssize(losses) == x.rows, "{} scales and {} losses for {} rows",
        scales.size(), losses.size(), x.rows);
  Check(dx.rows == x.rows && dx.cols == x.cols && w.cols() == x.cols &&
            (dw.data == nullptr || (dw.rows == w.rows() && dw.cols == x.cols)),
        "gradients ({}, {}) and ({}, {}) of a head [{}] do not fit rows ({}, {})", dx.rows, dx.cols, dw.rows, dw.cols,
        fmt::join(w.shape, ", "), x.rows, x.cols);
  if (loss.divergence == 0) return;
  Check(loss.teacher_head != nullptr && loss.teacher.rows == x.rows && loss.teacher_head->w.rows() == w.rows() &&
            loss.teacher_head->w.cols() == loss.teacher.cols,
        "a divergence from {} rows of a teacher with a vocabulary of {}, for {} rows and a vocabulary of {}",
        loss.teacher.rows, loss.teacher_head == nullptr ? 0 : loss.teacher_head->w.rows(), x.rows, w.rows());
}

}  // namespace

int64_t TokenLogProbsBytes(int64_t rows) {
  return std::min(kRowBlock, rows) * kVocabBlock * static_cast<int64_t>(sizeof(float));
}

void TokenLogProbs(const Context& context, MatrixView<const float> x, const OutputHead& head,
                   std::span<const int32_t> targets, std::span<float> log_probs, std::span<int32_t> argmax) {
  CheckTargets(targets, x.rows, head.w.rows());
  Check(log_probs.size() == targets.size() && (argmax.empty() || argmax.size() == targets.size()),
        "{} log probabilities and {} most likely tokens of {} targets", log_probs.size(), argmax.size(),
        targets.size());
  const Buffer<float> logits(std::min(kRowBlock, x.rows) * kVocabBlock);
  for (int64_t r0 = 0; r0 < x.rows; r0 += kRowBlock) {
    const int64_t rows = std::min(kRowBlock, x.rows - r0);
    const std::vector<RowState> states = RowStates(context, x.Rows(r0, rows), head, targets.subspan(r0, rows), logits);
    for (int64_t i = 0; i < rows; ++i) {
      const RowState& state = states[i];
      log_probs[r0 + i] = static_cast<float>(static_cast<double>(state.target) - state.maximum - std::log(state.sum));
      if (!argmax.empty()) argmax[r0 + i] = state.best;
    }
  }
}

void HeadLossGradient(const Context& context, MatrixView<const float> x, const HeadLoss& loss,
                      std::span<const float> scales, std::span<float> losses, MatrixView<float> dx,
                      MatrixView<float> dw) {
  CheckHeadLoss(x, loss, scales, losses, dx, dw);
  const int64_t vocab = loss.head.w.rows(), most_rows = std::min(kGradientRows, x.rows);
  const bool taught = loss.divergence != 0;
  const Buffer<float> logits(most_rows * kVocabBlock), teacher_logits(taught ? most_rows * kVocabBlock : 0);
  const RowLoss row_loss(BodyFor(context.isa), loss);
  for (int64_t r0 = 0; r0 < x.rows; r0 += kGradientRows) {
    const int64_t rows = std::min(kGradientRows, x.rows - r0);
    const MatrixView<const float> in = x.Rows(r0, rows);
    const MatrixView<const float> teacher = taught ? loss.teacher.Rows(r0, rows) : MatrixView<const float>();
    const std::span<const int32_t> targets = loss.targets.subspan(r0, rows);
    const std::vector<RowState> states = RowStates(context, in, loss.head, targets, logits);
    std::vector<RowState> teacher_states;
    if (taught) teacher_states = RowStates(context, teacher, *loss.teacher_head, targets, teacher_logits);
    std::vector<double> divergences(rows);
    for (int64_t v0 = 0; v0 < vocab; v0 += kVocabBlock) {
      const int64_t cols = std::min(kVocabBlock, vocab - v0);
      const MatrixView<float> block(logits.data(), rows, cols), teacher_block(teacher_logits.data(), rows, cols);
      Logits(context, in, loss.head, v0, block);
      if (taught) Logits(context, teacher, *loss.teacher_head, v0, teacher_block);
      ParallelFor(context, rows, 4, [&](int64_t begin, int64_t end) {
        for (int64_t i = begin; i < end; ++i) {
          const float scale = scales[r0 + i];
          divergences[i] += row_loss.Gradient(scale, states[i], block.row(i), taught ? &teacher_states[i] : nullptr,
                                              taught ? teacher_block.row(i) : nullptr, cols);
          const int64_t target = targets[i] - v0;
          if (target < 0 || target >= cols) continue;
          const float slope = loss.head.soft_cap > 0 ? row_loss.CapSlope(states[i].target) : 1.0f;
          block(i, target) -= scale * loss.cross_entropy * slope;
        }
      });
      MatMulInputGradient(context, block, WeightRows(loss.head, v0, cols), v0 > 0, dx.Rows(r0, rows));
      if (dw.data != nullptr) MatMulWeightGradient(context, block, in, dw.Rows(v0, cols));
    }
    for (int64_t i = 0; i < rows; ++i) {
      const double entropy = states[i].maximum + std::log(states[i].sum) - states[i].target;
      losses[r0 + i] = static_cast<float>(loss.cross_entropy * entropy + loss.divergence * divergences[i]);
    }
  }
}

}  // namespace shiftrt
