// SPDX-License-Identifier: Apache-2.0
#include "shift/fit/factorize.h"

#include <algorithm>
#include <memory>
#include <string>

#include "runtime/check.h"
#include "runtime/progress.h"
#include "runtime/random.h"
#include "shift/fit/fit.h"
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
    const RidgeSums sums = Accumulated(MakeTokens(golden.at("tokens"), golden.at("massive"), 11));
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
      const RidgeSums sums = Accumulated(tokens);
      const RidgeSolution solution = SolveRidge(Context(), sums, {});
      for (int64_t rank = 1; rank <= test::kHidden; ++rank) {
        const LowRank svd = Factorize(Context(), sums, solution, rank, Factorization::kSvd);
        const LowRank rrr = Factorize(Context(), sums, solution, rank, Factorization::kReducedRank);
        const LowRank refitted = Factorize(Context(), sums, solution, rank, Factorization::kSvdRefit);
        EXPECT_EQ(RelativeError(Product(refitted.p, refitted.q).span(), Product(svd.p, svd.q).span()), 0);
        const double worst = test::Residual(tokens, Product(svd.p, svd.q), svd.b);
        const double middle = test::Residual(tokens, Product(refitted.p, refitted.q), refitted.b);
        EXPECT_LE(middle, worst * (1 + 1e-9)) << seed << " " << rank;
        EXPECT_LE(test::Residual(tokens, Product(rrr.p, rrr.q), rrr.b), middle * (1 + 1e-9)) << seed << " " << rank;
      }
    }
  }
}

// Whatever lambda is: with a heavy one the updates themselves may be nearer to the SVD's map by chance, what the full
// adapter computes is not.
TEST(Factorize, ReducedRankIsNeverFartherThanSvdFromTheFullAdapterOnTheFittedTokens) {
  Tokens tokens = MakeTokens(100, true, 26);
  const RidgeSums sums = Accumulated(tokens);
  for (const double lambda : {1e-6, 1.0, 1e3, 1e6}) {
    const RidgeSolution solution = SolveRidge(Context(), sums, {{LambdaSpec::Kind::kAbsolute, lambda}, false});
    for (int64_t t = 0; t < tokens.h.rows(); ++t) {
      for (int64_t j = 0; j < test::kHidden; ++j) {
        double update = solution.b(0, j);
        for (int64_t k = 0; k < test::kHidden; ++k) update += tokens.h(t, k) * solution.a.host()(k, j);
        tokens.delta(t, j) = static_cast<float>(update);
      }
    }
    const double rounding = 1e-6;  // error of updates rounded to float32
    for (int64_t rank = 1; rank < test::kHidden; ++rank) {
      const LowRank svd = Factorize(Context(), sums, solution, rank, Factorization::kSvd);
      const LowRank rrr = Factorize(Context(), sums, solution, rank, Factorization::kReducedRank);
      EXPECT_LE(test::Residual(tokens, Product(rrr.p, rrr.q), rrr.b),
                test::Residual(tokens, Product(svd.p, svd.q), svd.b) + rounding)
          << lambda << " " << rank;
    }
  }
}

TEST(Factorize, FullRankIsTheAdapterItself) {
  const RidgeSums sums = Accumulated(MakeTokens(100, true, 30));
  const RidgeSolution solution = SolveRidge(Context(), sums, {});
  for (const Factorization kind : {Factorization::kSvd, Factorization::kReducedRank}) {
    const LowRank low = Factorize(Context(), sums, solution, test::kHidden, kind);
    EXPECT_LT(RelativeError(Product(low.p, low.q).span(), solution.a.host().span()), 1e-12);
    EXPECT_LT(RelativeError(low.b.span(), solution.b.span()), 1e-9);
  }
}

// A penalty so large that it leaves no bias leaves none with factors either.
TEST(Factorize, APenalisedBiasIsPenalisedWithFactors) {
  const RidgeSums sums = Accumulated(MakeTokens(100, false, 30));
  for (const double lambda : {0.5, 1e15}) {
    const RidgeSolution solution = SolveRidge(Context(), sums, {{LambdaSpec::Kind::kAbsolute, lambda}, true});
    EXPECT_EQ(solution.bias_penalty, lambda);
    for (const Factorization kind : {Factorization::kSvd, Factorization::kSvdRefit, Factorization::kReducedRank}) {
      const LowRank full = Factorize(Context(), sums, solution, test::kHidden, kind);
      EXPECT_LT(RelativeError(full.b.span(), solution.b.span()), 1e-9) << Name(kind);
      const LowRank none = Truncate(Context(), sums, Factorize(Context(), sums, solution, 3, kind), 0, kind);
      const Matrix<double> mean = sums.DeltaMean();
      for (int64_t j = 0; j < test::kHidden; ++j)
        EXPECT_NEAR(none.b(0, j), mean(0, j) * 100 / (100 + lambda), 1e-12) << Name(kind);
    }
  }
}

