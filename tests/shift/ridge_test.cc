// SPDX-License-Identifier: Apache-2.0
#include "shift/fit/ridge.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>
#include <tuple>

#include "runtime/check.h"
#include "runtime/random.h"
#include "shift/sums/moments.h"
#include "tests/shift/goldens.h"
#include "tests/shift/tokens.h"

namespace shiftrt {
namespace {

using test::Accumulated;
using test::FrobeniusNorm;
using test::MakeTokens;
using test::RelativeError;
using test::Tokens;

RidgeOptions Options(const std::string& lambda, bool penalize_bias = false) {
  return {ParseLambda(lambda), penalize_bias};
}

RidgeOptions Absolute(double lambda, bool penalize_bias) {
  return {{LambdaSpec::Kind::kAbsolute, lambda}, penalize_bias};
}

TEST(Ridge, AgreesWithNumpyOnTheTokensThemselves) {
  for (const auto& golden : test::Goldens()) {
    SCOPED_TRACE(golden.at("name").get<std::string>());
    const bool massive = golden.at("massive");
    const RidgeSums sums = Accumulated(MakeTokens(golden.at("tokens"), massive, 11));
    const RidgeSolution solution =
        SolveRidge(Context(), sums, Absolute(golden.at("lambda"), golden.at("penalize_bias")));
    EXPECT_LT(RelativeError(solution.a.host().span(), test::Numbers(golden, "a")), 1e-9);
    EXPECT_LT(RelativeError(solution.b.span(), test::Numbers(golden, "b")), 1e-9);
    EXPECT_EQ(solution.warning, "");
    EXPECT_GE(solution.condition, 1.0);
    EXPECT_NEAR(RSquared(Context(), sums, solution.a.host().view(), solution.b.view()), golden.at("r2"), 1e-9);
    const RidgeSums heldout = Accumulated(MakeTokens(40, massive, 12));
    EXPECT_NEAR(RSquared(Context(), heldout, solution.a.host().view(), solution.b.view()), golden.at("r2_heldout"),
                1e-9);
  }
}

TEST(Ridge, ChoosesLambdaAsTold) {
  for (const auto& golden : test::Goldens()) {
    SCOPED_TRACE(golden.at("name").get<std::string>());
    const RidgeSums sums = Accumulated(MakeTokens(golden.at("tokens"), golden.at("massive"), 11));
    const std::string kind = golden.at("kind");
    const std::string text = kind == "gcv"        ? kind
                             : kind == "relative" ? fmt::format("{}rel", golden.at("value").get<double>())
                                                  : fmt::format("{}", golden.at("value").get<double>());
    const RidgeSolution solution = SolveRidge(Context(), sums, Options(text, golden.at("penalize_bias")));
    // The refined grid steps by 10^(1/64); the score is flat at its lowest point.
    const double slack = kind == "gcv" ? 0.05 : 1e-12;
    EXPECT_NEAR(std::log(solution.lambda), std::log(golden.at("lambda").get<double>()), slack);
    EXPECT_LT(RelativeError(solution.a.host().span(), test::Numbers(golden, "a")), kind == "gcv" ? 0.02 : 1e-9);
  }
}

// Generic noise: the more of it, the more GCV shrinks; with fewer tokens than coordinates it must not interpolate.
TEST(Ridge, GcvBehavesWithFewerTokensThanCoordinates) {
  for (const int64_t tokens : {1, 2, 5, 12, 13}) {
    SCOPED_TRACE(tokens);
    const RidgeSolution solution = SolveRidge(Context(), Accumulated(MakeTokens(tokens, false, 3)), Options("gcv"));
    EXPECT_TRUE(std::isfinite(solution.lambda));
    EXPECT_GT(solution.lambda, 0);
    EXPECT_TRUE(std::isfinite(FrobeniusNorm(solution.a.host().span())));
    EXPECT_LT(FrobeniusNorm(solution.a.host().span()), 2.0);
    EXPECT_TRUE(std::isfinite(FrobeniusNorm(solution.b.span())));
  }
}

// Samples that begin alike repeat their first token exactly. Such repetitions are no evidence that interpolation works:
// the lambda is not the lowest of the grid.
TEST(Ridge, GcvTakesNoEvidenceFromRepeatedTokens) {
  constexpr int64_t kDistinct = 9, kRepeated = 2;
  for (const uint64_t seed : {3, 4, 5}) {
    for (const int64_t repetitions : {1, 3}) {  // fewer tokens than inputs in all, and more
      SCOPED_TRACE(testing::Message() << "seed " << seed << ", repeated " << repetitions << " times");
      Tokens distinct = MakeTokens(kDistinct, false, seed);
      Random random(seed);
      for (float& x : distinct.delta.span()) x += static_cast<float>(random.Normal());
      Tokens repeating = {Matrix<float>(kDistinct + kRepeated * repetitions, test::kHidden),
                          Matrix<float>(kDistinct + kRepeated * repetitions, test::kHidden)};
      for (int64_t i = 0; i < repeating.h.rows(); ++i) {
        const int64_t from = i < kDistinct ? i : (i - kDistinct) % kRepeated;
        std::copy_n(distinct.h.row(from), test::kHidden, repeating.h.row(i));
        std::copy_n(distinct.delta.row(from), test::kHidden, repeating.delta.row(i));
      }
      const RidgeSums sums = Accumulated(repeating);
      const std::vector<double> squares = sums.InputSquares();
      const double unit = std::accumulate(squares.begin(), squares.end(), 0.0) / test::kHidden;
      EXPECT_GT(SolveRidge(Context(), sums, Options("gcv")).lambda, 0.01 * unit);  // the grid begins at 1e-10 unit
    }
  }
}

TEST(Ridge, TokensOfWeightZeroDoNotCount) {
  const Tokens tokens = MakeTokens(40, false, 6);
  std::vector<double> weights(40, 0.0);
  Tokens counted = {Matrix<float>(20, test::kHidden), Matrix<float>(20, test::kHidden)};
  for (int64_t i = 0; i < 20; ++i) {
    weights[2 * i] = 1;
    std::copy_n(tokens.h.row(2 * i), test::kHidden, counted.h.row(i));
    std::copy_n(tokens.delta.row(2 * i), test::kHidden, counted.delta.row(i));
  }
  const RidgeSums weighted = Accumulated(tokens, weights), expected = Accumulated(counted);
  EXPECT_EQ(weighted.tokens(), 20);
  EXPECT_EQ(SolveRidge(Context(), weighted, Options("gcv")).lambda,
            SolveRidge(Context(), expected, Options("gcv")).lambda);
  const std::vector<double> none(40, 0.0);
  EXPECT_THROW(SolveRidge(Context(), Accumulated(tokens, none), Options("gcv")), Error);
}

// The score of every lambda that could be chosen, from an eigendecomposition.
TEST(Ridge, GcvChoosesTheBestLambdaOfAll) {
  const auto solver = linalg::MakeHostSolver(Context());
  for (const int64_t tokens : {13, 30, 200}) {
    for (const bool massive : {false, true}) {
      for (const double noise : {0.0, 3.0, 100.0}) {
        SCOPED_TRACE(testing::Message() << tokens << " tokens, noise " << noise << (massive ? ", massive" : ""));
        Tokens noisy = MakeTokens(tokens, massive, 7);
        Random random(8);
        for (float& x : noisy.delta.span()) x += static_cast<float>(noise * random.Normal());
        const RidgeSums sums = Accumulated(noisy);
        const linalg::ArrayPtr vectors = CenteredGram(*solver, sums);
        const std::vector<double> values = solver->Eigen(*vectors);
        const linalg::ArrayPtr projected = solver->Product({*vectors}, {*CenteredCross(*solver, sums)});
        const std::vector<double> energies = solver->RowDots(*projected, *projected);
        double unit = 0, unexplained = sums.CenteredDeltaSquares();
        for (int64_t i = 0; i < test::kHidden; ++i) unit += sums.UpperGram()(i, i) / test::kHidden;
        for (int64_t i = 0; i < test::kHidden; ++i) unexplained -= energies[i] / values[i];
        const auto score = [&](double lambda) {
          double residual = std::max(0.0, unexplained), freedom = static_cast<double>(tokens - 1 - test::kHidden);
          for (int64_t i = 0; i < test::kHidden; ++i) {
            const double shrinkage = lambda / (values[i] + lambda);
            residual += energies[i] / values[i] * shrinkage * shrinkage;
            freedom += shrinkage;
          }
          return residual / (freedom * freedom);
        };
        double best = 0, least = std::numeric_limits<double>::infinity();
        for (int i = -640; i <= 128; ++i) {
          const double lambda = unit * std::pow(10.0, i / 64.0), found = score(lambda);
          if (found < least) std::tie(best, least) = std::tuple(lambda, found);
        }
        const double lambda = SolveRidge(Context(), sums, Options("gcv")).lambda;
        EXPECT_LE(score(lambda), least * (1 + 1e-6)) << lambda << " where " << best << " is best";
        EXPECT_NEAR(std::log10(lambda), std::log10(best), 1.01 / 64);
      }
    }
  }
}

// D = H A + b exactly: full rank recovers the block, massive coordinate and all.
TEST(Ridge, RecoversAnAffineBlock) {
  Tokens tokens = MakeTokens(200, true, 4);
  Matrix<double> a(test::kHidden, test::kHidden), b(1, test::kHidden);
  Random random(1);
  // Sixteenths times float32 inputs cut to eighths: every update is exact.
  for (float& x : tokens.h.span()) x = std::round(x * 8) / 8;
  for (double& x : a.span()) x = static_cast<double>(random.Below(9) - 4) / 16;
  for (double& x : b.span()) x = static_cast<double>(random.Below(9) - 4) / 16;
  for (int64_t i = 0; i < 200; ++i) {
    for (int64_t j = 0; j < test::kHidden; ++j) {
      double update = b(0, j);
      for (int64_t k = 0; k < test::kHidden; ++k) update += tokens.h(i, k) * a(k, j);
      tokens.delta(i, j) = static_cast<float>(update);
    }
  }
  const RidgeSums sums = Accumulated(tokens);
  for (const char* lambda : {"0", "gcv"}) {
    SCOPED_TRACE(lambda);
    const RidgeSolution solution = SolveRidge(Context(), sums, Options(lambda));
    const double tolerance = lambda == std::string("0") ? 1e-9 : 1e-4;
    EXPECT_LT(RelativeError(solution.a.host().span(), a.span()), tolerance);
    EXPECT_NEAR(RSquared(Context(), sums, solution.a.host().view(), solution.b.view()), 1.0, 1e-9);
  }
}

TEST(Ridge, LargeLambdaLeavesThePrunedModel) {
  const RidgeSums sums = Accumulated(MakeTokens(100, false, 11));
  for (const bool penalize_bias : {false, true}) {
    const RidgeSolution solution = SolveRidge(Context(), sums, Options("1e15", penalize_bias));
    EXPECT_LT(FrobeniusNorm(solution.a.host().span()), 1e-10);
    const Matrix<double> mean = sums.DeltaMean();
    if (penalize_bias) {
      EXPECT_LT(FrobeniusNorm(solution.b.span()), 1e-10);
    } else {
      EXPECT_LT(RelativeError(solution.b.span(), mean.span()), 1e-10);
    }
  }
}

TEST(Ridge, FallsBackWhenTheGramIsSingular) {
  Tokens tokens = MakeTokens(100, false, 11);
  for (int64_t i = 0; i < 100; ++i) tokens.h(i, 5) = tokens.h(i, 6);
  const RidgeSums sums = Accumulated(tokens);
  const RidgeSolution solution = SolveRidge(Context(), sums, Options("0"));
  EXPECT_NE(solution.warning.find("condition number"), std::string::npos) << solution.warning;
  EXPECT_NE(solution.warning.find("1 of 12 directions left out"), std::string::npos) << solution.warning;
  EXPECT_GT(solution.condition, 1e14);
  // The solution of least norm shares the weight between the twins.
  for (int64_t j = 0; j < test::kHidden; ++j) EXPECT_NEAR(solution.a.host()(5, j), solution.a.host()(6, j), 1e-9);
  const RidgeSolution regular = SolveRidge(Context(), sums, Options("1e-9rel"));
  EXPECT_EQ(regular.warning, "");
  EXPECT_LT(RelativeError(solution.a.host().span(), regular.a.host().span()), 1e-6);
}

TEST(Ridge, InputsThatAreAllZeroLeaveTheMean) {
  Tokens tokens = MakeTokens(20, false, 2);
  for (float& x : tokens.h.span()) x = 0;
  const RidgeSums sums = Accumulated(tokens);
  for (const char* lambda : {"0", "1e-2", "1e-4rel", "gcv"}) {
    const RidgeSolution solution = SolveRidge(Context(), sums, Options(lambda));
    EXPECT_EQ(FrobeniusNorm(solution.a.host().span()), 0.0) << lambda;
    EXPECT_LT(RelativeError(solution.b.span(), sums.DeltaMean().span()), 1e-12) << lambda;
  }
}

// The best of the grid by trying every lambda on the held-out tokens themselves.
TEST(Ridge, HoldoutTakesTheLambdaThatServesTheHeldOutTokensBest) {
  for (const bool penalize_bias : {false, true}) {
    for (const bool massive : {false, true}) {
      SCOPED_TRACE(testing::Message() << penalize_bias << massive);
      const RidgeSums sums = Accumulated(MakeTokens(16, massive, 31));
      const Tokens judge = MakeTokens(200, massive, 32);
      const RidgeSums heldout = Accumulated(judge);
      const RidgeSolution solution = SolveRidge(Context(), sums, Options("holdout", penalize_bias), &heldout);
      const double chosen = test::Residual(judge, solution.a.host(), solution.b);
      double best = chosen;
      for (double power = -12; power < 8; power += 0.05) {
        const RidgeSolution other = SolveRidge(Context(), sums, Absolute(std::pow(10.0, power), penalize_bias));
        best = std::min(best, test::Residual(judge, other.a.host(), other.b));
      }
      EXPECT_LE(chosen, best * 1.001);
      EXPECT_GT(solution.lambda, 0);
    }
  }
}

TEST(Ridge, HoldoutNeedsHeldOutTokens) {
  const RidgeSums sums = Accumulated(MakeTokens(40, false, 3)), none(test::kHidden);
  EXPECT_THROW(SolveRidge(Context(), sums, Options("holdout")), Error);
  EXPECT_THROW(SolveRidge(Context(), sums, Options("holdout"), &none), Error);
}

// As in real residual streams: three coordinates thousands of times larger than the others, one of them nearly
// constant. What the small coordinates explain must not be lost.
TEST(Ridge, MassiveActivationsDoNotHideTheRest) {
  const Tokens plain = MakeTokens(400, false, 5), plain_judge = MakeTokens(400, false, 6);
  const auto grown = [](const Tokens& from) {
    Tokens tokens{from.h.Clone(), from.delta.Clone()};
    for (int64_t i = 0; i < tokens.h.rows(); ++i) {
      tokens.h(i, 1) *= 3000;
      tokens.h(i, 4) = 20000 + tokens.h(i, 4);
      tokens.h(i, 9) *= 8000;
    }
    return tokens;
  };
  const RidgeSums sums = Accumulated(plain), judge = Accumulated(plain_judge);
  const RidgeSums massive = Accumulated(grown(plain)), massive_judge = Accumulated(grown(plain_judge));
  const RidgeSolution expected = SolveRidge(Context(), sums, Options("gcv"));
  const double r2 = RSquared(Context(), judge, expected.a.host().view(), expected.b.view());
  for (const char* lambda : {"gcv", "holdout", "1e-12rel"}) {
    SCOPED_TRACE(lambda);
    const RidgeSolution solution = SolveRidge(Context(), massive, Options(lambda), &massive_judge);
    EXPECT_NEAR(RSquared(Context(), massive_judge, solution.a.host().view(), solution.b.view()), r2, 0.01);
    EXPECT_GT(solution.condition, 1e5);
  }
}

TEST(Ridge, NeedsTokens) { EXPECT_THROW(SolveRidge(Context(), RidgeSums(3), {}), Error); }

TEST(SolveRidge, RefusesSumsThatAreNotFinite) {
  const RidgeSums sums = Accumulated(test::MakeTokens(50, false, 3));
  const Matrix<double> gram = sums.Gram();
  gram(2, 5) = std::nan("");
  EXPECT_THROW(SolveRidge(Context(), RidgeSums::FromSums(gram.Clone(), sums.Cross().Clone(), 1, 50), {}), Error);
}

TEST(RSquared, IsZeroForTheMeanAndWhereNothingVaries) {
  Tokens tokens = MakeTokens(50, false, 2);
  const RidgeSums sums = Accumulated(tokens);
  const Matrix<double> a = Matrix<double>::Zeros(test::kHidden, test::kHidden);
  EXPECT_NEAR(RSquared(Context(), sums, a.view(), sums.DeltaMean().view()), 0.0, 1e-12);
  for (float& x : tokens.delta.span()) x = 0.1f;
  EXPECT_EQ(RSquared(Context(), Accumulated(tokens), a.view(), Matrix<double>::Zeros(1, test::kHidden).view()), 0.0);
}

TEST(RSquared, IsNanWithoutTokens) {
  const Matrix<double> a = Matrix<double>::Zeros(test::kHidden, test::kHidden),
                       b = Matrix<double>::Zeros(1, test::kHidden);
  EXPECT_TRUE(std::isnan(RSquared(Context(), RidgeSums(test::kHidden), a.view(), b.view())));
}

TEST(Lambda, Parses) {
  EXPECT_EQ(ParseLambda("1e-2").kind, LambdaSpec::Kind::kAbsolute);
  EXPECT_EQ(ParseLambda("1e-2").value, 1e-2);
  EXPECT_EQ(ParseLambda("1e-4rel").kind, LambdaSpec::Kind::kRelative);
  EXPECT_EQ(ParseLambda("1e-4rel").value, 1e-4);
  EXPECT_EQ(ParseLambda("gcv").kind, LambdaSpec::Kind::kGcv);
  for (const char* text : {"0.01", "1e-04rel", "gcv", "holdout", "0"})
    EXPECT_EQ(Format(ParseLambda(Format(ParseLambda(text)))), Format(ParseLambda(text)));
  for (const char* text : {"", "rel", "-1", "nan", "inf", "1e999", "1e-2x", " 1", "GCV", "-0.1rel"})
    EXPECT_THROW(ParseLambda(text), UsageError) << text;
}

}  // namespace
}  // namespace shiftrt
