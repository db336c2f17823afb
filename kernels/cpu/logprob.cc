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
// A head's gradient is read and written once per block of rows, and its weights once per product.
constexpr int64_t kGradientRows = 1024;
constexpr int64_t kKeptLogits = int64_t{1} << 25;  // that a loss holds at once, with those of a teacher
constexpr int64_t kPart = 256;                     // logits of a row that become gradients at a time

struct RowState {
  float maximum = -std::numeric_limits<float>::infinity();
  double sum = 0;  // of exp(logit - maximum)
  float target = 0;
  int32_t best = 0;
};

// Rows v0 .. v0 + cols of the head's weights.
TensorView WeightRows(const OutputHead& head, int64_t v0, int64_t cols) {
  const auto row_bytes = BytesOf(head.w.dtype, head.w.cols());
  return {static_cast<const std::byte*>(head.w.data) + v0 * row_bytes, head.w.dtype, {cols, head.w.cols()}};
}

void CheckTargets(std::span<const int32_t> targets, int64_t rows, int64_t vocab) {
  Check(std::ssize(targets) == rows, "scores of {} targets for {} rows", targets.size(), rows);
  for (int32_t target : targets)
    Check(target >= 0 && target < vocab, "target {} is outside the vocabulary of {}", target, vocab);
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

// Adds a block of at most kVocabBlock logits to the row's state.
void Update(const SimdBody& body, RowState& state, const float* logits, int64_t count, int64_t first, int32_t target) {
  float exponentials[kVocabBlock];
  std::copy_n(logits, count, exponentials);
  const float largest = Largest(logits, count);
  if (largest > state.maximum) {
    state.sum *= std::exp(static_cast<double>(state.maximum) - largest);
    state.maximum = largest;
    state.best = static_cast<int32_t>(first + (std::find(logits, logits + count, largest) - logits));
  }
  if (target >= first && target < first + count) state.target = logits[target - first];
  state.sum += body.exponentiate(exponentials, count, state.maximum);
}

// The states of all rows of x after the whole vocabulary. `logits` is left with the capped logits: of the whole
// vocabulary if it has so many columns, else of the last block of kVocabBlock.
std::vector<RowState> RowStates(const Context& context, MatrixView<const float> x, const OutputHead& head,
                                std::span<const int32_t> targets, MatrixView<float> logits) {
  const SimdBody& body = BodyFor(context.isa);
  std::vector<RowState> states(x.rows);
  const int64_t vocab = head.w.rows();
  for (int64_t v0 = 0; v0 < vocab; v0 += kVocabBlock) {
    const MatrixView<float> block =
        logits.Rows(0, x.rows).Cols(logits.cols == vocab ? v0 : 0, std::min(kVocabBlock, vocab - v0));
    MatMul(context, x, WeightRows(head, v0, block.cols), {}, false, block);
    ParallelFor(context, x.rows, 4, [&](int64_t begin, int64_t end) {
      for (int64_t i = begin; i < end; ++i) {
        if (head.soft_cap > 0) body.soft_cap(block.row(i), block.cols, 1, head.soft_cap);
        Update(body, states[i], block.row(i), block.cols, v0, targets[i]);
      }
    });
  }
  return states;
}

// The distance of two rows of logits for the whole vocabulary. It is no power of two, which would put the rows into the
// same places of a cache.
int64_t LogitsStride(int64_t vocab) { return (vocab + 15) / 16 * 16 + 16; }

// Part of a row's capped logits, and the probabilities that they stand for.
struct Probabilities {
  float logits[kPart], values[kPart];

  void Set(const SimdBody& body, const float* capped, int64_t count, const RowState& state) {
    std::copy_n(capped, count, logits);
    std::copy_n(capped, count, values);
    body.exponentiate(values, count, state.maximum);
    const auto inverse = static_cast<float>(1 / state.sum);
    for (int64_t j = 0; j < count; ++j) values[j] *= inverse;
  }
};

// The loss of one row, for a part of its capped logits.
class RowLoss {
 public:
  RowLoss(const SimdBody& body, const HeadLoss& loss) : body_(body), loss_(loss) {}

  // The part's share of the divergence.
  double Divergence(const RowState& state, const float* logits, const RowState& teacher, const float* teacher_logits,
                    int64_t count) const {
    Probabilities others;
    double divergence = 0;
    for (int64_t at = 0; at < count; at += kPart) {
      const int64_t n = std::min(kPart, count - at);
      others.Set(body_, teacher_logits + at, n, teacher);
      divergence += Divergence(logits + at, state, others, teacher, n);
    }
    return divergence;
  }

  // The same, and the logits are replaced by `scale` times the gradients of the loss. teacher and teacher_logits may be
  // null.
  double Gradient(float scale, const RowState& state, float* logits, const RowState* teacher,
                  const float* teacher_logits, int64_t count) const {
    const float both = loss_.cross_entropy + loss_.divergence;
    Probabilities own, others;
    double divergence = 0;
    for (int64_t at = 0; at < count; at += kPart) {
      const int64_t n = std::min(kPart, count - at);
      float* out = logits + at;
      own.Set(body_, out, n, state);
      if (teacher != nullptr) {
        others.Set(body_, teacher_logits + at, n, *teacher);
        divergence += Divergence(own.logits, state, others, *teacher, n);
        for (int64_t j = 0; j < n; ++j) out[j] = scale * (both * own.values[j] - loss_.divergence * others.values[j]);
      } else {
        for (int64_t j = 0; j < n; ++j) out[j] = scale * loss_.cross_entropy * own.values[j];
      }
      if (loss_.head.soft_cap > 0)
        for (int64_t j = 0; j < n; ++j) out[j] *= CapSlope(own.logits[j]);
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
  static double Divergence(const float* logits, const RowState& state, const Probabilities& others,
                           const RowState& teacher, int64_t n) {
    const double offset =
        (state.maximum - static_cast<double>(teacher.maximum)) + (std::log(state.sum) - std::log(teacher.sum));
    double sum = 0;
    for (int64_t j = 0; j < n; ++j)
      sum += others.values[j] * (static_cast<double>(others.logits[j]) - logits[j] + offset);
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
  const bool measures = dx.data == nullptr && dw.data == nullptr;
  Check(w.cols() == x.cols && (measures || (dx.rows == x.rows && dx.cols == x.cols)) &&
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
  const Buffer<float> memory(std::min(kRowBlock, x.rows) * kVocabBlock);
  const MatrixView<float> logits(memory.data(), std::min(kRowBlock, x.rows), kVocabBlock);
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
  if (x.rows == 0) return;
  const bool taught = loss.divergence != 0, measures = dx.data == nullptr;
  const int64_t vocab = loss.head.w.rows();
  const int64_t models = taught ? 2 : 1;
  const int64_t most = std::clamp<int64_t>(kKeptLogits / models / vocab / 32 * 32, 32, kGradientRows);
  const int64_t blocks = (x.rows + most - 1) / most, each = (x.rows + blocks - 1) / blocks;
  const int64_t stride = LogitsStride(vocab);
  Buffer<float> own;
  Buffer<float>& memory = loss.logits != nullptr ? *loss.logits : own;
  memory.Reserve(models * each * stride);
  const RowLoss row_loss(BodyFor(context.isa), loss);
  for (int64_t r0 = 0; r0 < x.rows; r0 += each) {
    const int64_t rows = std::min(each, x.rows - r0);
    const MatrixView<const float> in = x.Rows(r0, rows);
    const MatrixView<float> logits(memory.data(), rows, vocab, stride),
        teacher_logits(memory.data() + (taught ? each * stride : 0), taught ? rows : 0, vocab, stride);
    const std::span<const int32_t> targets = loss.targets.subspan(r0, rows);
    const std::vector<RowState> states = RowStates(context, in, loss.head, targets, logits);
    std::vector<RowState> teacher_states;
    if (taught)
      teacher_states = RowStates(context, loss.teacher.Rows(r0, rows), *loss.teacher_head, targets, teacher_logits);
    std::vector<double> divergences(rows);
    // One part of the vocabulary after another, which the products find in a cache.
    for (int64_t v0 = 0; v0 < vocab && (taught || !measures); v0 += kVocabBlock) {
      const int64_t cols = std::min(kVocabBlock, vocab - v0);
      const MatrixView<float> block = logits.Cols(v0, cols);
      ParallelFor(context, rows, 4, [&](int64_t begin, int64_t end) {
        for (int64_t i = begin; i < end; ++i) {
          const float* const others = taught ? teacher_logits.row(i) + v0 : nullptr;
          if (measures) {
            divergences[i] += row_loss.Divergence(states[i], block.row(i), teacher_states[i], others, cols);
            continue;
          }
          const float scale = scales[r0 + i];
          divergences[i] +=
              row_loss.Gradient(scale, states[i], block.row(i), taught ? &teacher_states[i] : nullptr, others, cols);
          const int64_t target = targets[i] - v0;
          if (target < 0 || target >= cols) continue;
          const float slope = loss.head.soft_cap > 0 ? row_loss.CapSlope(states[i].target) : 1.0f;
          block(i, target) -= scale * loss.cross_entropy * slope;
        }
      });
      if (measures) continue;
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
