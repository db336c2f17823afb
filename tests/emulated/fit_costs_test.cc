// SPDX-License-Identifier: Apache-2.0
// Counts the bytes that a fit copies between host and device (docs/dev/gpu.md).
#include <gtest/gtest.h>

#include "kernels/emulated/device.h"
#include "runtime/cuda/cuda.h"
#include "runtime/random.h"
#include "shift/fit/fit.h"
#include "tests/cuda/models.h"

namespace shiftrt {
namespace {

constexpr int64_t kWidth = 192, kRank = 3;
constexpr int64_t kNumber = sizeof(double);
constexpr int64_t kSums = (kWidth + 1) * (2 * kWidth + 1) * kNumber, kMap = kWidth * kWidth * kNumber;

struct Bytes {
  int64_t in = 0, out = 0;
};
Bytes Copied() { return {emu::BytesToDevice(), emu::BytesToHost()}; }

class FitCosts : public testing::Test {
 protected:
  FitCosts() : site_({1, 1}, kWidth) {
    for (RidgeSums* sums : {&site_.fit, &site_.heldout}) {
      constexpr int64_t kTokens = 3 * kWidth;
      Matrix<float> h(kTokens, kWidth), delta(kTokens, kWidth);
      for (float& x : h.span()) x = static_cast<float>(random_.Normal());
      for (int64_t i = 0; i < delta.size(); ++i)
        delta.data()[i] = 0.5F * h.data()[i] + static_cast<float>(0.3 * random_.Normal());
      sums->Add(Context(), h.view(), delta.view());
    }
  }
  // As a collector leaves them.
  void PutThere() {
    for (RidgeSums* sums : {&site_.fit, &site_.heldout}) {
      RidgeMatrices& m = sums->matrices();
      for (linalg::PlacedMatrix* const matrix : {&m.gram, &m.cross})
        *matrix = {*context_.solver, context_.solver->Uploaded(matrix->host().view())};
    }
  }
  FittedSites Fit(const std::string& lambda, const RankSpec& rank, Bytes& bytes) {
    FitOptions options;
    options.ridge.lambda = ParseLambda(lambda);
    options.rank = rank;
    NoProgress quiet;
    const Bytes before = Copied();
    FittedSites fitted = FitSites(context_, {&site_}, options, quiet);
    bytes = {Copied().in - before.in, Copied().out - before.out};
    return fitted;
  }

  Random random_{3};
  Context context_ = On(Device::kCuda);
  SiteSums site_;
};

// The vectors and the factors that do go over are counted as what is left.
TEST_F(FitCosts, SumsOnTheDeviceAreCopiedNeitherWay) {
  struct Case {
    const char* lambda;
    RankSpec rank;
    Bytes matrices;  // matrices of the width's square that are copied
  };
  const Case cases[] = {{"gcv", RankSpec::Fixed(kRank), {0, 0}},
                        {"holdout", RankSpec::Fixed(kRank), {0, 2}},  // quadratic forms in the diagonal
                        {"1e-2", RankSpec::Fixed(kRank), {0, 2}},     // the matrix and its factor
                        {"gcv", RankSpec::Full(), {2, 1}}};           // the map comes over, and goes to be measured
  for (const Case& c : cases) {
    SCOPED_TRACE(testing::Message() << c.lambda << ", rank " << Format(c.rank));
    Bytes there, from_host;
    const FittedSites expected = Fit(c.lambda, c.rank, from_host);
    PutThere();
    const FittedSites found = Fit(c.lambda, c.rank, there);
    EXPECT_GE(there.in, c.matrices.in * kMap);
    EXPECT_LT(there.in, (c.matrices.in + 1) * kMap);
    EXPECT_GE(there.out, c.matrices.out * kMap);
    EXPECT_LT(there.out, (c.matrices.out + 1) * kMap);
    EXPECT_EQ(found.reports[0].singular_values, expected.reports[0].singular_values);
    EXPECT_EQ(found.reports[0].r2_heldout, expected.reports[0].r2_heldout);
    EXPECT_EQ(found.reports[0].lambda, expected.reports[0].lambda);
    for (RidgeSums* sums : {&site_.fit, &site_.heldout}) sums->ToHost();
  }
}

// One upload serves the solve, the factorization and both measurements.
TEST_F(FitCosts, SumsOfTheHostAreUploadedOnce) {
  Bytes from_host, again;
  Fit("gcv", RankSpec::Fixed(kRank), from_host);
  Fit("gcv", RankSpec::Fixed(kRank), again);
  EXPECT_EQ(from_host.in - again.in, 2 * kSums);
}

}  // namespace
}  // namespace shiftrt
