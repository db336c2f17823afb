#include "kernels/cuda/gram.h"

#include "tests/cuda/fixture.h"

namespace shiftrt::gpu {
namespace {

class GramOnGpu : public CudaTest {
 protected:
  // Two updates, the second on top of the first.
  void Check(int64_t d, const std::vector<int64_t>& batches) {
    const std::vector<double> zeros((d + 1) * (d + 1), 0.0);
    const DeviceBuffer<double> gram(stream_, std::span<const double>(zeros), "a test"),
        cross(stream_, std::span<const double>(zeros).first((d + 1) * d), "a test");
    std::vector<std::vector<double>> h, delta;  // a row a token
    uint64_t seed = 1;
    for (const int64_t tokens : batches) {
      const auto inputs = Input<float>::Normal(stream_, tokens * d, seed++, 3.0),
                 updates = Input<float>::Normal(stream_, tokens * d, seed++);
      AddToRidgeSums(stream_, inputs.data(), updates.data(), tokens, d, {gram.data(), cross.data()});
      for (int64_t t = 0; t < tokens; ++t) {
        h.emplace_back(inputs.values.begin() + t * d, inputs.values.begin() + (t + 1) * d);
        h.back().push_back(1.0);
        delta.emplace_back(updates.values.begin() + t * d, updates.values.begin() + (t + 1) * d);
      }
    }
    const auto expect = [&](const std::vector<double>& found, const std::vector<std::vector<double>>& right,
                            bool upper) {
      const auto cols = static_cast<int64_t>(right[0].size());
      for (int64_t i = 0; i <= d; ++i) {
        for (int64_t j = 0; j < cols; ++j) {
          double sum = 0, size = 0;
          for (size_t t = 0; t < h.size(); ++t) {
            sum += h[t][i] * right[t][j];
            size += std::abs(h[t][i] * right[t][j]);
          }
          if (upper && j < i) sum = size = 0;  // untouched
          // Products are exact, so only additions round, the oracle's own among them.
          EXPECT_CLOSE(found[i * cols + j], sum, 2 * static_cast<double>(h.size()) * 0x1p-53 * size, i * cols + j);
        }
      }
    };
    expect(Output<double>::Fetch(stream_, gram), h, true);
    expect(Output<double>::Fetch(stream_, cross), delta, false);
  }
};

TEST_F(GramOnGpu, SumsAgreeWithFloat64) {
  Check(8, {1, 33});
  Check(64, {5, 32});
  Check(136, {70});
}

TEST_F(GramOnGpu, RowSquaresAreFiniteWhereTheRowIs) {
  const int64_t tokens = 3, d = 1032;
  std::vector<double> drawn = Input<float>::Normal(stream_, tokens * d, 1, 1e18).values;
  drawn[d + 700] = HUGE_VAL;
  drawn[2 * d + 8] = NAN;
  const Input<float> x(stream_, drawn);
  const Output<double> squares(stream_, tokens);
  RowSquares(stream_, x.data(), tokens, d, squares.data());
  const std::vector<double> found = squares.Raw();
  double expected = 0;
  for (int64_t j = 0; j < d; ++j) expected += x[j] * x[j];
  EXPECT_NEAR(found[0], expected, 1e-13 * expected);
  EXPECT_TRUE(std::isinf(found[1]));
  EXPECT_TRUE(std::isnan(found[2]));
}

}  // namespace
}  // namespace shiftrt::gpu
