// SPDX-License-Identifier: Apache-2.0
#include "kernels/cuda/adamw.h"

#include "tests/cuda/fixture.h"

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
  for (const int64_t n : {1, 1000, 5003}) {
    const AdamWFactors f{0.5f, 0.9f, 0.999f, 0.98f, 0.03f, 3.0f, 1e-8f};
    const auto gradient = Input<float>::Normal(stream_, n, 1), values = Input<float>::Normal(stream_, n, 2),
               first = Input<float>::Normal(stream_, n, 3, 0.1);
    Random random(4);
    std::vector<double> squares(n);
    for (double& x : squares) x = 0.1 * random.Uniform();
    const Input<float> second(stream_, squares);
    StepAdamW(stream_, f, gradient.data(), n, values.data(), first.data(), second.data());
    const std::vector<double> now = Now(stream_, values), m_now = Now(stream_, first), v_now = Now(stream_, second);
    for (int64_t i = 0; i < n; ++i) {
      const double g = static_cast<double>(f.gradient_scale) * gradient[i], beta1 = f.beta1, beta2 = f.beta2;
      const double rest1 = 1 - f.beta1, rest2 = 1 - f.beta2;  // rounded as the kernel rounds them
      const double m = beta1 * first[i] + rest1 * g, v = beta2 * second[i] + rest2 * g * g;
      const double step = static_cast<double>(f.rate) * m / (std::sqrt(v) * static_cast<double>(f.root) + 1e-8);
      const double unit = 8 * kUnit<float>;
      EXPECT_CLOSE(m_now[i], m, unit * (std::abs(beta1 * first[i]) + std::abs(rest1 * g)), i);
      EXPECT_CLOSE(v_now[i], v, unit * v, i);
      const double m_size = std::abs(beta1 * first[i]) + std::abs(rest1 * g);
      EXPECT_CLOSE(now[i], static_cast<double>(f.keep) * values[i] - step,
                   unit * (std::abs(values[i]) + 2 * std::abs(step) * m_size / std::max(std::abs(m), 1e-30)), i);
    }
  }
}

TEST_F(AdamWOnGpu, SumsAgreeWithFloat64) {
  for (const int64_t n : {0, 1, 4096, 4097, 20000}) {
    const auto values = Input<float>::Normal(stream_, n, 1);
    double expected = 0;
    for (const double x : values.values) expected += x * x;
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