TEST(Factorize, TruncatingIsFactorizingAtTheSmallerRank) {
  const RidgeSums sums = Accumulated(MakeTokens(100, true, 30));
  const RidgeSolution solution = SolveRidge(Context(), sums, {});
  for (const Factorization kind : {Factorization::kSvd, Factorization::kSvdRefit, Factorization::kReducedRank}) {
    const LowRank large = Factorize(Context(), sums, solution, 9, kind);
    const LowRank small = Truncate(Context(), sums, large, 4, kind);
    const LowRank expected = Factorize(Context(), sums, solution, 4, kind);
    EXPECT_LT(RelativeError(Product(small.p, small.q).span(), Product(expected.p, expected.q).span()), 1e-9);
    EXPECT_LT(RelativeError(small.b.span(), expected.b.span()), 1e-9);
    const LowRank none = Truncate(Context(), sums, large, 0, kind);
    EXPECT_EQ(none.p.cols(), 0);
    EXPECT_EQ(RelativeError(none.b.span(), sums.DeltaMean().span()), 0);
    EXPECT_THROW(Truncate(Context(), sums, small, 5, kind), Error);
  }
}

TEST(Factorize, SingularValuesAloneAreThoseOfTheFactors) {
  const RidgeSums sums = Accumulated(MakeTokens(100, false, 30));
  const RidgeSolution solution = SolveRidge(Context(), sums, {});
  for (const Factorization kind : {Factorization::kSvd, Factorization::kReducedRank}) {
    const std::vector<double> values = SingularValues(Context(), sums, solution, kind);
    const LowRank factors = Factorize(Context(), sums, solution, test::kHidden, kind);
    ASSERT_EQ(values.size(), factors.singular_values.size());
    for (size_t i = 0; i < values.size(); ++i)
      EXPECT_NEAR(values[i], factors.singular_values[i], 1e-7 * values[0]) << i;
  }
}

TEST(Rank, OfAShareOfTheEnergyIsTheSmallest) {
  const std::vector<std::vector<double>> values = {{4, 2, 1, 0}, {1, 0, 0, 0}, {0, 0, 0, 0}};  // energies 16 + 4 + 1
  const auto ranks = [&](double share) { return ChooseRanks(ParseRank(fmt::format("energy:{}", share)), values, 4); };
  EXPECT_EQ(ranks(0.5), (std::vector<int64_t>{1, 1, 1}));
  EXPECT_EQ(ranks(0.9), (std::vector<int64_t>{2, 1, 1}));
  EXPECT_EQ(ranks(0.96), (std::vector<int64_t>{3, 1, 1}));
  EXPECT_EQ(ranks(1), (std::vector<int64_t>{3, 1, 1}));
}

// Four coordinates: a direction costs 8 parameters, a bias 4, the full map 16.
TEST(Rank, ABudgetGoesWhereTheEnergyIs) {
  const std::vector<std::vector<double>> values = {{4, 3, 2, 1}, {3.5, 0.1, 0, 0}, {0.5, 0.4, 0, 0}};
  const auto ranks = [&](int64_t parameters) {
    return ChooseRanks(ParseRank(fmt::format("budget:{}", parameters)), values, 4);
  };
  EXPECT_THROW(ranks(11), Error);
  EXPECT_EQ(ranks(12), (std::vector<int64_t>{0, 0, 0}));
  EXPECT_EQ(ranks(20), (std::vector<int64_t>{1, 0, 0}));
  EXPECT_EQ(ranks(28), (std::vector<int64_t>{1, 1, 0}));
  EXPECT_EQ(ranks(36), (std::vector<int64_t>{4, 1, 0}));  // a second direction costs as much as the full map
  EXPECT_EQ(ranks(44), (std::vector<int64_t>{4, 1, 1}));
  EXPECT_EQ(ranks(1000), (std::vector<int64_t>{4, 4, 4}));
}

