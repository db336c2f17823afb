// SPDX-License-Identifier: Apache-2.0
#include "kernels/cuda/rmsnorm.h"
#include "tests/cuda/fixture.h"

namespace shiftrt::gpu {
namespace {

class RmsNormGradientOnGpu : public CudaTest {
 protected:
  enum class Into { kOther, kDy, kAccumulated };

  // Norms of groups of n columns of rows with gaps, and their gradients.
  void Check(int64_t rows, int64_t groups, int64_t n, double size, Into into, bool centred = false) {
    const int64_t cols = groups * n, stride = cols + 3;
    const Norm norm{.eps = 1e-5f, .centred = centred, .offset = 1, .n = n};
    const auto x = Input<float>::Normal(stream_, rows * stride, 1, size),
               dy = Input<float>::Normal(stream_, rows * cols, 2), weight = Input<float>::Normal(stream_, n, 3),
               dx = Input<float>::Normal(stream_, rows * cols, 4), dweight = Input<float>::Normal(stream_, n, 5),
               bias = Input<float>::Normal(stream_, n, 6);
    const Output<float> out(stream_, rows * cols), scales(stream_, (centred ? 2 : 1) * rows * groups);
    Norm call = norm;
    call.weight = weight.data();
    if (centred) call.bias = bias.data();
    const MatrixView<const float> in(x.data(), rows, cols, stride);
    const Output<BFloat16> rounded(stream_, rows * cols), rounded_dx(stream_, rows * cols);
    NormRows(stream_, call, in, {{out.data(), rows, cols}, rounded.data()});
    const Input<float>& to = into == Into::kDy ? dy : dx;
    NormRowsGradient(stream_, call, in, {dy.data(), rows, cols}, into == Into::kAccumulated,
                     {{to.data(), rows, cols}, rounded_dx.data()}, {dweight.data(), 1, n}, scales.data());
    const std::vector<double> normed = out.Values(), found = Now(stream_, to), weights = Now(stream_, dweight);
    const std::vector<BFloat16> normed_too = rounded.Raw(), found_too = rounded_dx.Raw();
    for (int64_t i = 0; i < rows * cols; ++i) {
      ASSERT_EQ(normed_too[i].bits, BFloat16(static_cast<float>(normed[i])).bits) << i;
      ASSERT_EQ(found_too[i].bits, BFloat16(static_cast<float>(found[i])).bits) << i;
    }

    const double unit = kUnit<float> * (32 + static_cast<double>(n) / 16);
    std::vector<double> expected_weights = dweight.values, weight_sizes(n);
    for (int64_t i = 0; i < rows; ++i) {
      for (int64_t g = 0; g < groups; ++g) {
        const double* const in_group = x.values.data() + i * stride + g * n;
        const double* const dy_group = dy.values.data() + i * cols + g * n;
        double squares = 0, products = 0, sizes = 0, mean = 0, all = 0, all_size = 0;
        for (int64_t j = 0; centred && j < n; ++j) {
          mean += in_group[j] / static_cast<double>(n);
          all += dy_group[j] * (1 + weight[j]) / static_cast<double>(n);
          all_size += std::abs(dy_group[j] * (1 + weight[j])) / static_cast<double>(n);
        }
        for (int64_t j = 0; j < n; ++j) {
          const double product = (in_group[j] - mean) * dy_group[j] * (1 + weight[j]);
          squares += (in_group[j] - mean) * (in_group[j] - mean);
          products += product;
          sizes += std::abs(product);
        }
        const double scale = 1 / std::sqrt(squares / static_cast<double>(n) + static_cast<double>(norm.eps)),
                     cubed = scale * scale * scale / static_cast<double>(n);
        for (int64_t j = 0; j < n; ++j) {
          const int64_t at = i * cols + g * n + j;
          const double value = (in_group[j] - mean) * scale * (1 + weight[j]) + (centred ? bias[j] : 0);
          const double most = (std::abs(in_group[j]) + std::abs(mean)) * scale * (1 + std::abs(weight[j]));
          EXPECT_CLOSE(normed[at], value, unit * (most + (centred ? std::abs(bias[j]) : 0)) + 1e-30, at);
          const double across = (dy_group[j] * (1 + weight[j]) - all) * scale,
                       along = (in_group[j] - mean) * products * cubed;
          const double before = into == Into::kAccumulated ? dx[at] : 0;
          EXPECT_CLOSE(found[at], before + across - along,
                       unit * (std::abs(before) + std::abs(dy_group[j] * scale) * (1 + std::abs(weight[j])) +
                               all_size * scale + (std::abs(in_group[j]) + std::abs(mean)) * sizes * cubed),
                       at);
          expected_weights[j] += dy_group[j] * (in_group[j] - mean) * scale;
          weight_sizes[j] += std::abs(dy_group[j] * scale) * (std::abs(in_group[j]) + std::abs(mean));
        }
      }
    }
    for (int64_t j = 0; j < n; ++j)
      EXPECT_CLOSE(
          weights[j], expected_weights[j],
          (unit + kUnit<float> * static_cast<double>(rows * groups)) * (weight_sizes[j] + std::abs(dweight[j])), j);
  }
};

TEST_F(RmsNormGradientOnGpu, OfRowsAgreesWithFloat64) {
  for (const int64_t n : {8, 100, 512, 520, 2048})
    for (const Into into : {Into::kOther, Into::kDy, Into::kAccumulated}) Check(11, 1, n, 1, into);
  Check(3, 1, 64, 1e-4, Into::kOther);
  Check(3, 1, 1000, 1e3, Into::kDy);
}

TEST_F(RmsNormGradientOnGpu, OfLayerNormAgreesWithFloat64) {
  for (const int64_t n : {8, 100, 512, 520, 2048})
    for (const Into into : {Into::kOther, Into::kDy, Into::kAccumulated}) Check(11, 1, n, 1, into, true);
  Check(3, 1, 1000, 1e3, Into::kDy, true);
}

TEST_F(RmsNormGradientOnGpu, OfHeadsAgreesWithFloat64) {
  for (const int64_t head_dim : {64, 80, 256}) Check(9, 3, head_dim, 2, Into::kDy);
}

TEST_F(RmsNormGradientOnGpu, WithoutWeightGradientsTheGradientIsTheSame) {
  const int64_t rows = 3, n = 72;
  const auto x = Input<float>::Normal(stream_, rows * n, 1), dy = Input<float>::Normal(stream_, rows * n, 2),
             weight = Input<float>::Normal(stream_, n, 3), dweight = Input<float>::Normal(stream_, n, 4);
  const Output<float> with(stream_, rows * n), without(stream_, rows * n), scales(stream_, rows);
  const Norm norm{.weight = weight.data(), .eps = 1e-6f};
  NormRowsGradient(stream_, norm, {x.data(), rows, n}, {dy.data(), rows, n}, false,
                   MatrixView<float>(with.data(), rows, n), {dweight.data(), 1, n}, scales.data());
  NormRowsGradient(stream_, norm, {x.data(), rows, n}, {dy.data(), rows, n}, false,
                   MatrixView<float>(without.data(), rows, n));
  EXPECT_EQ(with.Values(), without.Values());
}

TEST_F(RmsNormGradientOnGpu, RefusesGroupsThatDoNotDivideTheRow) {
  const Input<float> x(stream_, std::vector<double>(24, 1.0));
  EXPECT_THROW(NormRows(stream_, {.weight = x.data(), .n = 5}, {x.data(), 1, 24}, MatrixView<float>(x.data(), 1, 24)),
               std::runtime_error);
}

}  // namespace
}  // namespace shiftrt::gpu
