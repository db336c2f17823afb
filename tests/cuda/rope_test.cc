// SPDX-License-Identifier: Apache-2.0
#include "kernels/cuda/rope.h"

#include "tests/cuda/fixture.h"

namespace shiftrt::gpu {
namespace {

struct Heads {
  int heads, kv_heads, head_dim;
  bool bias, norm;
};

class RopeOnGpu : public CudaTest {
 protected:
  // One head, computed in float64 from the output of the product. `norm` is null and `position` is -1 if they do not
  // apply.
  static std::vector<double> Head(const std::vector<double>& qkv, int64_t at, int64_t size, const Input<float>* bias,
                                  int64_t bias_at, const Input<float>* norm, double eps, int64_t position,
                                  const std::vector<double>& frequency, double scale) {
    std::vector<double> x(qkv.begin() + at, qkv.begin() + at + size);
    double squares = 0;
    for (int64_t i = 0; i < size; ++i) {
      if (bias != nullptr) x[i] += (*bias)[bias_at + i];
      squares += x[i] * x[i];
    }
    if (norm != nullptr)
      for (int64_t i = 0; i < size; ++i) x[i] *= (*norm)[i] / std::sqrt(squares / static_cast<double>(size) + eps);
    if (position < 0) return x;
    for (int64_t i = 0; i < size / 2; ++i) {
      const double angle = static_cast<double>(position) * frequency[i], a = x[i], b = x[i + size / 2];
      x[i] = scale * (a * std::cos(angle) - b * std::sin(angle));
      x[i + size / 2] = scale * (b * std::cos(angle) + a * std::sin(angle));
    }
    return x;
  }