// At equal cost, the part of tr(D'D) that remains must not be more than with any uniform rank.
TEST(Rank, ABudgetExplainsNoLessThanEqualRanks) {
  std::vector<RidgeSums> sums;
  std::vector<RidgeSolution> solutions;
  std::vector<std::vector<double>> spectra;
  for (const uint64_t seed : {40, 41, 42}) {
    Tokens tokens = MakeTokens(200, false, seed);
    for (float& x : tokens.delta.span()) x *= static_cast<float>(seed - 38);
    sums.push_back(Accumulated(tokens));
    solutions.push_back(SolveRidge(Context(), sums.back(), {}));
    spectra.push_back(SingularValues(Context(), sums.back(), solutions.back(), Factorization::kReducedRank));
  }
  const auto explained = [&](const std::vector<int64_t>& ranks) {
    double energy = 0;
    for (size_t s = 0; s < ranks.size(); ++s)
      for (int64_t r = 0; r < ranks[s]; ++r) energy += spectra[s][r] * spectra[s][r];
    return energy;
  };
  for (int64_t rank = 1; rank < 6; ++rank) {
    const int64_t parameters = 3 * (2 * test::kHidden * rank + test::kHidden);
    const auto ranks = ChooseRanks(ParseRank(fmt::format("budget:{}", parameters)), spectra, test::kHidden);
    EXPECT_GE(explained(ranks), explained({rank, rank, rank})) << rank;
  }
}

TEST(Rank, Parses) {
  EXPECT_EQ(ParseRank("64").rank, 64);
  EXPECT_EQ(ParseRank("full").kind, RankSpec::Kind::kFull);
  EXPECT_EQ(ParseRank("energy:0.9").energy, 0.9);
  EXPECT_EQ(ParseRank("budget:4M").parameters, 4'000'000);
  EXPECT_EQ(ParseRank("budget:1.5k").parameters, 1500);
  EXPECT_EQ(ParseRank("budget:7").parameters, 7);
  for (const char* text : {"64", "full", "energy:0.9", "budget:1500"}) EXPECT_EQ(Format(ParseRank(text)), text);
  for (const char* text : {"", "0", "-1", "6x", "energy:", "energy:0", "energy:1.1", "energy:nan",
                           "budget:", "budget:0", "budget:M", "budget:4T", "budget:-3k", "budget:1e99", "half"})
    EXPECT_THROW(ParseRank(text), UsageError) << text;
}

TEST(EffectiveRank, CountsTheDirectionsThatMatter) {
  EXPECT_NEAR(EffectiveRank({2, 2, 2, 2}), 4, 1e-12);
  EXPECT_NEAR(EffectiveRank({5, 0, 0}), 1, 1e-12);
  EXPECT_EQ(EffectiveRank({0, 0}), 0);
}

TEST(Factorize, AZeroMapStaysZero) {
  const RidgeSums sums = Accumulated(MakeTokens(100, false, 30));
  RidgeSolution solution;
  solution.a = Matrix<double>::Zeros(test::kHidden, test::kHidden);
  solution.b = Matrix<double>::Zeros(1, test::kHidden);
  const LowRank low = Factorize(Context(), sums, solution, 2, Factorization::kReducedRank);
  EXPECT_EQ(test::FrobeniusNorm(Product(low.p, low.q).span()), 0.0);
}

