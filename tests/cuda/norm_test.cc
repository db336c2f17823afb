// SPDX-License-Identifier: Apache-2.0
#include "kernels/cuda/rmsnorm.h"
#include "tests/cuda/fixture.h"
#include "tests/kernels/norm_cases.h"

namespace shiftrt::gpu {
namespace {

using test::NormCase;
using test::NormProblem;

// A mean over a group takes log2(256) + n / 256 additions in float32, and the square root halves their error.
double NormRoundings(const NormCase& c) {
  return (c.centred ? 24 : 16) + static_cast<double>(c.n) / (c.centred ? 128 : 256);
}

class NormOnGpu : public CudaTest {
 protected:
  Norm Call(const NormCase& c, const Input<float>& weight, const Input<float>& bias) const {
    return {weight.data(), c.eps, c.centred, c.biased ? bias.data() : nullptr, c.offset, c.n};
  }

  // h += update (+ row), in float32 as the kernel must write it, and the norm of h.
  template <typename T>
  void CheckFused(const NormCase& c, bool with_update, bool with_row) {
    NormProblem p(c);
    const Input<float> h(stream_, p.x), update(stream_, p.dy), row(stream_, p.dweight), weight(stream_, p.weight),
        bias(stream_, p.bias);
    const Output<T> out(stream_, c.rows * c.n);
    AddNorm(stream_, {h.data(), c.rows, c.n}, {with_update ? update.data() : nullptr, with_row ? row.data() : nullptr},
            Call(c, weight, bias), out.array());
    for (int64_t i = 0; i < c.rows * c.n; ++i) {
      auto sum = static_cast<float>(p.x[i]);
      if (with_update) sum += static_cast<float>(p.dy[i]);
      if (with_row) sum += static_cast<float>(p.dweight[i % c.n]);
      p.x[i] = sum;
    }
    ASSERT_EQ(Now(stream_, h), p.x);
    test::ExpectClose("norm", out.Values(), p.Exactly(1).out, {NormRoundings(c), DTypeOf<T>::value, 0x1p-25});
  }
};

TEST_F(NormOnGpu, OfSumsAgreesWithFloat64) {
  for (const NormCase& c : test::NormCases()) {
    if (c.groups > 1 || c.n % 8 != 0 || c.rows > 3 || TooLarge(c.rows * c.n, 12'500)) continue;
    SCOPED_TRACE(c.Name());
    ForEveryType([&](auto type) { CheckFused<decltype(type)>(c, true, c.n == 1000); });
    if (c.n == 64) ForEveryType([&](auto type) { CheckFused<decltype(type)>(c, false, c.size > 1); });
  }
}

TEST_F(NormOnGpu, OfAnUpdateBeforeItIsAdded) {
  for (const NormCase& c : test::NormCases()) {
    if (c.centred || c.groups > 1 || c.offset != 0 || c.n % 8 != 0 || c.rows > 3 || TooLarge(c.rows * c.n, 12'500))
      continue;
    for (const bool biased : {false, true}) {
      SCOPED_TRACE(c.Name());
      NormProblem p(c);
      const Input<float> h(stream_, p.dy), update(stream_, p.x), row(stream_, p.dweight), weight(stream_, p.weight);
      AddNormedUpdate(stream_, {h.data(), c.rows, c.n}, update.data(), biased ? row.data() : nullptr, weight.data(),
                      c.eps);
      for (int64_t i = 0; biased && i < c.rows * c.n; ++i)
        p.x[i] = static_cast<float>(p.x[i]) + static_cast<float>(p.dweight[i % c.n]);
      const std::vector<double> normed = Now(stream_, update), left = Now(stream_, h);
      test::ExpectClose("norm", normed, p.Exactly(1).out, {NormRoundings(c), DType::kFloat32, 0x1p-25});
      for (size_t i = 0; i < left.size(); ++i)
        ASSERT_EQ(left[i], static_cast<double>(static_cast<float>(p.dy[i]) + static_cast<float>(normed[i]))) << i;
    }
  }
}

// Rows have gaps. The gradient takes the place of dy, or another, or is added to one. Both are also written in
// bfloat16.
TEST_F(NormOnGpu, OfRowsWithItsGradientAgreesWithFloat64) {
  enum class Into { kOther, kDy, kAccumulated };
  int turn = 0;
  for (const NormCase& c : test::NormCases()) {
    if (TooLarge(c.rows * c.cols(), 6'200)) continue;
    const auto into = static_cast<Into>(turn++ % 3);
    SCOPED_TRACE(c.Name());
    const NormProblem p(c);
    const int64_t rows = c.rows, cols = c.cols(), stride = cols + 3, count = rows * cols;
    std::vector<double> with_gaps(rows * stride, std::nan(""));
    for (int64_t i = 0; i < count; ++i) with_gaps[i / cols * stride + i % cols] = p.x[i];
    const Input<float> x(stream_, with_gaps), dy(stream_, p.dy), weight(stream_, p.weight), bias(stream_, p.bias),
        before(stream_, p.dx), dweight(stream_, p.dweight);
    const Input<float>& dx = into == Into::kDy ? dy : before;
    const Output<float> out(stream_, count), scales(stream_, (c.centred ? 2 : 1) * rows * c.groups),
        alone(stream_, count);
    const Output<BFloat16> rounded(stream_, count), rounded_dx(stream_, count);
    const Norm norm = Call(c, weight, bias);
    const MatrixView<const float> in(x.data(), rows, cols, stride);
    NormRows(stream_, norm, in, {{out.data(), rows, cols}, rounded.data()});
    NormRowsGradient(stream_, norm, in, {dy.data(), rows, cols}, false, MatrixView<float>(alone.data(), rows, cols));
    NormRowsGradient(stream_, norm, in, {dy.data(), rows, cols}, into == Into::kAccumulated,
                     {{dx.data(), rows, cols}, rounded_dx.data()}, {dweight.data(), 1, c.n}, scales.data());
    const std::vector<double> normed = out.Values(), found = Now(stream_, dx);
    const NormProblem::Results exact = p.Exactly(1);
    const double roundings = 32 + static_cast<double>(c.n) / 16;
    test::ExpectClose("norm", normed, exact.out, {roundings});
    test::ExpectClose("dx", found, into == Into::kAccumulated ? exact.sum : exact.dx, {roundings});
    test::ExpectClose("dweight", Now(stream_, dweight), exact.dweight,
                      {roundings + static_cast<double>(rows * c.groups)});
    ExpectRoundings(normed, rounded);
    ExpectRoundings(found, rounded_dx);
    if (into != Into::kAccumulated) {
      ASSERT_EQ(alone.Values(), found) << "with and without the weights' gradient";
    }
    if (HasFailure()) return;
  }
}

TEST_F(NormOnGpu, NaNStaysInItsRow) {
  const auto h = Input<float>(stream_, std::vector<double>(16, 1.0));
  const Input<float> weight(stream_, std::vector<double>(8, 1.0));
  std::vector<double> update(16, 0.0);
  update[3] = test::kNan;
  const Input<float> bad(stream_, update);
  const Output<float> out(stream_, 16);
  AddNorm(stream_, {h.data(), 2, 8}, {bad.data(), nullptr}, {weight.data(), 1e-6f}, out.array());
  const std::vector<double> normed = out.Values();
  for (int j = 0; j < 8; ++j) {
    EXPECT_TRUE(std::isnan(normed[j]));
    EXPECT_NEAR(normed[8 + j], 1.0, 1e-6);
  }
}

TEST_F(NormOnGpu, RefusesSizesItCannotTake) {
  const Input<float> h(stream_, std::vector<double>(24, 1.0));
  const Output<float> out(stream_, 24);
  EXPECT_THROW(AddNorm(stream_, {h.data(), 2, 12}, {}, {h.data(), 1e-6f}, out.array()), std::runtime_error);
  EXPECT_THROW(AddNorm(stream_, {h.data(), 2, 8, 12}, {}, {h.data(), 1e-6f}, out.array()), std::runtime_error);
  EXPECT_THROW(NormRows(stream_, {.weight = h.data(), .n = 5}, {h.data(), 1, 24}, MatrixView<float>(h.data(), 1, 24)),
               std::runtime_error);
}

}  // namespace
}  // namespace shiftrt::gpu
