// SPDX-License-Identifier: Apache-2.0
#include "kernels/lra.h"

#include "tests/kernels/oracle.h"

namespace shiftrt {
namespace {

using test::Exact;
using test::Padded;
using test::SumTolerance;

class LraTest : public test::OnEveryIsa {};
SHIFTRT_ON_EVERY_ISA(LraTest);

// h A + b + h in float64, with the sums of absolute values for the tolerance; A (d, d) is given by element.
template <typename Element>
void ExpectAdapted(const Padded& h, const Padded& out, const Padded& b, int64_t terms, Element&& a) {
  const int64_t d = h.cols();
  for (int64_t j = 0; j < d; ++j) {
    std::vector<Exact> column(d);
    for (int64_t k = 0; k < d; ++k) column[k] = a(k, j);
    for (int64_t t = 0; t < h.rows(); ++t) {
      Exact expected;
      expected.Add(h(t, j));
      expected.Add(b(0, j));
      for (int64_t k = 0; k < d; ++k) {
        expected.value += h(t, k) * column[k].value;
        expected.size += std::abs(h(t, k)) * column[k].size;
      }
      ASSERT_NEAR(out(t, j), expected.value, SumTolerance(terms, expected.size)) << "at " << t << ", " << j;
    }
  }
  ASSERT_TRUE(out.PaddingIsUntouched());
}

TEST_P(LraTest, LowRankAgreesWithFloat64) {
  for (const int64_t tokens : {1, 4, 5, 33}) {
    for (const int64_t d : {1, 33, 96}) {
      for (const int64_t r : {1, 7, 32}) {
        SCOPED_TRACE(fmt::format("tokens {} d {} r {}", tokens, d, r));
        const Padded h = Padded::Normal(tokens, d, 1), p = Padded::Normal(d, r, 2, 0.2), q = Padded::Normal(r, d, 3),
                     b = Padded::Normal(1, d, 4), out = h.Copy(), threaded = h.Copy();
        ApplyLowRankLra(context_, p.view(), q.view(), b.view(), out.view());
        // The error of the first product, then that of the second product, which uses the first.
        ExpectAdapted(h, out, b, d + r + 4, [&](int64_t k, int64_t j) {
          Exact element;
          for (int64_t i = 0; i < r; ++i) element.Add(static_cast<double>(p(k, i)) * q(i, j));
          return element;
        });
        if (HasFatalFailure()) return;
        ApplyLowRankLra(On(3), p.view(), q.view(), b.view(), threaded.view());
        EXPECT_TRUE(test::Identical(out, threaded));
      }
    }
  }
}

TEST_P(LraTest, FullAgreesWithFloat64) {
  for (const int64_t tokens : {1, 4, 5, 33}) {
    for (const int64_t d : {1, 33, 96, 300}) {
      SCOPED_TRACE(fmt::format("tokens {} d {}", tokens, d));
      const Padded h = Padded::Normal(tokens, d, 1), a = Padded::Normal(d, d, 2, 0.2), b = Padded::Normal(1, d, 4),
                   out = h.Copy(), threaded = h.Copy();
      ApplyFullLra(context_, a.view(), b.view(), out.view());
      ExpectAdapted(h, out, b, d + 3, [&](int64_t k, int64_t j) {
        Exact element;
        element.Add(a(k, j));
        return element;
      });
      if (HasFatalFailure()) return;
      ApplyFullLra(On(3), a.view(), b.view(), threaded.view());
      EXPECT_TRUE(test::Identical(out, threaded));
    }
  }
}

TEST_P(LraTest, RefusesWhatDoesNotFit) {
  const Padded h = Padded::Normal(2, 4, 1), p = Padded::Normal(4, 3, 2), q = Padded::Normal(3, 4, 3),
               b = Padded::Normal(1, 4, 4), a = Padded::Normal(4, 4, 5);
  EXPECT_NO_THROW(ApplyLowRankLra(context_, p.view(), q.view(), b.view(), h.view()));
  EXPECT_THROW(ApplyLowRankLra(context_, q.view(), p.view(), b.view(), h.view()), Error);
  EXPECT_THROW(ApplyLowRankLra(context_, p.view(), p.view(), b.view(), h.view()), Error);
  EXPECT_THROW(ApplyLowRankLra(context_, p.view(), q.view(), b.view().Cols(0, 3), h.view()), Error);
  EXPECT_NO_THROW(ApplyFullLra(context_, a.view(), b.view(), h.view()));
  EXPECT_THROW(ApplyFullLra(context_, p.view(), b.view(), h.view()), Error);
  EXPECT_THROW(ApplyFullLra(context_, a.view(), q.view(), h.view()), Error);
}

// Shapes that do not match must be refused before h is changed.
TEST_P(LraTest, ARefusalLeavesTheStream) {
  const Padded h = Padded::Normal(2, 4, 1), before = h.Copy(), p = Padded::Normal(4, 3, 2), q = Padded::Normal(3, 4, 3),
               b = Padded::Normal(1, 3, 4), a = Padded::Normal(4, 4, 5);
  EXPECT_THROW(ApplyLowRankLra(context_, p.view(), q.view(), b.view(), h.view()), Error);
  EXPECT_THROW(ApplyFullLra(context_, a.view(), b.view(), h.view()), Error);
  EXPECT_TRUE(test::Identical(h, before));
}

}  // namespace
}  // namespace shiftrt
