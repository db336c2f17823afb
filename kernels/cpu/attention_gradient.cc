// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <atomic>
#include <cmath>
#include <vector>

#include "kernels/attention.h"
#include "kernels/cpu/simd_body.h"
#include "runtime/check.h"
#include "runtime/parallel.h"

namespace shiftrt {

namespace {

// With the probability p = exp(s - log_sum) of a key, a = dout v and D = dout out: dv += p dout, the gradient of the
// score s is p (a - D), and that of q k is scale times this, and times 1 - (s / cap)^2 with a soft cap.
class HeadGradient {
 public:
  HeadGradient(const SimdBody& body, const PackedAttention& attention, MatrixView<const float> out,
               MatrixView<const float> log_sums, MatrixView<const float> dout, const AttentionGradients& gradients)
      : body_(body), attention_(attention), out_(out), log_sums_(log_sums), dout_(dout), gradients_(gradients) {}

  // All queries of one key-value head of one sequence, rows begin .. end - 1.
  void Run(int64_t begin, int64_t end, int64_t kv_head) const {
    const AttentionShape& shape = attention_.shape;
    const int64_t dim = shape.head_dim, group = shape.heads / shape.kv_heads, kv = kv_head * dim;
    for (int64_t t = begin; t < end; ++t) {
      std::fill_n(gradients_.keys.row(t) + kv, dim, 0.0f);
      std::fill_n(gradients_.values.row(t) + kv, dim, 0.0f);
    }
    for (int64_t t = begin; t < end; ++t) {
      const int64_t first = shape.window > 0 ? std::max(begin, t + 1 - shape.window) : begin;
      for (int64_t head = kv_head * group; head < (kv_head + 1) * group; ++head) {
        const float *q = attention_.q.row(t) + head * dim, *dout = dout_.row(t) + head * dim;
        float* dq = gradients_.q.row(t) + head * dim;
        std::fill_n(dq, dim, 0.0f);
        const float drop = body_.dot(dout, out_.row(t) + head * dim, dim);
        for (int64_t j = first; j <= t; ++j) {
          const float *key = attention_.keys.row(j) + kv, *value = attention_.values.row(j) + kv;
          float score = shape.scale * body_.dot(q, key, dim), slope = shape.scale;
          if (shape.soft_cap > 0) {
            const float tanh = std::tanh(score / shape.soft_cap);
            score = shape.soft_cap * tanh;
            slope *= 1 - tanh * tanh;
          }
          const float p = std::exp(score - log_sums_(t, head));
          const float ds = p * (body_.dot(dout, value, dim) - drop) * slope;
          body_.axpy(ds, key, dq, dim);
          body_.axpy(ds, q, gradients_.keys.row(j) + kv, dim);
          body_.axpy(p, dout, gradients_.values.row(j) + kv, dim);
        }
      }
    }
  }

 private:
  const SimdBody& body_;
  const PackedAttention& attention_;
  const MatrixView<const float> out_, log_sums_, dout_;
  const AttentionGradients& gradients_;
};

void CheckShapes(const PackedAttention& attention, MatrixView<const float> out, MatrixView<const float> log_sums,
                 MatrixView<const float> dout, const AttentionGradients& gradients) {
  const AttentionShape& shape = attention.shape;
  Check(shape.kv_heads > 0 && shape.heads % shape.kv_heads == 0 && shape.scale > 0 && shape.window >= 0 &&
            shape.soft_cap >= 0,
        "gradient of attention of {} heads over {} with scale {}, window {} and soft cap {}", shape.heads,
        shape.kv_heads, shape.scale, shape.window, shape.soft_cap);
  const int64_t tokens = attention.q.rows, width = shape.heads * shape.head_dim,
                kv_width = shape.kv_heads * shape.head_dim;
  const auto check = [&](const char* name, MatrixView<const float> x, int64_t cols) {
    Check(x.rows == tokens && x.cols == cols, "gradient of attention: {} is ({}, {}), not ({}, {})", name, x.rows,
          x.cols, tokens, cols);
  };
  check("q", attention.q, width);
  check("keys", attention.keys, kv_width);
  check("values", attention.values, kv_width);
  check("out", out, width);
  check("log_sums", log_sums, shape.heads);
  check("dout", dout, width);
  check("the gradient of q", gradients.q, width);
  check("the gradient of keys", gradients.keys, kv_width);
  check("the gradient of values", gradients.values, kv_width);
  const std::span<const int64_t> offsets = attention.offsets;
  Check(!offsets.empty() && offsets.front() == 0 && offsets.back() == tokens && std::ranges::is_sorted(offsets),
        "gradient of attention: the offsets of the sequences do not cover {} tokens", tokens);
}

}  // namespace

void AttentionGradient(const Context& context, const PackedAttention& attention, MatrixView<const float> out,
                       MatrixView<const float> log_sums, MatrixView<const float> dout,
                       const AttentionGradients& gradients) {
  CheckShapes(attention, out, log_sums, dout, gradients);
  const int64_t kv_heads = attention.shape.kv_heads, items = (std::ssize(attention.offsets) - 1) * kv_heads;
  const HeadGradient gradient(BodyFor(context.isa), attention, out, log_sums, dout, gradients);
  std::atomic<int64_t> next = 0;
  ParallelFor(context, std::min<int64_t>(context.threads, items), 1, [&](int64_t, int64_t) {
    for (int64_t i; (i = next++) < items;)
      gradient.Run(attention.offsets[i / kv_heads], attention.offsets[i / kv_heads + 1], i % kv_heads);
  });
}

}  // namespace shiftrt
