// SPDX-License-Identifier: Apache-2.0
#include "kernels/cuda/adamw.h"

#include "tests/cuda/fixture.h"
#include "tests/kernels/adamw_cases.h"

namespace shiftrt::gpu {
namespace {

class AdamWOnGpu : public CudaTest {
 protected:
  // The sum that `call(scratch, sum)` computes.
  template <typename Call>
  double SumOf(const Call& call) {
    const DeviceBuffer<double> scratch(stream_, kSumScratch, "a test"), sum(stream_, 1, "a test");
    call(scratch.data(), sum.data());
    double found = NAN;
    CopyToHost(stream_, &found, sum.data(), sizeof(found));
    return found;
  }
};

TEST_F(AdamWOnGpu, StepsAgreeWithFloat64) {
  for (const test::AdamWCase& c : test::AdamWCases()) {
    if (TooLarge(c.count, 5003)) continue;
    SCOPED_TRACE(c.Name());
    const test::AdamWProblem p(c);
    const test::AdamWProblem::Results exact = p.Exactly();
    const Input<float> gradient(stream_, p.gradient), values(stream_, p.values), first(stream_, p.first),
        second(stream_, p.second);
    StepAdamW(stream_, FactorsOf(c.settings), gradient.data(), c.count, values.data(), first.data(), second.data());
    test::ExpectClose("values", Now(stream_, values), exact.values, {8});
    test::ExpectClose("first", Now(stream_, first), exact.first, {8});
    test::ExpectClose("second", Now(stream_, second), exact.second, {8});
    if (HasFailure()) return;
  }
}

TEST_F(AdamWOnGpu, SumsAgreeWithFloat64) {
  for (const int64_t n : test::kSquareCounts) {
    const auto values = Input<float>::Normal(stream_, n, 1);
    const double expected = test::SumOfSquaresExactly(values.values);
    const double found =
        SumOf([&](double* scratch, double* sum) { SumSquares(stream_, values.data(), n, scratch, sum); });
    EXPECT_CLOSE(found, expected, 1e-13 * expected, n);
  }
  ForEveryType([&](auto type) {
    using T = decltype(type);
    for (const auto& [rows, cols] : {std::pair<int64_t, int64_t>{1, 700}, {600, 9}}) {
      const auto w = Input<T>::Normal(stream_, rows * cols, 1);
      const auto gradient = Input<float>::Normal(stream_, rows * (cols + 2), 2);
      double expected = 0;
      for (int64_t i = 0; i < rows; ++i)
        for (int64_t j = 0; j < cols; ++j) expected += std::abs((w[i * cols + j] - 1) * gradient[i * (cols + 2) + j]);
      const double found = SumOf([&](double* scratch, double* sum) {
        SumAbsoluteProducts(stream_, w.array(), -1, {gradient.data(), rows, cols, cols + 2}, scratch, sum);
      });
      EXPECT_CLOSE(found, expected, 1e-13 * expected, rows);
    }
  });
}

}  // namespace
}  // namespace shiftrt::gpu
