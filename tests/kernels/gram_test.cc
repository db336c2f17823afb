// SPDX-License-Identifier: Apache-2.0
#include "kernels/gram.h"

#include "tests/kernels/gram_cases.h"
#include "tests/kernels/oracle.h"

namespace shiftrt {
namespace {

using test::Padded;
using test::RidgeSumsProblem;

// The sums of the tokens of all calls.
struct ComputedSums {
  Matrix<double> gram, cross;
};
ComputedSums Compute(const Context& context, const RidgeSumsProblem& p) {
  ComputedSums found{Matrix<double>::Zeros(p.c.n + 1, p.c.n + 1), Matrix<double>::Zeros(p.c.n + 1, p.c.d)};
  for (const RidgeSumsProblem::Call& call : p.calls) {
    const Padded inputs = Padded::Of(call.tokens, p.c.n, call.inputs),
                 updates = Padded::Of(call.tokens, p.c.d, call.updates);
    AddToRidgeSums(context, inputs.view(), updates.view(), p.c.weighted ? call.weights : std::vector<double>(),
                   {found.gram.view(), found.cross.view()});
  }
  return found;
}

TEST(GramTest, SumsAgreeWithFloat64) {
  for (const test::RidgeSumsCase& c : test::RidgeSumsCases()) {
    SCOPED_TRACE(c.Name());
    const RidgeSumsProblem problem(c);
    for (const int threads : {1, 3}) {
      ComputedSums found = Compute({.threads = threads}, problem);
      for (int64_t i = 0; i <= c.n; ++i)
        for (int64_t j = 0; j < i; ++j) found.gram(i, j) = 0;  // it may be anything
      const auto dense = [](const Matrix<double>& m) { return std::vector<double>(m.span().begin(), m.span().end()); };
      // Both factors of a product are multiplied by the square root of the token's weight.
      problem.Expect(dense(found.gram), dense(found.cross), c.weighted ? 6 : 0);
      if (HasFailure()) return;
    }
  }
}

TEST(GramTest, RowProductsAgreeWithFloat64) {
  for (const test::RowProductsProblem& p : test::RowProductsProblems()) {
    const Padded a = Padded::Of(p.tokens, p.n, p.a), b = Padded::Of(p.tokens, p.n, p.b);
    for (const int threads : {1, 3}) {
      std::vector<RowProducts> found(p.tokens);
      ComputeRowProducts({.threads = threads}, a.view(), b.view(), found);
      p.Expect(found);
    }
  }
}

TEST(GramTest, RefusesWhatDoesNotFit) {
  const Padded h = Padded::Normal(3, 4, 1), delta = Padded::Normal(3, 2, 2), few = Padded::Normal(2, 2, 3);
  Matrix<double> gram(5, 5), cross(5, 2), narrow(5, 1);
  const auto add = [&](const Padded& updates, const std::vector<double>& weights, Matrix<double>& to) {
    AddToRidgeSums(Context(), h.view(), updates.view(), weights, {gram.view(), to.view()});
  };
  EXPECT_THROW(add(few, {}, cross), Error);
  EXPECT_THROW(add(delta, {}, narrow), Error);
  EXPECT_THROW(add(delta, {1, 1}, cross), Error);
  for (const double weight : {-1.0, std::nan(""), HUGE_VAL}) EXPECT_THROW(add(delta, {1, weight, 1}, cross), Error);
  std::vector<RowProducts> products(3);
  EXPECT_THROW(ComputeRowProducts(Context(), h.view(), delta.view(), products), Error);
}

}  // namespace
}  // namespace shiftrt
