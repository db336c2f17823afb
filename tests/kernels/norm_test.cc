// SPDX-License-Identifier: Apache-2.0
#include "kernels/layernorm.h"
#include "kernels/rmsnorm.h"
#include "tests/kernels/norm_cases.h"
#include "tests/kernels/oracle.h"

namespace shiftrt {
namespace {

using test::NormCase;
using test::NormProblem;
using test::Padded;
using test::Stored;

class NormTest : public test::OnEveryIsa {};
SHIFTRT_ON_EVERY_ISA(NormTest);

struct NormFound {
  Padded out, dx, sum, dweight, dbias;
};

// Both in place and into matrices of NaN; the gradient of heads is not added to another.
NormFound Compute(const Context& context, const NormProblem& p, DType dtype, bool in_place) {
  const NormCase& c = p.c;
  const Stored weight(dtype, {c.n}, p.weight), bias(dtype, {c.n}, p.bias);
  const Padded x = Padded::Of(c.rows, c.cols(), p.x), dy = Padded::Of(c.rows, c.cols(), p.dy);
  NormFound found{in_place || c.groups > 1 ? x.Copy() : Padded(c.rows, c.cols()),
                  in_place ? dy.Copy() : Padded(c.rows, c.cols()), Padded::Of(c.rows, c.cols(), p.dx),
                  Padded::Of(1, c.n, p.dweight), Padded::Of(1, c.n, p.dbias)};
  const MatrixView<const float> in = in_place ? found.out.view() : x.view(),
                                dout = in_place ? found.dx.view() : dy.view();
  const NormGradient norm{x.view(), weight.view, c.eps, c.offset};
  if (c.centred) {
    LayerNorm(context, in, weight.view, c.biased ? bias.view : TensorView(), c.eps, found.out.view(), c.offset);
    LayerNormGradient(context, norm, dout, false, found.dx.view(), found.dweight.view(), found.dbias.view());
    LayerNormGradient(context, norm, dy.view(), true, found.sum.view());
  } else if (c.groups == 1) {
    RmsNorm(context, in, weight.view, c.eps, found.out.view(), c.offset);
    RmsNormGradient(context, norm, dout, false, found.dx.view(), found.dweight.view());
    RmsNormGradient(context, norm, dy.view(), true, found.sum.view());
  } else {
    RmsNormHeads(context, found.out.view(), c.n, weight.view, c.eps, c.offset);
    RmsNormHeadsGradient(context, norm, c.n, dout, found.dx.view(), found.dweight.view());
  }
  return found;
}

TEST_P(NormTest, AgreesWithFloat64) {
  for (const NormCase& c : test::NormCases()) {
    for (const DType dtype : test::kStoredTypes) {
      SCOPED_TRACE(fmt::format("{}, weights in {}", c.Name(), Name(dtype)));
      const NormProblem problem(c, dtype);
      const NormProblem::Results exact = problem.Exactly(0);
      const NormFound found = Compute(context_, problem, dtype, false);
      test::ExpectClose("norm", found.out.Values(), exact.out, {8, DType::kFloat32, 1e-12});
      test::ExpectClose("dx", found.dx.Values(), exact.dx, {8});
      if (c.groups == 1) test::ExpectClose("dx, added", found.sum.Values(), exact.sum, {8});
      const auto terms = static_cast<double>(c.rows * c.groups + 5);
      test::ExpectClose("dweight", found.dweight.Values(), exact.dweight, {1.01 * terms});
      if (c.centred) test::ExpectClose("dbias", found.dbias.Values(), exact.dbias, {1.01 * terms});
      if (HasFailure()) return;
      const NormFound threaded = Compute(On(3), problem, dtype, true);
      EXPECT_TRUE(test::Identical(found.out, threaded.out) && test::Identical(found.dx, threaded.dx));
      EXPECT_TRUE(test::Identical(found.dweight, threaded.dweight) && test::Identical(found.dbias, threaded.dbias));
    }
  }
}

TEST_P(NormTest, RowsOfZerosAndMassiveActivations) {
  NormProblem problem({2, 1, 64, 0.1});
  for (int64_t j = 0; j < 64; ++j) problem.x[j] = 0;
  problem.x[64 + 17] = 30000;
  const NormFound found = Compute(context_, problem, DType::kFloat32, false);
  for (int64_t j = 0; j < 64; ++j) EXPECT_EQ(found.out(0, j), 0);
  test::ExpectClose("norm", found.out.Values(), problem.Exactly(0).out, {8});
}

TEST_P(NormTest, RefusesWhatDoesNotFit) {
  const Padded x = Padded::Normal(2, 8, 1), out(2, 8), row(1, 8);
  const Stored weight = Stored::Normal(DType::kFloat32, {8}, 2), half = Stored::Normal(DType::kFloat32, {4}, 2),
               wide = Stored::Normal(DType::kFloat64, {8}, 2), three = Stored::Normal(DType::kFloat32, {3}, 2);
  const MatrixView<float> narrow = out.view().Cols(0, 7), flat = out.view().Rows(0, 1),
                          short_row = row.view().Cols(0, 7);
  EXPECT_THROW(RmsNorm(context_, x.view(), half.view, 1e-6f, out.view()), Error);
  EXPECT_THROW(RmsNorm(context_, x.view(), wide.view, 1e-6f, out.view()), Error);
  EXPECT_THROW(RmsNorm(context_, x.view(), weight.view, 1e-6f, narrow), Error);
  EXPECT_THROW(RmsNormHeads(context_, x.view(), 3, three.view, 1e-6f), Error);
  EXPECT_THROW(RmsNormHeads(context_, x.view(), 4, three.view, 1e-6f), Error);
  EXPECT_THROW(RmsNormHeads(context_, x.view(), 0, three.view, 1e-6f), Error);
  EXPECT_THROW(LayerNorm(context_, x.view(), half.view, {}, 1e-6f, out.view()), Error);
  EXPECT_THROW(LayerNorm(context_, x.view(), weight.view, half.view, 1e-6f, out.view()), Error);
  EXPECT_THROW(LayerNorm(context_, x.view(), weight.view, {}, 1e-6f, narrow), Error);

  const NormGradient norm{x.view(), weight.view, 1e-6f}, heads{x.view(), half.view, 1e-6f};
  EXPECT_THROW(RmsNormGradient(context_, heads, x.view(), false, out.view()), Error);
  EXPECT_THROW(RmsNormGradient(context_, norm, x.view().Cols(0, 7), false, out.view()), Error);
  EXPECT_THROW(RmsNormGradient(context_, norm, x.view(), false, flat), Error);
  EXPECT_THROW(RmsNormGradient(context_, norm, x.view(), false, out.view(), short_row), Error);
  EXPECT_THROW(RmsNormHeadsGradient(context_, heads, 4, x.view(), out.view(), row.view()), Error);
  EXPECT_THROW(RmsNormHeadsGradient(context_, heads, 8, x.view(), out.view()), Error);
  EXPECT_THROW(LayerNormGradient(context_, norm, x.view().Cols(0, 7), false, out.view()), Error);
  EXPECT_THROW(LayerNormGradient(context_, norm, x.view(), false, out.view(), short_row), Error);
  EXPECT_THROW(LayerNormGradient(context_, norm, x.view(), false, out.view(), {}, short_row), Error);
}

}  // namespace
}  // namespace shiftrt