// A solver that writes down which tridiagonal forms it makes (t) and which it has rotated back (r), and has memory for
// `room` at a time.
class Watched : public linalg::Solver {
 public:
  explicit Watched(int room) : room_(room) {}
  bool AvoidsEigen(int64_t n, int64_t sides) const override { return inner_->AvoidsEigen(n, sides); }
  linalg::ArrayPtr Make(int64_t rows, int64_t cols) override { return inner_->Make(rows, cols); }
  void Upload(MatrixView<const double> from, linalg::Array& to) override { inner_->Upload(from, to); }
  void Download(const linalg::Array& from, MatrixView<double> to) override { inner_->Download(from, to); }
  void Copy(const linalg::Array& from, linalg::Array& to) override { inner_->Copy(from, to); }
  std::vector<double> Elements(const linalg::Array& a, int64_t first, int64_t step, int64_t count) override {
    return inner_->Elements(a, first, step, count);
  }
  void Gemm(const linalg::Operand& a, const linalg::Operand& b, const linalg::Scales& scales,
            linalg::Array& c) override {
    inner_->Gemm(a, b, scales, c);
  }
  void Symm(linalg::Side side, const linalg::Array& a, const linalg::Array& b, linalg::Array& c) override {
    inner_->Symm(side, a, b, c);
  }
  bool CholeskySolve(linalg::Array& a, linalg::Array& b, double* rcond) override {
    return inner_->CholeskySolve(a, b, rcond);
  }
  std::vector<double> Eigen(linalg::Array& a) override { return inner_->Eigen(a); }
  linalg::Tridiagonal Tridiagonalize(linalg::Array& a) override {
    if (open_ == room_) throw OutOfMemory("a tridiagonal form", 1, 0, 0);
    ++open_;
    calls += 't';
    return inner_->Tridiagonalize(a);
  }
  void Rotate(const linalg::Array& a, const linalg::Tridiagonal& t, linalg::Array& rows) override {
    --open_;
    calls += 'r';
    inner_->Rotate(a, t, rows);
  }
  void RotateColumns(const linalg::Array& a, const linalg::Tridiagonal& t, linalg::Array& b) override {
    inner_->RotateColumns(a, t, b);
  }
  std::vector<double> ShrunkSquares(const linalg::Bidiagonal& root, std::span<const linalg::Bidiagonal> shrinkages,
                                    const linalg::Array& b) override {
    return inner_->ShrunkSquares(root, shrinkages, b);
  }
  void AddToDiagonal(double value, linalg::Array& a) override { inner_->AddToDiagonal(value, a); }
  void ScaleRows(std::span<const double> factors, linalg::Array& a) override { inner_->ScaleRows(factors, a); }
  std::vector<double> RowDots(const linalg::Array& a, const linalg::Array& b) override { return inner_->RowDots(a, b); }

  std::string calls;

 private:
  const std::unique_ptr<linalg::Solver> inner_ = linalg::MakeHostSolver(Context());
  const int room_;
  int open_ = 0;
};

// Three sites, wide enough for a solver that is not the host's.
class FitOfSites : public testing::Test {
 protected:
  static constexpr int64_t kWidth = 64;
  FitOfSites() {
    for (int64_t layer = 0; layer < 3; ++layer) {
      sites_.emplace_back(Site{layer}, kWidth);
      Matrix<float> h(3 * kWidth, kWidth), delta(3 * kWidth, kWidth);
      for (float& x : h.span()) x = static_cast<float>(random_.Normal());
      for (int64_t i = 0; i < delta.size(); ++i)
        delta.data()[i] = 0.5F * h.data()[i] + static_cast<float>(0.3 * random_.Normal());
      sites_.back().fit.Add(Context(), h.view(), delta.view());
    }
    for (const SiteSums& site : sites_) all_.push_back(&site);
    options_.ridge.lambda = ParseLambda("1e-2");
  }
  // With a solver that has room for so many factorizations; 0: the host's.
  FittedSites Fit(const std::vector<const SiteSums*>& sites, const RankSpec& rank, int room = 0) {
    const auto watched = std::make_shared<Watched>(room);
    Context context;
    if (room > 0) {
      context.device = Device::kCuda;
      context.solver = watched;
    }
    options_.rank = rank;
    NoProgress quiet;
    FittedSites fitted = FitSites(context, sites, options_, quiet);
    calls_ = watched->calls;
    return fitted;
  }
  static void ExpectSame(const FittedSites& fitted, size_t i, const FittedSites& expected, size_t j) {
    const Lra &a = *fitted.adapters[i], &b = *expected.adapters[j];
    EXPECT_TRUE(std::ranges::equal(a.a.span(), b.a.span()));
    EXPECT_TRUE(std::ranges::equal(a.p.span(), b.p.span()));
    EXPECT_TRUE(std::ranges::equal(a.q.span(), b.q.span()));
    EXPECT_TRUE(std::ranges::equal(a.b.span(), b.b.span()));
    EXPECT_EQ(fitted.reports[i].singular_values, expected.reports[j].singular_values);
    EXPECT_EQ(fitted.reports[i].effective_rank, expected.reports[j].effective_rank);
    EXPECT_EQ(fitted.reports[i].r2_fit, expected.reports[j].r2_fit);
  }

