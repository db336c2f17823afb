// SPDX-License-Identifier: Apache-2.0
// The states before each token are needed from the last to the first. Those before every kSegment-th token are kept,
// and those of a segment are computed again when its turn comes.
#include <algorithm>
#include <vector>

#include "kernels/cpu/gated_delta_parts.h"
#include "kernels/cpu/simd_body.h"
#include "kernels/matmul.h"
#include "runtime/parallel.h"

namespace shiftrt {

namespace {

constexpr int64_t kSegment = 16;

// With u = x / sqrt(|x|^2 + eps): dx += scale (du - u (u . du)) / sqrt(|x|^2 + eps).
void NormBackward(const SimdBody& body, const float* unit, float inverse, const float* du, float scale, float* dx,
                  int64_t n) {
  const float along = body.dot(unit, du, n), factor = scale * inverse;
  for (int64_t i = 0; i < n; ++i) dx[i] += factor * (du[i] - unit[i] * along);
}

// One head of one sequence, of which the state is (key_dim, value_dim).
class HeadGradient {
 public:
  HeadGradient(const SimdBody& body, const GatedDeltaShape& shape, const DeltaInputs& inputs, int64_t head)
      : body_(body), shape_(shape), inputs_(inputs), head_(head), keys_(shape.key_dim), values_(shape.value_dim) {
    speed_ = std::exp(static_cast<double>(Widened(inputs.a_log)[head]));
    dt_bias_ = Widened(inputs.dt_bias)[head];
  }

  // Adds to the head's queries and keys in gradients.mixed, which other heads may share, and writes all else.
  void Run(const DeltaSequence& sequence, MatrixView<const float> dout, const DeltaGradients& gradients) {
    const int64_t size = keys_ * values_, segments = (sequence.count + kSegment - 1) / kSegment;
    std::vector<float> starts(segments * size, 0.0f), inside((kSegment + 1) * size);
    Prepare(sequence);
    std::vector<float> state(size, 0.0f);
    for (int64_t t = 0; t < sequence.count; ++t) {
      if (t % kSegment == 0) std::copy(state.begin(), state.end(), starts.begin() + t / kSegment * size);
      Step(sequence.begin + t, tokens_[t], state.data(), state.data());
    }
    dstate_.assign(size, 0.0f);
    for (int64_t segment = segments; segment-- > 0;) {
      const int64_t first = segment * kSegment, count = std::min(kSegment, sequence.count - first);
      std::copy_n(starts.begin() + segment * size, size, inside.begin());
      for (int64_t t = 0; t < count; ++t)
        Step(sequence.begin + first + t, tokens_[first + t], inside.data() + t * size, inside.data() + (t + 1) * size);
      for (int64_t t = count; t-- > 0;)
        Back(sequence.begin + first + t, tokens_[first + t], inside.data() + t * size, inside.data() + (t + 1) * size,
             dout, gradients);
    }
  }
  double da_log() const { return da_log_; }
  double ddt_bias() const { return ddt_bias_; }

 private:
  struct Token {
    std::vector<float> q, k, change;  // unit vectors, and what is added to the state's columns times k
    float inverse_q, inverse_k, decay, beta;
  };

  void Prepare(const DeltaSequence& sequence) {
    tokens_.resize(sequence.count);
    const int64_t at = head_ / (shape_.value_heads / shape_.key_heads) * keys_;
    for (int64_t t = 0; t < sequence.count; ++t) {
      const int64_t row = sequence.begin + t;
      const float *const q = inputs_.mixed.row(row) + at, *const k = q + shape_.keys();
      Token& token = tokens_[t];
      token.inverse_q = InverseNorm(q, keys_);
      token.inverse_k = InverseNorm(k, keys_);
      token.q.assign(q, q + keys_);
      token.k.assign(k, k + keys_);
      for (float& x : token.q) x *= token.inverse_q;
      for (float& x : token.k) x *= token.inverse_k;
      token.change.resize(values_);
      token.decay = static_cast<float>(std::exp(-speed_ * Softplus(inputs_.a(row, head_) + dt_bias_)));
      token.beta = static_cast<float>(Sigmoid(inputs_.b(row, head_)));
    }
  }

  const float* Values(int64_t row) const { return inputs_.mixed.row(row) + 2 * shape_.keys() + head_ * values_; }

