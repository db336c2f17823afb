// SPDX-License-Identifier: Apache-2.0
#include "kernels/cuda/matvec.h"

#include "tests/cuda/fused_matvec.h"

namespace shiftrt::gpu {
namespace {

class MatVecOnGpu : public CudaTest {
 protected:
  // A lane sums cols / 32 products, and a warp sums over 32 lanes. The scale of the norm has as many roundings again.
  template <typename T>
  void Check(const test::FusedProductCase& c) {
    const test::FusedProductProblem p(c, DTypeOf<T>::value);
    const Input<T> w(stream_, p.w);
    FusedMatVec product(stream_, c, p, w.array());
    product.Run(c.epilogue);
    const double roundings = static_cast<double>(c.cols) / 16 + 24;
    p.Expect(product.y.Values(), roundings);
    if (c.epilogue != test::Epilogue::kAddition) return;
    product.problem.y = product.addend.data();  // the addend itself
    product.Run(c.epilogue);
    p.Expect(Now(stream_, product.addend), roundings);
  }
};

TEST_F(MatVecOnGpu, AgreesWithFloat64) {
  for (const test::FusedProductCase& c : test::FusedProductCases()) {
    if (c.tokens > 1 || c.cols % 8 != 0) continue;
    ForEveryType([&](auto type) { Check<decltype(type)>(c); });
    if (HasFailure()) return;
  }
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
  for (const Activation activation : {Activation::kSilu, Activation::kGeluTanh})
    EXPECT_THROW(
        MatVecGated(stream_, activation, {.w = w.array(), .rows = 3, .cols = 8, .x = w.data(), .y = y.data()}, 1),
        std::runtime_error);
}

TEST(MatVecTile, FollowsShapeAndDevice) {
  const auto expect = [](int64_t rows, bool glu, bool norm, int rows_per_warp, int blocks) {
    const MatVecTile tile = ChooseMatVecTile(rows, glu, norm, 132);
    EXPECT_EQ(tile.rows_per_warp, rows_per_warp) << rows;
    EXPECT_EQ(tile.blocks, blocks) << rows;
  };
  expect(1, false, false, 1, 1);
  expect(1536, false, false, 1, 192);
  expect(2048, false, false, 1, 256);
  expect(4096, false, false, 2, 256);
  expect(128256, false, false, 2, 264);
  expect(128256, false, true, 2, 396);
  expect(208, true, true, 2, 13);
}

}  // namespace
}  // namespace shiftrt::gpu
