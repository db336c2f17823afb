// SPDX-License-Identifier: Apache-2.0
#include "kernels/gated_delta.h"

#include <algorithm>
#include <vector>

#include "kernels/cpu/gated_delta_parts.h"
#include "kernels/cpu/simd_body.h"
#include "runtime/parallel.h"

namespace shiftrt {

namespace {

constexpr int64_t kChunk = 64;  // tokens that some columns of a state are taken through before the next columns
constexpr int64_t kRows = 16;   // rows of a convolution that a thread computes at once

// Keeps the last inputs of a sequence for those who go on from it.
void KeepRows(const ConvolutionShape& shape, const DeltaSequence& sequence, MatrixView<const float> x) {
  if (sequence.rows_after == nullptr) return;
  const int64_t channels = shape.channels, kept = shape.width - 1;
  const ConvolutionRows rows(shape, sequence, x);
  std::vector<float> last(kept * channels, 0.0f);  // some of them may be read from where they are written
  for (int64_t j = 0; j < kept; ++j)
    if (const float* row = rows.Of(sequence.count, j)) std::copy_n(row, channels, last.data() + j * channels);
  std::copy(last.begin(), last.end(), sequence.rows_after);
}

// One head of one sequence.
class HeadPass {
 public:
  HeadPass(const SimdBody& body, const GatedDeltaShape& shape, const DeltaInputs& inputs, int64_t head)
      : body_(body),
        shape_(shape),
        inputs_(inputs),
        head_(head),
        columns_(body.delta_columns),
        tiles_((shape.value_dim + columns_ - 1) / columns_),
        state_(tiles_ * shape.key_dim * columns_),
        q_(kChunk * shape.key_dim),
        k_(kChunk * shape.key_dim),
        decay_(kChunk),
        beta_(kChunk) {
    const std::vector<float> a_log = Widened(inputs.a_log), dt_bias = Widened(inputs.dt_bias);
    speed_ = std::exp(static_cast<double>(a_log[head]));
    dt_bias_ = dt_bias[head];
  }

  void Run(const DeltaSequence& sequence, MatrixView<float> out) {
    const int64_t size = shape_.key_dim * shape_.value_dim, dim = shape_.value_dim;
    Load(sequence.state_before == nullptr ? nullptr : sequence.state_before + head_ * size);
    for (int64_t first = 0; first < sequence.count; first += kChunk) {
      const int64_t tokens = std::min(kChunk, sequence.count - first), row = sequence.begin + first;
      Prepare(row, tokens);
      for (int64_t tile = 0; tile < tiles_; ++tile) {
        const int64_t column = head_ * dim + tile * columns_;
        body_.delta_rule({.q = q_.data(),
                          .k = k_.data(),
                          .decay = decay_.data(),
                          .beta = beta_.data(),
                          .v = inputs_.mixed.row(row) + 2 * shape_.keys() + column,
                          .out = out.row(row) + column,
                          .v_stride = inputs_.mixed.stride,
                          .out_stride = out.stride,
                          .tokens = tokens,
                          .key_dim = shape_.key_dim,
                          .columns = std::min(columns_, dim - tile * columns_)},
                         Tile(tile));
      }
    }
    if (sequence.state_after != nullptr) Store(sequence.state_after + head_ * size);
  }

 private:
  float* Tile(int64_t tile) { return state_.data() + tile * shape_.key_dim * columns_; }

  // The state (key_dim, value_dim) as tiles of columns, filled up with zeros.
  void Load(const float* from) {
    std::fill(state_.span().begin(), state_.span().end(), 0.0f);
    if (from != nullptr)
      ForEachRun([&](int64_t at, float* tile, int64_t count) { std::copy_n(from + at, count, tile); });
  }
  void Store(float* to) {
    ForEachRun([&](int64_t at, const float* tile, int64_t count) { std::copy_n(tile, count, to + at); });
  }
  template <typename Visit>
  void ForEachRun(const Visit& visit) {
    const int64_t dim = shape_.value_dim;
    for (int64_t tile = 0; tile < tiles_; ++tile)
      for (int64_t i = 0; i < shape_.key_dim; ++i)
        visit(i * dim + tile * columns_, Tile(tile) + i * columns_, std::min(columns_, dim - tile * columns_));
  }

