// SPDX-License-Identifier: Apache-2.0
#include "kernels/cuda/rmsnorm.h"

#include "tests/cuda/fixture.h"

namespace shiftrt::gpu {
namespace {

class RmsNormOnGpu : public CudaTest {
 protected:
  // The stream plus the pending update, in float32 as the kernel must write it, and its norm.
  template <typename T>
  void Check(int64_t tokens, int64_t hidden, bool update, bool bias, double size) {
    const auto h = Input<float>::Normal(stream_, tokens * hidden, 1, size);
    const auto more = Input<float>::Normal(stream_, tokens * hidden, 2, size);
    const auto row = Input<float>::Normal(stream_, hidden, 3, size), weight = Input<float>::Normal(stream_, hidden, 4);
    const Output<T> out(stream_, tokens * hidden);
    const float eps = 1e-5f;
    AddNorm(stream_, {h.data(), tokens, hidden}, {update ? more.data() : nullptr, bias ? row.data() : nullptr},
            {weight.data(), eps}, out.array());
    const std::vector<double> left = Now(stream_, h), normed = out.Values();
    for (int64_t t = 0; t < tokens; ++t) {
      double squares = 0;
      for (int64_t j = 0; j < hidden; ++j) {
        const int64_t at = t * hidden + j;
        float sum = static_cast<float>(h[at]);
        if (update) sum += static_cast<float>(more[at]);
        if (bias) sum += static_cast<float>(row[j]);
        ASSERT_EQ(left[at], static_cast<double>(sum)) << "at " << at;
        squares += left[at] * left[at];
      }
      const double scale = 1 / std::sqrt(squares / static_cast<double>(hidden) + static_cast<double>(eps));
      // The mean of squares takes log2(256) + hidden / 256 additions, and the square root halves their error. There are
      // three more roundings.
      const double roundings = 16 + static_cast<double>(hidden) / 256;
      for (int64_t j = 0; j < hidden; ++j) {
        const int64_t at = t * hidden + j;
        const double expected = left[at] * scale * weight[j];
        EXPECT_CLOSE(normed[at], expected, std::abs(expected) * (kUnit<T> + roundings * kUnit<float>)+0x1p-25, at);
      }
    }
  }
};

TEST_F(RmsNormOnGpu, AgreesWithFloat64) {
  ForEveryType([&](auto type) {
    for (const int64_t hidden : {8, 1000, 2048, 4104})
      for (const int64_t tokens : {1, 3}) Check<decltype(type)>(tokens, hidden, true, hidden == 1000, 1.0);
    Check<decltype(type)>(2, 64, false, false, 1e-4);
    Check<decltype(type)>(2, 64, false, true, 1e3);
  });
}

// The mean is subtracted: of rows far from 0, too, whose variance would cancel as a difference of sums.
TEST_F(RmsNormOnGpu, LayerNormAgreesWithFloat64) {
  ForEveryType([&](auto type) {
    using T = decltype(type);
    for (const int64_t hidden : {8, 1000, 4104}) {
      for (const double mean : {0.0, 100.0}) {
        for (const bool biased : {false, true}) {
          const int64_t tokens = 3;
          std::vector<double> values = Input<float>::Normal(stream_, tokens * hidden, 1).values;
          for (double& value : values) value = static_cast<float>(value + mean);
          const Input<float> h(stream_, values);
          const auto more = Input<float>::Normal(stream_, tokens * hidden, 2),
                     bias = Input<float>::Normal(stream_, hidden, 3), weight = Input<float>::Normal(stream_, hidden, 4);
          const Output<T> out(stream_, tokens * hidden);
          const float eps = 1e-5f;
          AddNorm(stream_, {h.data(), tokens, hidden}, {more.data(), nullptr},
                  {weight.data(), eps, true, biased ? bias.data() : nullptr}, out.array());
          const std::vector<double> left = Now(stream_, h), normed = out.Values();
          for (int64_t t = 0; t < tokens; ++t) {
            double sum = 0, squares = 0;
            for (int64_t j = 0; j < hidden; ++j) sum += left[t * hidden + j];
            const double middle = sum / static_cast<double>(hidden);
            for (int64_t j = 0; j < hidden; ++j) squares += std::pow(left[t * hidden + j] - middle, 2);
            const double scale = 1 / std::sqrt(squares / static_cast<double>(hidden) + static_cast<double>(eps));
            const double roundings = 24 + static_cast<double>(hidden) / 128;
            for (int64_t j = 0; j < hidden; ++j) {
              const int64_t at = t * hidden + j;
              ASSERT_EQ(left[at], static_cast<double>(static_cast<float>(h[at]) + static_cast<float>(more[at])));
              const double gain = scale * std::abs(weight[j]), added = biased ? bias[j] : 0,
                           expected = (left[at] - middle) * scale * weight[j] + added;
              // The mean has an error relative to the size of the elements.
              EXPECT_CLOSE(normed[at], expected,
                           std::abs(expected) * kUnit<T> +
                               roundings * kUnit<float> * (gain * (mean + 4) + std::abs(added)) + 0x1p-25,
                           at);
            }
          }
        }
      }
    }
  });
}

TEST_F(RmsNormOnGpu, NormsAnUpdateBeforeItIsAdded) {
  for (const int64_t hidden : {8, 1000, 4104}) {
    for (const bool biased : {false, true}) {
      const int64_t tokens = 3;
      const auto h = Input<float>::Normal(stream_, tokens * hidden, 1),
                 update = Input<float>::Normal(stream_, tokens * hidden, 2, 5.0),
                 bias = Input<float>::Normal(stream_, hidden, 3), weight = Input<float>::Normal(stream_, hidden, 4);
      AddNormedUpdate(stream_, {h.data(), tokens, hidden}, update.data(), biased ? bias.data() : nullptr, weight.data(),
                      1e-5f);
      const std::vector<double> normed = Now(stream_, update), left = Now(stream_, h);
      for (int64_t t = 0; t < tokens; ++t) {
        std::vector<double> sums(hidden);
        double squares = 0;
        for (int64_t j = 0; j < hidden; ++j) {
          const float more = biased ? static_cast<float>(bias[j]) : 0.0f;
          sums[j] = static_cast<double>(static_cast<float>(update[t * hidden + j]) + more);
          squares += sums[j] * sums[j];
        }
        const double scale = 1 / std::sqrt(squares / static_cast<double>(hidden) + 1e-5);
        const double roundings = 16 + static_cast<double>(hidden) / 256;
        for (int64_t j = 0; j < hidden; ++j) {
          const int64_t at = t * hidden + j;
          const double expected = sums[j] * scale * weight[j];
          EXPECT_CLOSE(normed[at], expected, std::abs(expected) * roundings * kUnit<float> + 0x1p-25, at);
          ASSERT_EQ(left[at], static_cast<double>(static_cast<float>(h[at]) + static_cast<float>(normed[at])));
        }
      }
    }
  }
}

TEST_F(RmsNormOnGpu, NaNStaysInItsRow) {
  const auto h = Input<float>(stream_, std::vector<double>(16, 1.0));
  const Input<float> weight(stream_, std::vector<double>(8, 1.0));
  Input<float> bad(stream_, std::vector<double>(16, 0.0));
  const float nan = NAN;
  CopyToDevice(stream_, bad.data() + 3, &nan, sizeof(nan));
  const Output<float> out(stream_, 16);
  AddNorm(stream_, {h.data(), 2, 8}, {bad.data(), nullptr}, {weight.data(), 1e-6f}, out.array());
  const std::vector<double> normed = out.Values();
  for (int j = 0; j < 8; ++j) {
    EXPECT_TRUE(std::isnan(normed[j]));
    EXPECT_NEAR(normed[8 + j], 1.0, 1e-6);
  }
}

TEST_F(RmsNormOnGpu, RefusesSizesItCannotTake) {
  const Input<float> h(stream_, std::vector<double>(24, 1.0));
  const Output<float> out(stream_, 24);
  EXPECT_THROW(AddNorm(stream_, {h.data(), 2, 12}, {}, {h.data(), 1e-6f}, out.array()), std::runtime_error);
  EXPECT_THROW(AddNorm(stream_, {h.data(), 2, 8, 12}, {}, {h.data(), 1e-6f}, out.array()), std::runtime_error);
}

}  // namespace
}  // namespace shiftrt::gpu
