// SPDX-License-Identifier: Apache-2.0
// The parts that the gated delta rule and its gradients share.
#pragma once

#include <cmath>

#include "kernels/gated_delta.h"
#include "kernels/widen.h"
#include "runtime/check.h"

namespace shiftrt {

// Added to the squared norms of queries and keys, as transformers does.
constexpr double kDeltaEps = 1e-6;

inline double Sigmoid(double x) { return 1 / (1 + std::exp(-x)); }
inline double Softplus(double x) { return x > 20 ? x : std::log1p(std::exp(x)); }

// The reciprocal of the norm of x (n).
inline float InverseNorm(const float* x, int64_t n) {
  double squares = kDeltaEps;
#pragma omp simd reduction(+ : squares)
  for (int64_t i = 0; i < n; ++i) squares += static_cast<double>(x[i]) * x[i];
  return static_cast<float>(1 / std::sqrt(squares));
}

// The convolution's input rows of a token: rows[j] is that of the token width - 1 - j before it, or null before the
// beginning.
class ConvolutionRows {
 public:
  ConvolutionRows(const ConvolutionShape& shape, const DeltaSequence& sequence, MatrixView<const float> x)
      : width_(shape.width), channels_(shape.channels), sequence_(sequence), x_(x) {}
  // Row j of token `t` of the sequence.
  const float* Of(int64_t t, int64_t j) const {
    const int64_t at = t - (width_ - 1) + j;
    if (at >= 0) return x_.row(sequence_.begin + at);
    return sequence_.rows_before != nullptr ? sequence_.rows_before + (width_ - 1 + at) * channels_ : nullptr;
  }

 private:
  int64_t width_, channels_;
  const DeltaSequence& sequence_;
  MatrixView<const float> x_;
};

// The weights of the convolution by their place: w[j * channels + c].
inline std::vector<float> WeightsByPlace(const ConvolutionShape& shape, const TensorView& w) {
  const auto [channels, width, silu] = shape;
  Check(w.elements() == channels * width, "a convolution with {} weights, expected {} channels of {}", w.elements(),
        channels, width);
  const std::vector<float> wide = Widened(w);
  std::vector<float> by_place(wide.size());
  for (int64_t c = 0; c < channels; ++c)
    for (int64_t j = 0; j < width; ++j) by_place[j * channels + c] = wide[c * width + j];
  return by_place;
}

inline void CheckRecurrentRows(std::span<const DeltaSequence> sequences, MatrixView<const float> x, int64_t cols,
                               const char* what) {
  Check(x.cols == cols, "{} has {} columns, expected {}", what, x.cols, cols);
  for (const DeltaSequence& s : sequences)
    Check(s.begin >= 0 && s.count >= 0 && s.begin + s.count <= x.rows,
          "a sequence of the rows {} to {}, but {} has {} rows", s.begin, s.begin + s.count, what, x.rows);
}

inline void CheckConvolutionRows(const ConvolutionShape& shape, std::span<const DeltaSequence> sequences,
                                 MatrixView<const float> x, const char* what) {
  CheckRecurrentRows(sequences, x, shape.channels, what);
  Check(shape.width > 0, "a convolution over {} tokens", shape.width);
}

inline void CheckDeltaRows(const GatedDeltaShape& shape, std::span<const DeltaSequence> sequences,
                           MatrixView<const float> x, int64_t cols, const char* what) {
  CheckRecurrentRows(sequences, x, cols, what);
  Check(shape.key_heads > 0 && shape.value_heads % shape.key_heads == 0 && shape.conv_width > 0,
        "a gated delta network of {} heads for {} heads of keys, and a convolution over {}", shape.value_heads,
        shape.key_heads, shape.conv_width);
}

inline void CheckDeltaInputs(const GatedDeltaShape& shape, std::span<const DeltaSequence> sequences,
                             const DeltaInputs& inputs) {
  CheckDeltaRows(shape, sequences, inputs.mixed, shape.channels(), "the convolution's output");
  CheckDeltaRows(shape, sequences, inputs.a, shape.value_heads, "the input of a gated delta network's decay");
  CheckDeltaRows(shape, sequences, inputs.b, shape.value_heads, "the input of a gated delta network's beta");
  Check(inputs.a_log.elements() == shape.value_heads && inputs.dt_bias.elements() == shape.value_heads,
        "a_log of {} and dt_bias of {} elements for {} heads", inputs.a_log.elements(), inputs.dt_bias.elements(),
        shape.value_heads);
}

}  // namespace shiftrt