  template <typename In, typename Cache>
  void Check(const Heads& shape) {
    const int64_t tokens = 3, rows = 7, half = shape.head_dim / 2, head_dim = shape.head_dim;
    const int64_t q_dim = shape.heads * head_dim, kv_dim = shape.kv_heads * head_dim, width = q_dim + 2 * kv_dim;
    const auto qkv = Input<In>::Normal(stream_, tokens * width, 1);
    const auto bias = Input<float>::Normal(stream_, width, 2), q_norm = Input<float>::Normal(stream_, head_dim, 3),
               k_norm = Input<float>::Normal(stream_, head_dim, 4);
    std::vector<double> rates;
    for (int64_t i = 0; i < half; ++i) rates.push_back(std::pow(10000.0, -static_cast<double>(i) / half));
    const Input<float> frequency(stream_, rates);
    const std::vector<int32_t> positions = {5, 0, 9}, cache_rows = {6, 2, 0};
    const DeviceBuffer<int32_t> at(stream_, std::span<const int32_t>(positions), "a test"),
        to(stream_, std::span<const int32_t>(cache_rows), "a test");
    const Output<float> cosine(stream_, 10 * half), sine(stream_, 10 * half);
    MakeRopeTable(stream_, 10, frequency.data(), half, 1.25f, cosine.data(), sine.data());

    const Output<In> q(stream_, tokens * q_dim);
    const Output<Cache> keys(stream_, rows * kv_dim), values(stream_, rows * kv_dim);
    RopeAndStore(stream_, {.qkv = qkv.array(),
                           .bias = shape.bias ? bias.data() : nullptr,
                           .q_norm = shape.norm ? q_norm.data() : nullptr,
                           .k_norm = shape.norm ? k_norm.data() : nullptr,
                           .eps = 1e-6f,
                           .table = {cosine.data(), sine.data()},
                           .positions = at.data(),
                           .cache_rows = to.data(),
                           .tokens = tokens,
                           .heads = shape.heads,
                           .kv_heads = shape.kv_heads,
                           .head_dim = shape.head_dim,
                           .q = q.array(),
                           .keys = keys.array(),
                           .values = values.array()});
    const std::vector<double> found_q = q.Values(), found_k = keys.Values(), found_v = values.Values();
    const auto expect = [&](const std::vector<double>& found, int64_t from, const std::vector<double>& expected,
                            double unit) {
      for (int64_t i = 0; i < head_dim; ++i) {
        // Rotation combines two elements. Each has about ten roundings, to which those of cosine and sine are added.
        const double size = std::abs(expected[i]) + std::abs(expected[(i + half) % head_dim]);
        EXPECT_CLOSE(found[from + i], expected[i], unit * std::abs(expected[i]) + 16 * kUnit<float> * (size + 2), i);
      }
    };
    for (int64_t t = 0; t < tokens; ++t) {
      for (int64_t head = 0; head < shape.heads + 2 * shape.kv_heads; ++head) {
        const bool is_q = head < shape.heads, is_v = head >= shape.heads + shape.kv_heads;
        const Input<float>* norm = !shape.norm || is_v ? nullptr : is_q ? &q_norm : &k_norm;
        const std::vector<double> expected =
            Head(qkv.values, t * width + head * head_dim, head_dim, shape.bias ? &bias : nullptr, head * head_dim, norm,
                 1e-6, is_v ? -1 : positions[t], frequency.values, 1.25);
        const int64_t kv_at = cache_rows[t] * kv_dim + (head - shape.heads) % shape.kv_heads * head_dim;
        if (is_q) {
          expect(found_q, t * q_dim + head * head_dim, expected, kUnit<In>);
        } else {
          expect(is_v ? found_v : found_k, kv_at, expected, kUnit<Cache>);
        }
      }
    }
    for (const int64_t untouched : {1, 3, 4, 5})
      for (int64_t i = 0; i < kv_dim; ++i) {
        ASSERT_TRUE(std::isnan(found_k[untouched * kv_dim + i]));
        ASSERT_TRUE(std::isnan(found_v[untouched * kv_dim + i]));
      }
  }
};

TEST_F(RopeOnGpu, AgreesWithFloat64) {
  for (const Heads& shape :
       {Heads{2, 1, 64, false, false}, Heads{3, 3, 80, true, false}, Heads{6, 2, 96, false, true},
        Heads{4, 1, 128, true, true}, Heads{2, 1, 256, true, true}, Heads{7, 1, 64, true, false}}) {
    SCOPED_TRACE(shape.head_dim);
    Check<BFloat16, BFloat16>(shape);
    Check<float, BFloat16>(shape);
    Check<float, Float16>(shape);
  }
  Check<Float16, Float16>({4, 2, 128, true, true});
  Check<float, float>({4, 2, 96, true, true});
}

TEST_F(RopeOnGpu, RotatesRowsInPlaceForwardsAndBack) {
  const int64_t head_dim = 80, half = head_dim / 2, heads = 3, width = heads * head_dim;
  const std::vector<int32_t> positions = {0, 8, 3, 3, 1};
  const auto tokens = std::ssize(positions);
  const DeviceBuffer<int32_t> at(stream_, std::span<const int32_t>(positions), "a test");
  std::vector<double> rates, opposite;
  for (int64_t i = 0; i < half; ++i) rates.push_back(0.7 * static_cast<double>(i + 1));
  const Input<float> frequency(stream_, rates);
  for (const double rate : frequency.values) opposite.push_back(-rate);
  const Output<float> cosine(stream_, 9 * half), sine(stream_, 9 * half);
  MakeRopeTable(stream_, 9, frequency.data(), half, 1.25f, cosine.data(), sine.data());
  for (const bool back : {false, true}) {
    const auto x = Input<float>::Normal(stream_, tokens * width, 1);
    const Output<BFloat16> rounded(stream_, tokens * width);
    const DeviceArray rows{x.data(), DType::kFloat32};
    RopeAndStore(stream_, {.qkv = rows,
                           .table = {cosine.data(), sine.data()},
                           .back = back,
                           .positions = at.data(),
                           .tokens = tokens,
                           .heads = heads,
                           .head_dim = head_dim,
                           .q = rows,
                           .rounded = rounded.data()});
    const std::vector<double> found = Now(stream_, x), narrow = rounded.Values();
    for (int64_t i = 0; i < tokens * width; ++i)
      ASSERT_EQ(narrow[i], Exact(BFloat16(static_cast<float>(found[i])))) << i;
    for (int64_t head = 0; head < tokens * heads; ++head) {
      const std::vector<double> expected = Head(x.values, head * head_dim, head_dim, nullptr, 0, nullptr, 0,
                                                positions[head / heads], back ? opposite : frequency.values, 1.25);
      for (int64_t i = 0; i < head_dim; ++i)
        EXPECT_CLOSE(found[head * head_dim + i], expected[i], 16 * kUnit<float> * 5, i);
    }
  }
}

TEST_F(RopeOnGpu, TableIsExactFarOut) {
  const Input<float> frequency(stream_, {1.0, 0.1});
  const int64_t positions = 40000;
  const Output<float> cosine(stream_, positions * 2), sine(stream_, positions * 2);
  MakeRopeTable(stream_, positions, frequency.data(), 2, 1.0f, cosine.data(), sine.data());
  const std::vector<double> cosines = cosine.Values(), sines = sine.Values();
  for (const int64_t p : {int64_t{0}, int64_t{1}, positions - 1})
    for (int i = 0; i < 2; ++i) {
      EXPECT_NEAR(cosines[2 * p + i], std::cos(static_cast<double>(p) * frequency[i]), kUnit<float>);
      EXPECT_NEAR(sines[2 * p + i], std::sin(static_cast<double>(p) * frequency[i]), kUnit<float>);
    }
}

}  // namespace
}  // namespace shiftrt::gpu