  void Step(int64_t row, Token& token, const float* before, float* after) const {
    std::vector<float> held(values_, 0.0f);
    for (int64_t i = 0; i < keys_; ++i)
      body_.axpy(token.k[i] * token.decay, before + i * values_, held.data(), values_);
    for (int64_t j = 0; j < values_; ++j) token.change[j] = token.beta * (Values(row)[j] - held[j]);
    for (int64_t i = 0; i < keys_; ++i)
      for (int64_t j = 0; j < values_; ++j)
        after[i * values_ + j] = token.decay * before[i * values_ + j] + token.k[i] * token.change[j];
  }

  // dstate_ is the gradient of the state after the token, and becomes that of the state before it.
  void Back(int64_t row, const Token& token, const float* before, const float* after, MatrixView<const float> dout,
            const DeltaGradients& gradients) {
    const float root = 1 / std::sqrt(static_cast<float>(keys_));
    const float* const dy = dout.row(row) + head_ * values_;
    const int64_t at = head_ / (shape_.value_heads / shape_.key_heads) * keys_;
    std::vector<float> dq(keys_), dk(keys_), dchange(values_, 0.0f), held(values_, 0.0f);
    for (int64_t i = 0; i < keys_; ++i) {
      dq[i] = body_.dot(after + i * values_, dy, values_);
      body_.axpy(token.q[i] * root, dy, dstate_.data() + i * values_, values_);
      dk[i] = body_.dot(dstate_.data() + i * values_, token.change.data(), values_);
      body_.axpy(token.k[i], dstate_.data() + i * values_, dchange.data(), values_);
      body_.axpy(token.k[i], before + i * values_, held.data(), values_);
    }
    // change = beta (v - decay held), held = before' k.
    double dbeta = 0, ddecay = 0;
    float* const dv = gradients.mixed.row(row) + 2 * shape_.keys() + head_ * values_;
    std::vector<float> dheld(values_);
    for (int64_t j = 0; j < values_; ++j) {
      dv[j] = token.beta * dchange[j];
      dheld[j] = -token.decay * dv[j];
      dbeta += static_cast<double>(dchange[j]) * (Values(row)[j] - token.decay * held[j]);
      ddecay -= static_cast<double>(dv[j]) * held[j];
    }
    for (int64_t i = 0; i < keys_; ++i) {
      float* const d = dstate_.data() + i * values_;
      ddecay += body_.dot(d, before + i * values_, values_);
      dk[i] += body_.dot(before + i * values_, dheld.data(), values_);
      for (int64_t j = 0; j < values_; ++j) d[j] = token.decay * d[j] + token.k[i] * dheld[j];
    }
    float* const mixed = gradients.mixed.row(row) + at;
    NormBackward(body_, token.q.data(), token.inverse_q, dq.data(), root, mixed, keys_);
    NormBackward(body_, token.k.data(), token.inverse_k, dk.data(), 1, mixed + shape_.keys(), keys_);
    gradients.b(row, head_) = static_cast<float>(dbeta * token.beta * (1 - Sigmoid(inputs_.b(row, head_))));
    // decay = exp(-speed softplus(a + dt_bias)), speed = exp(a_log).
    const double input = inputs_.a(row, head_) + dt_bias_, dlog = ddecay * token.decay * -speed_;
    gradients.a(row, head_) = static_cast<float>(dlog * Sigmoid(input));
    ddt_bias_ += dlog * Sigmoid(input);
    da_log_ += dlog * Softplus(input);
  }