  Random random_{3};
  std::vector<SiteSums> sites_;
  std::vector<const SiteSums*> all_;
  FitOptions options_;
  std::string calls_;
};

// The host decomposes the form of a site while the device makes that of the next.
TEST_F(FitOfSites, RunsTheHostsPartOfOneDuringTheDevicesPartOfTheNext) {
  const FittedSites expected = Fit(all_, RankSpec::Fixed(5)), overlapped = Fit(all_, RankSpec::Fixed(5), 2);
  EXPECT_EQ(calls_, "ttrtrr");
  const FittedSites in_turn = Fit(all_, RankSpec::Fixed(5), 1);
  EXPECT_EQ(calls_, "trtrtr") << "a device without memory for two";
  for (size_t i = 0; i < 3; ++i) {
    const FittedSites alone = Fit({all_[i]}, RankSpec::Fixed(5), 2);
    EXPECT_EQ(calls_, "tr");
    for (const FittedSites* fitted : {&expected, &overlapped, &in_turn}) ExpectSame(*fitted, i, alone, 0);
  }
}

TEST_F(FitOfSites, ComputesSpectraWhereTheyAreWanted) {
  for (const char* rank : {"5", "full", "energy:0.5", "budget:2k"}) {
    SCOPED_TRACE(rank);
    options_.spectra = Spectra::kNow;
    const FittedSites now = Fit(all_, ParseRank(rank), 2);
    EXPECT_EQ(now.reports[0].singular_values.size(), static_cast<size_t>(kWidth));
    options_.spectra = Spectra::kLater;
    FittedSites later = Fit(all_, ParseRank(rank), 2);
    const bool chosen_by =
        ParseRank(rank).kind == RankSpec::Kind::kEnergy || ParseRank(rank).kind == RankSpec::Kind::kBudget;
    EXPECT_EQ(later.reports[0].singular_values.size() < kWidth, !chosen_by);
    CompleteSpectra(Context(), later.reports);
    options_.spectra = Spectra::kNever;
    FittedSites never = Fit(all_, ParseRank(rank), 2);
    EXPECT_EQ(calls_.find('t') == std::string::npos, ParseRank(rank).kind == RankSpec::Kind::kFull);
    for (size_t i = 0; i < 3; ++i) {
      ExpectSame(later, i, now, i);
      EXPECT_TRUE(never.reports[i].singular_values.empty());
      never.reports[i].singular_values = now.reports[i].singular_values;
      never.reports[i].effective_rank = now.reports[i].effective_rank;
      ExpectSame(never, i, now, i);
    }
  }
}

TEST(Factorize, RefusesRanksThatAreNone) {
  const RidgeSums sums = Accumulated(MakeTokens(100, false, 30));
  const RidgeSolution solution = SolveRidge(Context(), sums, {});
  EXPECT_THROW(Factorize(Context(), sums, solution, 0, Factorization::kSvd), UsageError);
  EXPECT_THROW(Factorize(Context(), sums, solution, 13, Factorization::kSvd), UsageError);
}

TEST(Factorize, MakesFloat32Adapters) {
  const RidgeSums sums = Accumulated(MakeTokens(100, false, 30));
  const RidgeSolution solution = SolveRidge(Context(), sums, {});
  const auto full = MakeLra(solution);
  const auto low = MakeLra(Factorize(Context(), sums, solution, 3, Factorization::kReducedRank));
  EXPECT_FALSE(full->low_rank());
  EXPECT_EQ(full->a(2, 5), static_cast<float>(solution.a.host()(2, 5)));
  EXPECT_EQ(full->b(0, 5), static_cast<float>(solution.b(0, 5)));
  EXPECT_TRUE(low->low_rank());
  EXPECT_EQ(low->rank(), 3);
  EXPECT_EQ(low->parameters(), 3 * 12 * 2 + 12);
}

TEST(Factorization, Parses) {
  EXPECT_EQ(ParseFactorization("svd"), Factorization::kSvd);
  EXPECT_EQ(ParseFactorization("svd-refit"), Factorization::kSvdRefit);
  EXPECT_EQ(ParseFactorization("rrr"), Factorization::kReducedRank);
  EXPECT_THROW(ParseFactorization("qr"), UsageError);
}

}  // namespace
}  // namespace shiftrt