  // Queries, keys, decays and betas of some rows.
  void Prepare(int64_t row, int64_t tokens) {
    const int64_t dim = shape_.key_dim, at = head_ / (shape_.value_heads / shape_.key_heads) * dim;
    const auto root = static_cast<float>(1 / std::sqrt(static_cast<double>(dim)));
    const auto divided = [&](const float* x, float factor, float* to) {
      factor *= InverseNorm(x, dim);
      for (int64_t i = 0; i < dim; ++i) to[i] = x[i] * factor;
    };
    for (int64_t t = 0; t < tokens; ++t) {
      const float* const mixed = inputs_.mixed.row(row + t);
      divided(mixed + at, root, q_.data() + t * dim);
      divided(mixed + shape_.keys() + at, 1, k_.data() + t * dim);
      decay_[t] = static_cast<float>(std::exp(-speed_ * Softplus(inputs_.a(row + t, head_) + dt_bias_)));
      beta_[t] = static_cast<float>(Sigmoid(inputs_.b(row + t, head_)));
    }
  }

  const SimdBody& body_;
  const GatedDeltaShape& shape_;
  const DeltaInputs& inputs_;
  const int64_t head_, columns_, tiles_;
  Buffer<float> state_, q_, k_, decay_, beta_;
  double speed_ = 0, dt_bias_ = 0;
};

}  // namespace

void CausalConvolution(const Context& context, const ConvolutionShape& shape, std::span<const DeltaSequence> sequences,
                       MatrixView<const float> x, const TensorView& w, MatrixView<float> out) {
  const int64_t channels = shape.channels, width = shape.width;
  CheckConvolutionRows(shape, sequences, x, "the convolution's input");
  CheckConvolutionRows(shape, sequences, out, "the convolution's output");
  const std::vector<float> weights = WeightsByPlace(shape, w);
  const SimdBody& body = BodyFor(context.isa);
  for (const DeltaSequence& sequence : sequences) {
    const ConvolutionRows rows(shape, sequence, x);
    // Few rows are divided by their channels.
    const int64_t parts = sequence.count < kRows ? std::min<int64_t>(channels, 16) : 1;
    const int64_t blocks = (sequence.count + kRows - 1) / kRows;
    ParallelFor(context, blocks * parts, 1, [&](int64_t begin, int64_t end) {
      for (int64_t piece = begin; piece < end; ++piece) {
        const int64_t first = channels * (piece % parts) / parts, last = channels * (piece % parts + 1) / parts;
        const int64_t from = piece / parts * kRows, to = std::min(sequence.count, from + kRows);
        for (int64_t t = from; t < to; ++t) {
          float* const sum = out.row(sequence.begin + t);
          std::fill(sum + first, sum + last, 0.0f);
          for (int64_t j = 0; j < width; ++j) {
            const float *const row = rows.Of(t, j), *const at = weights.data() + j * channels;
            if (row == nullptr) continue;
#pragma omp simd
            for (int64_t c = first; c < last; ++c) sum[c] += at[c] * row[c];
          }
          if (shape.silu) body.swiglu(sum + first, nullptr, last - first);
        }
      }
    });
    KeepRows(shape, sequence, x);
  }
}

void GatedDelta(const Context& context, const GatedDeltaShape& shape, std::span<const DeltaSequence> sequences,
                const DeltaInputs& inputs, MatrixView<float> out) {
  CheckDeltaInputs(shape, sequences, inputs);
  CheckDeltaRows(shape, sequences, out, shape.values(), "the output of a gated delta network");
  const SimdBody& body = BodyFor(context.isa);
  const int64_t heads = shape.value_heads;
  ParallelFor(context, std::ssize(sequences) * heads, 1, [&](int64_t begin, int64_t end) {
    for (int64_t task = begin; task < end; ++task)
      HeadPass(body, shape, inputs, task % heads).Run(sequences[task / heads], out);
  });
}

}  // namespace shiftrt
