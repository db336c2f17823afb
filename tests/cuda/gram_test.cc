// SPDX-License-Identifier: Apache-2.0
#include "kernels/cuda/gram.h"

#include "tests/cuda/fixture.h"

namespace shiftrt::gpu {
namespace {

class GramOnGpu : public CudaTest {
 protected:
  // Several updates are added to the same sums.
  void Check(int64_t n, int64_t d, const std::vector<int64_t>& batches, bool weighted = false) {
    const std::vector<double> zeros((n + 1) * (std::max(n, d) + 1), 0.0);
    const DeviceBuffer<double> gram(stream_, std::span<const double>(zeros).first((n + 1) * (n + 1)), "a test"),
        cross(stream_, std::span<const double>(zeros).first((n + 1) * d), "a test");
    std::vector<std::vector<double>> h, delta;  // one row per token
    std::vector<double> weights;
    uint64_t seed = 1;
    for (const int64_t tokens : batches) {
      const auto inputs = Input<float>::Normal(stream_, tokens * n, seed++, 3.0),
                 updates = Input<float>::Normal(stream_, tokens * d, seed++);
      std::vector<double> some;
      for (int64_t t = 0; t < tokens; ++t) some.push_back(weighted ? 0.25 * static_cast<double>(t % 7) : 1.0);
      weights.insert(weights.end(), some.begin(), some.end());
      const DeviceBuffer<double> on_device(stream_, std::span<const double>(some), "a test");
      AddToRidgeSums(stream_, {inputs.data(), updates.data(), weighted ? on_device.data() : nullptr, tokens, n, d},
                     {gram.data(), cross.data()});
      for (int64_t t = 0; t < tokens; ++t) {
        h.emplace_back(inputs.values.begin() + t * n, inputs.values.begin() + (t + 1) * n);
        h.back().push_back(1.0);
        delta.emplace_back(updates.values.begin() + t * d, updates.values.begin() + (t + 1) * d);
      }
    }
    const auto expect = [&](const std::vector<double>& found, const std::vector<std::vector<double>>& right,
                            bool upper) {
      const auto cols = static_cast<int64_t>(right[0].size());
      for (int64_t i = 0; i <= n; ++i) {
        for (int64_t j = 0; j < cols; ++j) {
          double sum = 0, size = 0;
          for (size_t t = 0; t < h.size(); ++t) {
            sum += weights[t] * h[t][i] * right[t][j];
            size += std::abs(weights[t] * h[t][i] * right[t][j]);
          }
          if (upper && j < i) sum = size = 0;  // not written
          // Products are exact. Only additions round, including those of the oracle.
          EXPECT_CLOSE(found[i * cols + j], sum, 2 * static_cast<double>(h.size()) * 0x1p-53 * size, i * cols + j);
        }
      }
    };
    expect(Output<double>::Fetch(stream_, gram), h, true);
    expect(Output<double>::Fetch(stream_, cross), delta, false);
  }
};

TEST_F(GramOnGpu, SumsAgreeWithFloat64) {
  Check(8, 8, {1, 33});
  Check(64, 64, {5, 32});
  Check(136, 136, {70});
  Check(136, 16, {40});
  Check(24, 72, {33});
}

TEST_F(GramOnGpu, WeightsCountTokens) {
  Check(8, 8, {33}, true);
  Check(72, 72, {5, 40}, true);
  Check(72, 8, {40}, true);
}

TEST_F(GramOnGpu, RowProductsAgreeWithFloat64) {
  const int64_t tokens = 4;
  for (const int64_t n : {8, 520, 1032}) {
    const auto a = Input<float>::Normal(stream_, tokens * n, 1), b = Input<float>::Normal(stream_, tokens * n, 2, 1e18);
    const DeviceBuffer<RowProducts> products(stream_, tokens, "a test");
    ComputeRowProducts(stream_, a.data(), b.data(), tokens, n, products.data());
    const std::vector<RowProducts> found = Output<RowProducts>::Fetch(stream_, products);
    for (int64_t t = 0; t < tokens; ++t) {
      double dot = 0, size = 0, aa = 0, bb = 0;
      for (int64_t j = t * n; j < (t + 1) * n; ++j) {
        dot += a[j] * b[j];
        size += std::abs(a[j] * b[j]);
        aa += a[j] * a[j];
        bb += b[j] * b[j];
      }
      EXPECT_NEAR(found[t].dot, dot, 1e-13 * size);
      EXPECT_NEAR(found[t].aa, aa, 1e-13 * aa);
      EXPECT_NEAR(found[t].bb, bb, 1e-13 * bb);
    }
  }
}

TEST_F(GramOnGpu, RowProductsAreFiniteWhereTheRowIs) {
  const int64_t tokens = 3, n = 1032;
  std::vector<double> drawn = Input<float>::Normal(stream_, tokens * n, 1, 1e18).values;
  drawn[n + 700] = HUGE_VAL;
  drawn[2 * n + 8] = NAN;
  const Input<float> x(stream_, drawn);
  const auto finite = Input<float>::Normal(stream_, tokens * n, 2);
  const DeviceBuffer<RowProducts> products(stream_, tokens, "a test");
  ComputeRowProducts(stream_, finite.data(), x.data(), tokens, n, products.data());
  const std::vector<RowProducts> found = Output<RowProducts>::Fetch(stream_, products);
  for (int64_t t = 0; t < tokens; ++t) {
    EXPECT_TRUE(std::isfinite(found[t].aa));
    EXPECT_EQ(std::isfinite(found[t].bb), t == 0);
  }
}

}  // namespace
}  // namespace shiftrt::gpu
