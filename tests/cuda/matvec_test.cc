// SPDX-License-Identifier: Apache-2.0
#include "kernels/cuda/matvec.h"

#include "tests/cuda/fixture.h"

namespace shiftrt::gpu {
namespace {

// The exact value of a product, and the sum of the absolute values of its terms.
struct Dot {
  double value = 0, size = 0;
};

class MatVecOnGpu : public CudaTest {
 protected:
  enum class Finish { kStore, kAdd, kAddInPlace, kSwiGlu, kGeGlu };

  template <typename T>
  void Check(int64_t rows, int64_t cols, bool norm, bool bias, Finish finish) {
    const auto w = Input<T>::Normal(stream_, rows * cols, 1);
    const auto x = Input<float>::Normal(stream_, cols, 2), weight = Input<float>::Normal(stream_, cols, 3),
               row_bias = Input<float>::Normal(stream_, rows, 4), addend = Input<float>::Normal(stream_, rows, 5);
    const bool glu = finish == Finish::kSwiGlu || finish == Finish::kGeGlu;
    const int64_t out_rows = glu ? rows / 2 : rows;
    const Output<float> y(stream_, out_rows);
    MatVecProblem problem{.w = w.array(),
                          .rows = rows,
                          .cols = cols,
                          .x = x.data(),
                          .norm_weight = norm ? weight.data() : nullptr,
                          .eps = 1e-5f,
                          .bias = bias ? row_bias.data() : nullptr,
                          .y = y.data()};
    std::vector<double> found;
    if (finish == Finish::kStore) MatVec(stream_, problem, 2);
    if (finish == Finish::kAdd) MatVecAdd(stream_, problem, addend.data(), 2);
    if (finish == Finish::kSwiGlu) MatVecSwiGlu(stream_, problem, 2);
    if (finish == Finish::kGeGlu) MatVecGeGlu(stream_, problem, 2);
    if (finish == Finish::kAddInPlace) {
      problem.y = addend.data();
      MatVecAdd(stream_, problem, addend.data(), 2);
      found = Now(stream_, addend);
    } else {
      found = y.Values();
    }

    double squares = 0;
    for (int64_t k = 0; k < cols; ++k) squares += x[k] * x[k];
    const double scale = norm ? 1 / std::sqrt(squares / static_cast<double>(cols) + 1e-5) : 1.0;
    const auto product = [&](int64_t row) {
      Dot dot;
      for (int64_t k = 0; k < cols; ++k) {
        const double term = w[row * cols + k] * x[k] * scale * (norm ? weight[k] : 1.0);
        dot.value += term;
        dot.size += std::abs(term);
      }
      if (bias) dot.value += row_bias[row];
      dot.size += bias ? std::abs(row_bias[row]) : 0;
      return dot;
    };
    // A lane sums cols / 32 products, and a warp sums over 32 lanes. The scale of the norm has as many roundings again.
    const double unit = (static_cast<double>(cols) / 16 + 24) * kUnit<float>;
    for (int64_t row = 0; row < out_rows; ++row) {
      Dot dot = product(row);
      double tolerance = unit * dot.size;
      if (glu) {
        const Dot up = product(row + out_rows);
        const double x = dot.value;
        const double exponent = finish == Finish::kSwiGlu ? x : std::sqrt(8 / M_PI) * (x + 0.044715 * x * x * x);
        const double active = x / (1 + std::exp(-exponent));
        // The slope of both activations is at most 1.2.
        tolerance = tolerance * 1.2 * (std::abs(up.value) + 1) + unit * up.size * (std::abs(active) + 1) + 1e-6;
        dot.value = active * up.value;
      } else if (finish != Finish::kStore) {
        dot.value += addend[row];
        tolerance += kUnit<float> * std::abs(dot.value);
      }
      EXPECT_CLOSE(found[row], dot.value, tolerance, row);
    }
  }
};

TEST_F(MatVecOnGpu, AgreesWithFloat64) {
  ForEveryType([&](auto type) {
    using T = decltype(type);
    for (const int64_t cols : {8, 264, 1096}) {
      for (const int64_t rows : {2, 74}) {
        for (const bool norm : {false, true}) {
          Check<T>(rows, cols, norm, rows > 2, Finish::kStore);
          Check<T>(rows, cols, norm, cols > 8, Finish::kAdd);
          Check<T>(rows, cols, norm, rows > 2, Finish::kSwiGlu);
          Check<T>(rows, cols, norm, rows > 2, Finish::kGeGlu);
        }
        Check<T>(rows, cols, false, true, Finish::kAddInPlace);
      }
    }
    Check<T>(1, 64, true, false, Finish::kStore);
    for (const Finish finish : {Finish::kStore, Finish::kAdd}) Check<T>(75, 264, true, true, finish);
  });
}

// Against the product and the kernel for many tokens, which other tests hold against float64. Rounding may differ by
// what a compiler contracts.
TEST_F(MatVecOnGpu, RotateIsTheProductAndRope) {
  ForEveryType([&](auto type) {
    using T = decltype(type);
    for (const int head_dim : {8, 80}) {
      const int heads = 3, kv_heads = 2, rows_of_cache = 5, cols = 264, half = head_dim / 2;
      const int64_t rows = (heads + 2 * kv_heads) * head_dim, q_dim = heads * head_dim, kv_dim = kv_heads * head_dim;
      const auto w = Input<T>::Normal(stream_, rows * cols, 1);
      const auto x = Input<float>::Normal(stream_, cols, 2), weight = Input<float>::Normal(stream_, cols, 3),
                 bias = Input<float>::Normal(stream_, rows, 4), table = Input<float>::Normal(stream_, 14 * half, 5);
      const std::vector<int32_t> facts = {6, 3};  // position, row of the cache
      const DeviceBuffer<int32_t> there(stream_, std::span<const int32_t>(facts), "a test");
      const RopeTable rope{table.data(), table.data() + 7 * half};
      for (const bool norm_and_bias : {false, true}) {
        const Output<float> y(stream_, rows), q(stream_, q_dim), expected_q(stream_, q_dim);
        const Output<T> keys(stream_, rows_of_cache * kv_dim), values(stream_, rows_of_cache * kv_dim),
            expected_keys(stream_, rows_of_cache * kv_dim), expected_values(stream_, rows_of_cache * kv_dim);
        MatVecProblem product{.w = w.array(),
                              .rows = rows,
                              .cols = cols,
                              .x = x.data(),
                              .norm_weight = norm_and_bias ? weight.data() : nullptr,
                              .eps = 1e-5f,
                              .bias = norm_and_bias ? bias.data() : nullptr,
                              .y = y.data()};
        MatVec(stream_, product, 2);
        RopeAndStore(stream_, {.qkv = y.array(),
                               .table = rope,
                               .positions = there.data(),
                               .cache_rows = there.data() + 1,
                               .tokens = 1,
                               .heads = heads,
                               .kv_heads = kv_heads,
                               .head_dim = head_dim,
                               .q = expected_q.array(),
                               .keys = expected_keys.array(),
                               .values = expected_values.array()});
        product.y = nullptr;
        MatVecRotate(stream_, product,
                     {.table = rope,
                      .position = there.data(),
                      .cache_row = there.data() + 1,
                      .heads = heads,
                      .kv_heads = kv_heads,
                      .head_dim = head_dim,
                      .q = q.data(),
                      .keys = keys.array(),
                      .values = values.array()},
                     2);
        const auto expect = [](const std::vector<double>& found, const std::vector<double>& expected, double unit) {
          double size = 0;
          for (const double value : expected) size = std::isnan(value) ? size : std::max(size, std::abs(value));
          for (size_t i = 0; i < expected.size(); ++i) {
            ASSERT_EQ(std::isnan(found[i]), std::isnan(expected[i])) << i << ": only the token's row is written";
            if (std::isnan(expected[i])) continue;
            EXPECT_CLOSE(found[i], expected[i], 2 * unit * std::abs(expected[i]) + 4 * kUnit<float> * size, i);
          }
        };
        expect(q.Values(), expected_q.Values(), kUnit<float>);
        expect(keys.Values(), expected_keys.Values(), kUnit<T>);
        expect(values.Values(), expected_values.Values(), kUnit<T>);
      }
    }
  });
}

TEST_F(MatVecOnGpu, RefusesSizesItCannotTake) {
  const Input<float> all(stream_, std::vector<double>(64, 1.0));
  EXPECT_THROW(MatVecRotate(stream_, {.w = all.array(), .rows = 8, .cols = 8, .x = all.data()},
                            {.heads = 2, .kv_heads = 2, .head_dim = 2}, 1),
               std::runtime_error);
  const Input<float> w(stream_, std::vector<double>(72, 1.0));
  const Output<float> y(stream_, 8);
  EXPECT_THROW(MatVec(stream_, {.w = w.array(), .rows = 6, .cols = 12, .x = w.data(), .y = y.data()}, 1),
               std::runtime_error);
  EXPECT_THROW(MatVecGeGlu(stream_, {.w = w.array(), .rows = 3, .cols = 8, .x = w.data(), .y = y.data()}, 1),
               std::runtime_error);
  EXPECT_THROW(MatVecSwiGlu(stream_, {.w = w.array(), .rows = 3, .cols = 8, .x = w.data(), .y = y.data()}, 1),
               std::runtime_error);
}

TEST(MatVecTile, FollowsShapeAndDevice) {
  const auto expect = [](int64_t rows, bool glu, int rows_per_warp, int blocks) {
    const MatVecTile tile = ChooseMatVecTile(rows, glu, 132);
    EXPECT_EQ(tile.rows_per_warp, rows_per_warp) << rows;
    EXPECT_EQ(tile.blocks, blocks) << rows;
  };
  expect(1, false, 1, 1);
  expect(1536, false, 1, 192);
  expect(2048, false, 1, 256);
  expect(4096, false, 2, 256);
  expect(128256, false, 2, 264);
  expect(208, true, 2, 13);
}

}  // namespace
}  // namespace shiftrt::gpu
