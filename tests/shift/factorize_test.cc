#include "shift/factorize.h"

#include <algorithm>

#include "runtime/check.h"
#include "tests/shift/goldens.h"
#include "tests/shift/tokens.h"

namespace shiftrt {
namespace {

using test::Accumulated;
using test::MakeTokens;
using test::Product;
using test::RelativeError;
using test::Tokens;

TEST(Factorize, AgreesWithFullSvdsInNumpy) {
  for (const auto& golden : test::Goldens()) {
    SCOPED_TRACE(golden.at("name").get<std::string>());
    const RidgeAccumulator sums = Accumulated(MakeTokens(golden.at("tokens"), golden.at("massive"), 11));
    const RidgeOptions options{{LambdaSpec::Kind::kAbsolute, golden.at("lambda")}, golden.at("penalize_bias")};
    const RidgeSolution solution = SolveRidge(Context(), sums, options);
    for (const Factorization kind : {Factorization::kSvd, Factorization::kReducedRank}) {
      SCOPED_TRACE(Name(kind));
      const LowRank low = Factorize(Context(), sums, solution, golden.at("rank"), kind);
      const std::vector<double> values =
          test::Numbers(golden, kind == Factorization::kSvd ? "svd_values" : "rrr_values");
      ASSERT_EQ(low.singular_values.size(), static_cast<size_t>(test::kHidden));
      EXPECT_TRUE(std::is_sorted(low.singular_values.rbegin(), low.singular_values.rend()));
      for (size_t i = 0; i < values.size(); ++i) EXPECT_NEAR(low.singular_values[i], values[i], 1e-7 * values[0]) << i;
      EXPECT_LT(RelativeError(Product(low.p, low.q).span(), test::Numbers(golden, Name(kind))), 1e-7);
      EXPECT_LT(RelativeError(low.b.span(), test::Numbers(golden, kind == Factorization::kSvd ? "b" : "rrr_b")), 1e-7);
    }
  }
}

TEST(Factorize, ReducedRankIsNeverWorseThanSvdOnTheFittedTokens) {
  for (const bool massive : {false, true}) {
    for (uint64_t seed = 20; seed < 26; ++seed) {
      const Tokens tokens = MakeTokens(100, massive, seed);
      const RidgeAccumulator sums = Accumulated(tokens);
      const RidgeSolution solution = SolveRidge(Context(), sums, {});
      for (int64_t rank = 1; rank <= test::kHidden; ++rank) {
        const LowRank svd = Factorize(Context(), sums, solution, rank, Factorization::kSvd);
        const LowRank rrr = Factorize(Context(), sums, solution, rank, Factorization::kReducedRank);
        const double worse = test::Residual(tokens, Product(svd.p, svd.q), svd.b);
        EXPECT_LE(test::Residual(tokens, Product(rrr.p, rrr.q), rrr.b), worse * (1 + 1e-9)) << seed << " " << rank;
      }
    }
  }
}

TEST(Factorize, FullRankIsTheAdapterItself) {
  const RidgeAccumulator sums = Accumulated(MakeTokens(100, true, 30));
  const RidgeSolution solution = SolveRidge(Context(), sums, {});
  for (const Factorization kind : {Factorization::kSvd, Factorization::kReducedRank}) {
    const LowRank low = Factorize(Context(), sums, solution, test::kHidden, kind);
    EXPECT_LT(RelativeError(Product(low.p, low.q).span(), solution.a.span()), 1e-12);
    EXPECT_LT(RelativeError(low.b.span(), solution.b.span()), 1e-9);
  }
}

TEST(Factorize, AZeroMapStaysZero) {
  const RidgeAccumulator sums = Accumulated(MakeTokens(100, false, 30));
  RidgeSolution solution;
  solution.a = Matrix<double>::Zeros(test::kHidden, test::kHidden);
  solution.b = Matrix<double>::Zeros(1, test::kHidden);
  const LowRank low = Factorize(Context(), sums, solution, 2, Factorization::kReducedRank);
  EXPECT_EQ(test::FrobeniusNorm(Product(low.p, low.q).span()), 0.0);
}

TEST(Factorize, RefusesRanksThatAreNone) {
  const RidgeAccumulator sums = Accumulated(MakeTokens(100, false, 30));
  const RidgeSolution solution = SolveRidge(Context(), sums, {});
  EXPECT_THROW(Factorize(Context(), sums, solution, 0, Factorization::kSvd), UsageError);
  EXPECT_THROW(Factorize(Context(), sums, solution, 13, Factorization::kSvd), UsageError);
}

TEST(Factorize, MakesFloat32Adapters) {
  const RidgeAccumulator sums = Accumulated(MakeTokens(100, false, 30));
  const RidgeSolution solution = SolveRidge(Context(), sums, {});
  const auto full = MakeLra(solution);
  const auto low = MakeLra(Factorize(Context(), sums, solution, 3, Factorization::kReducedRank));
  EXPECT_FALSE(full->low_rank());
  EXPECT_EQ(full->a(2, 5), static_cast<float>(solution.a(2, 5)));
  EXPECT_EQ(full->b(0, 5), static_cast<float>(solution.b(0, 5)));
  EXPECT_TRUE(low->low_rank());
  EXPECT_EQ(low->rank(), 3);
  EXPECT_EQ(low->parameters(), 3 * 12 * 2 + 12);
}

TEST(Factorization, Parses) {
  EXPECT_EQ(ParseFactorization("svd"), Factorization::kSvd);
  EXPECT_EQ(ParseFactorization("rrr"), Factorization::kReducedRank);
  EXPECT_THROW(ParseFactorization("qr"), UsageError);
}

}  // namespace
}  // namespace shiftrt