  const SimdBody& body_;
  const GatedDeltaShape& shape_;
  const DeltaInputs& inputs_;
  const int64_t head_, keys_, values_;
  double speed_ = 0, dt_bias_ = 0, da_log_ = 0, ddt_bias_ = 0;
  std::vector<Token> tokens_;
  std::vector<float> dstate_;
};

}  // namespace

void CausalConvolutionGradient(const Context& context, const ConvolutionShape& shape,
                               std::span<const DeltaSequence> sequences, MatrixView<const float> x, const TensorView& w,
                               MatrixView<const float> dout, MatrixView<float> dx, MatrixView<float> dw) {
  const int64_t channels = shape.channels, width = shape.width;
  for (const auto& [rows, what] : {std::pair(x, "the convolution's input"), {dout, "its output"}, {dx, "its gradient"}})
    CheckConvolutionRows(shape, sequences, rows, what);
  Check(dw.data == nullptr || dw.rows * dw.cols == channels * width, "gradients of {} weights, expected {}",
        dw.rows * dw.cols, channels * width);
  const std::vector<float> weights = WeightsByPlace(shape, w);
  // Each channel alone, some of them at a time.
  ParallelFor(context, channels, 16, [&](int64_t first, int64_t last) {
    const int64_t n = last - first;
    std::vector<float> dsum(n), sums(width * n, 0.0f);
    for (const DeltaSequence& sequence : sequences) {
      const ConvolutionRows rows(shape, sequence, x);
      for (int64_t t = 0; t < sequence.count; ++t) std::fill_n(dx.row(sequence.begin + t) + first, n, 0.0f);
      for (int64_t t = 0; t < sequence.count; ++t) {
        const float* const dy = dout.row(sequence.begin + t) + first;
        std::fill(dsum.begin(), dsum.end(), 0.0f);
        for (int64_t j = 0; j < width && shape.silu; ++j)
          if (const float* row = rows.Of(t, j))
            for (int64_t c = 0; c < n; ++c) dsum[c] += weights[j * channels + first + c] * row[first + c];
        for (int64_t c = 0; c < n; ++c) {
          const double p = Sigmoid(dsum[c]);
          dsum[c] = shape.silu ? static_cast<float>(dy[c] * (p + dsum[c] * p * (1 - p))) : dy[c];
        }
        for (int64_t j = 0; j < width; ++j) {
          const float* const row = rows.Of(t, j);
          if (row == nullptr) continue;
          float* const to = dx.row(sequence.begin + t - (width - 1) + j) + first;
          for (int64_t c = 0; c < n; ++c) {
            to[c] += weights[j * channels + first + c] * dsum[c];
            sums[j * n + c] += row[first + c] * dsum[c];
          }
        }
      }
    }
    if (dw.data == nullptr) return;
    for (int64_t c = 0; c < n; ++c)
      for (int64_t j = 0; j < width; ++j) dw.data[(first + c) * width + j] += sums[j * n + c];
  });
}

void GatedDeltaGradient(const Context& context, const GatedDeltaShape& shape, std::span<const DeltaSequence> sequences,
                        const DeltaInputs& inputs, MatrixView<const float> dout, const DeltaGradients& gradients) {
  CheckDeltaInputs(shape, sequences, inputs);
  CheckDeltaRows(shape, sequences, dout, shape.values(), "the gradient of a gated delta network's output");
  const int64_t heads = shape.value_heads, together = heads / shape.key_heads;
  std::vector<double> da_log(heads * std::ssize(sequences)), ddt_bias(da_log.size());
  const SimdBody& body = BodyFor(context.isa);
  ParallelFor(context, std::ssize(sequences) * shape.key_heads, 1, [&](int64_t begin, int64_t end) {
    for (int64_t task = begin; task < end; ++task) {
      const int64_t s = task / shape.key_heads, key_head = task % shape.key_heads;
      const DeltaSequence& sequence = sequences[s];
      for (int64_t t = 0; t < sequence.count; ++t) {
        float* const row = gradients.mixed.row(sequence.begin + t) + key_head * shape.key_dim;
        std::fill_n(row, shape.key_dim, 0.0f);
        std::fill_n(row + shape.keys(), shape.key_dim, 0.0f);
      }
      for (int64_t head = key_head * together; head < (key_head + 1) * together; ++head) {
        HeadGradient of_head(body, shape, inputs, head);
        of_head.Run(sequence, dout, gradients);
        da_log[s * heads + head] = of_head.da_log();
        ddt_bias[s * heads + head] = of_head.ddt_bias();
      }
    }
  });
  for (int64_t s = 0; s < std::ssize(sequences); ++s)
    for (int64_t head = 0; head < heads; ++head) {
      if (gradients.a_log.data != nullptr) gradients.a_log(0, head) += static_cast<float>(da_log[s * heads + head]);
      if (gradients.dt_bias.data != nullptr)
        gradients.dt_bias(0, head) += static_cast<float>(ddt_bias[s * heads + head]);
    }
}

}  // namespace shiftrt
