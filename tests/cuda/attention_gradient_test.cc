// SPDX-License-Identifier: Apache-2.0
#include "kernels/cuda/attention.h"
#include "tests/cuda/fixture.h"

namespace shiftrt::gpu {
namespace {

AttentionShape Shape(int heads, int kv_heads, int head_dim, int window = 0, float soft_cap = 0) {
  return {heads, kv_heads, head_dim, 1 / std::sqrt(static_cast<float>(head_dim)), window, soft_cap};
}

// A gradient in float64, and the sum that each element's error is relative to.
struct Expected {
  explicit Expected(int64_t count) : value(count), size(count) {}
  std::vector<double> value, size;
};

class AttentionGradientOnGpu : public CudaTest {
 protected:
  template <typename T>
  void Check(const AttentionShape& shape, const std::vector<int>& lengths, double q_scale = 1) {
    const int64_t d = shape.head_dim, q_dim = shape.heads * d, kv_dim = shape.kv_heads * d;
    std::vector<PackedSequence> sequences;
    int32_t tokens = 0, longest = 0;
    for (const int32_t count : lengths) {
      sequences.push_back({tokens, count, 0, tokens});
      tokens += count;
      longest = std::max(longest, count);
    }
    const auto q = Input<T>::Normal(stream_, tokens * q_dim, 1, q_scale),
               keys = Input<T>::Normal(stream_, tokens * kv_dim, 2),
               values = Input<T>::Normal(stream_, tokens * kv_dim, 3),
               dout = Input<T>::Normal(stream_, tokens * q_dim, 4);

    // The forward pass in float64. The kernel is given its results in their types, and the oracle goes on from these.
    const auto score_of = [&](int64_t i, int64_t k, int64_t head, double* size, double* slope) {
      const int64_t at = i * q_dim + head * d, kv_at = k * kv_dim + head / (shape.heads / shape.kv_heads) * d;
      double score = 0;
      for (int64_t j = 0; j < d; ++j) {
        const double term = q[at + j] * keys[kv_at + j] * static_cast<double>(shape.scale);
        score += term;
        *size += std::abs(term);
      }
      if (shape.soft_cap == 0) return score;
      const auto cap = static_cast<double>(shape.soft_cap);
      const double tanh = std::tanh(score / cap);
      *slope = 1 - tanh * tanh;
      return cap * tanh;
    };
    const auto first_key = [&](const PackedSequence& s, int64_t i) {
      return std::max<int64_t>(s.begin, shape.window > 0 ? i + 1 - shape.window : 0);
    };
    std::vector<double> attended(tokens * q_dim), sums(tokens * shape.heads);
    for (const PackedSequence& s : sequences) {
      for (int64_t i = s.begin; i < s.begin + s.count; ++i) {
        for (int64_t h = 0; h < shape.heads; ++h) {
          double sum = 0, size = 0, slope = 1;
          for (int64_t k = first_key(s, i); k <= i; ++k) {
            const double weight = std::exp(score_of(i, k, h, &size, &slope));
            sum += weight;
            for (int64_t j = 0; j < d; ++j)
              attended[i * q_dim + h * d + j] +=
                  weight * values[k * kv_dim + h / (shape.heads / shape.kv_heads) * d + j];
          }
          for (int64_t j = 0; j < d; ++j) attended[i * q_dim + h * d + j] /= sum;
          sums[i * shape.heads + h] = std::log(sum);
        }
      }
    }
    const Input<T> out(stream_, attended);
    const Input<float> log_sums(stream_, sums);

    Expected dq(tokens * q_dim), dkeys(tokens * kv_dim), dvalues(tokens * kv_dim);
    // In T only the weights and the gradients of scores are rounded.
    const double rounding = sizeof(T) == 2 ? kUnit<T> : 0, unit = kUnit<float>;
    for (const PackedSequence& s : sequences) {
      for (int64_t i = s.begin; i < s.begin + s.count; ++i) {
        for (int64_t h = 0; h < shape.heads; ++h) {
          const int64_t at = i * q_dim + h * d;
          double delta = 0;
          for (int64_t j = 0; j < d; ++j) delta += out[at + j] * dout[at + j];
          for (int64_t k = first_key(s, i); k <= i; ++k) {
            const int64_t kv_at = k * kv_dim + h / (shape.heads / shape.kv_heads) * d;
            double size = 0, slope = 1, product = 0, product_size = 0;
            const double log_sum = log_sums[i * shape.heads + h];
            const double weight = std::exp(score_of(i, k, h, &size, &slope) - log_sum);
            for (int64_t j = 0; j < d; ++j) {
              product += dout[at + j] * values[kv_at + j];
              product_size += std::abs(dout[at + j] * values[kv_at + j]);
            }
            const double scale = static_cast<double>(shape.scale), dscore = weight * (product - delta) * slope * scale;
            // The relative error of a weight is the absolute error of its score. Sums run over the keys or the queries.
            const double weight_error = rounding + unit * (32 + 24 * size + 4 * std::abs(log_sum) + 2 * tokens);
            const double dscore_error =
                std::abs(weight * scale) * ((std::abs(product) + std::abs(delta)) * weight_error +
                                            static_cast<double>(2 * d) * unit * product_size);
            for (int64_t j = 0; j < d; ++j) {
              dq.value[at + j] += dscore * keys[kv_at + j];
              dq.size[at + j] += dscore_error * std::abs(keys[kv_at + j]);
              dkeys.value[kv_at + j] += dscore * q[at + j];
              dkeys.size[kv_at + j] += dscore_error * std::abs(q[at + j]);
              dvalues.value[kv_at + j] += weight * dout[at + j];
              dvalues.size[kv_at + j] += weight * weight_error * std::abs(dout[at + j]);
            }
          }
        }
      }
    }

    const DeviceBuffer<PackedSequence> device(stream_, std::span<const PackedSequence>(sequences), "a test");
    const Output<float> deltas(stream_, tokens * shape.heads), found_q(stream_, tokens * q_dim),
        found_keys(stream_, tokens * kv_dim), found_values(stream_, tokens * kv_dim);
    AttendGradient(stream_, {.shape = shape,
                             .q = q.array(),
                             .out = out.array(),
                             .dout = dout.array(),
                             .keys = keys.array(),
                             .values = values.array(),
                             .log_sums = log_sums.data(),
                             .sequences = device.data(),
                             .sequence_count = static_cast<int64_t>(sequences.size()),
                             .longest = longest,
                             .tokens = tokens,
                             .deltas = deltas.data(),
                             .dq = found_q.data(),
                             .dkeys = found_keys.data(),
                             .dvalues = found_values.data()});
    const auto expect = [&](const char* what, const Output<float>& found, const Expected& expected) {
      SCOPED_TRACE(what);
      const std::vector<double> all = found.Values();
      for (size_t i = 0; i < all.size(); ++i)
        EXPECT_CLOSE(all[i], expected.value[i], 1.01 * expected.size[i] + 1e-30, static_cast<int64_t>(i));
    };
    expect("queries", found_q, dq);
    expect("keys", found_keys, dkeys);
    expect("values", found_values, dvalues);
  }
};

TEST_F(AttentionGradientOnGpu, AgreesWithFloat64) {
  for (const int d : {64, 80, 96, 128, 256}) {
    SCOPED_TRACE(d);
    Check<BFloat16>(Shape(2, 1, d), {1, 37, 17});
    Check<float>(Shape(2, 2, d), {35});
  }
  Check<BFloat16>(Shape(6, 2, 64), {64, 70, 32});
  for (const int d : {64, 256}) Check<BFloat16>(Shape(1, 1, d), {150});  // several blocks
  Check<float>(Shape(3, 1, 64), {100, 5});
  Check<BFloat16>(Shape(1, 1, 128), {50}, 30);  // all weights but one vanish
}

// Tests windows of one key, within a tile, across tiles and wider than the sequence, with and without a soft cap.
TEST_F(AttentionGradientOnGpu, TakesAWindowAndASoftCap) {
  for (const float soft_cap : {0.0f, 2.0f}) {
    for (const int window : {1, 5, 64, 500}) {
      SCOPED_TRACE(window);
      Check<BFloat16>(Shape(2, 1, 64, window, soft_cap), {1, 90, 31}, 2);
      Check<float>(Shape(1, 1, 128, window, soft_cap), {40});
    }
    if (soft_cap > 0) Check<BFloat16>(Shape(2, 2, 256, 7, soft_cap), {40}, 3);
  }
}

TEST_F(AttentionGradientOnGpu, RefusesWhatItCannotTake) {
  const Input<BFloat16> x(stream_, std::vector<double>(256, 1.0));
  const Input<Float16> half(stream_, std::vector<double>(256, 1.0));
  const DeviceBuffer<PackedSequence> one(stream_, 1, "a test");
  const auto call = [&](const AttentionShape& shape, ConstDeviceArray q, ConstDeviceArray others) {
    AttendGradient(stream_, {.shape = shape,
                             .q = q,
                             .out = others,
                             .dout = others,
                             .keys = others,
                             .values = others,
                             .sequences = one.data(),
                             .sequence_count = 1,
                             .longest = 1,
                             .tokens = 1});
  };
  EXPECT_THROW(call(Shape(1, 1, 64), half.array(), x.array()), std::runtime_error);
  EXPECT_THROW(call(Shape(1, 1, 64), half.array(), half.array()), std::runtime_error);
  EXPECT_THROW(call(Shape(3, 2, 64), x.array(), x.array()), std::runtime_error);
}

}  // namespace
}  // namespace shiftrt::gpu
