// Statistics, ridge, factorization and merging against plain float64 computations written here.
#include <gtest/gtest.h>

#include <cmath>

#include "runtime/check.h"
#include "runtime/random.h"
#include "shift/criteria.h"
#include "shift/factorize.h"
#include "shift/merge.h"
#include "shift/ridge.h"

namespace shiftrt {
namespace {

const Context kContext = Context::Default();

struct Data {
  Matrix<float> h, delta;
};

// Inputs with one massive coordinate, as real residual streams have, and updates that are affine in them plus noise.
Data MakeData(int64_t n, int64_t d, double noise, uint64_t seed) {
  Random random(seed);
  Data data{Matrix<float>(n, d), Matrix<float>(n, d)};
  Matrix<double> a(d, d);
  for (double& x : a.span()) x = random.Normal() / std::sqrt(static_cast<double>(d));
  for (int64_t t = 0; t < n; ++t) {
    for (int64_t i = 0; i < d; ++i)
      data.h(t, i) = static_cast<float>((i == 2 ? 1000.0 : 1.0) * (random.Normal() + 0.3 * static_cast<double>(i % 3)));
    for (int64_t j = 0; j < d; ++j) {
      double sum = 0.1 * static_cast<double>(j);
      for (int64_t i = 0; i < d; ++i) sum += data.h(t, i) * a(i, j) / (i == 2 ? 1000.0 : 1.0);
      data.delta(t, j) = static_cast<float>(sum + noise * random.Normal());
    }
  }
  return data;
}

RidgeAccumulator Accumulate(const Data& data, int64_t chunk) {
  RidgeAccumulator sums(data.h.cols());
  for (int64_t t = 0; t < data.h.rows(); t += chunk) {
    const int64_t rows = std::min(chunk, data.h.rows() - t);
    sums.Add(kContext, data.h.view().Rows(t, rows), data.delta.view().Rows(t, rows));
  }
  return sums;
}

// Solves the symmetric system by Gaussian elimination with pivoting in long double: slow, and written apart.
Matrix<double> SolvePlain(const Matrix<double>& a, const Matrix<double>& b) {
  const int64_t n = a.rows(), m = b.cols();
  std::vector<std::vector<long double>> s(n, std::vector<long double>(n + m));
  for (int64_t i = 0; i < n; ++i) {
    for (int64_t j = 0; j < n; ++j) s[i][j] = a(i, j);
    for (int64_t j = 0; j < m; ++j) s[i][n + j] = b(i, j);
  }
  for (int64_t k = 0; k < n; ++k) {
    int64_t pivot = k;
    for (int64_t i = k; i < n; ++i)
      if (std::abs(s[i][k]) > std::abs(s[pivot][k])) pivot = i;
    std::swap(s[k], s[pivot]);
    for (int64_t i = 0; i < n; ++i) {
      if (i == k) continue;
      const long double f = s[i][k] / s[k][k];
      for (int64_t j = k; j < n + m; ++j) s[i][j] -= f * s[k][j];
    }
  }
  Matrix<double> x(n, m);
  for (int64_t i = 0; i < n; ++i)
    for (int64_t j = 0; j < m; ++j) x(i, j) = static_cast<double>(s[i][n + j] / s[i][i]);
  return x;
}

// Sum of squared residuals of h A + b on the data.
double Residual(const Data& data, MatrixView<const double> a, MatrixView<const double> b) {
  double sum = 0;
  for (int64_t t = 0; t < data.h.rows(); ++t)
    for (int64_t j = 0; j < data.h.cols(); ++j) {
      double r = data.delta(t, j) - b(0, j);
      for (int64_t i = 0; i < data.h.cols(); ++i) r -= data.h(t, i) * a(i, j);
      sum += r * r;
    }
  return sum;
}

double Variation(const Data& data) {
  double sum = 0;
  for (int64_t j = 0; j < data.h.cols(); ++j) {
    double mean = 0;
    for (int64_t t = 0; t < data.h.rows(); ++t) mean += data.delta(t, j) / static_cast<double>(data.h.rows());
    for (int64_t t = 0; t < data.h.rows(); ++t) sum += std::pow(data.delta(t, j) - mean, 2);
  }
  return sum;
}

Matrix<double> Product(const LowRank& f) {
  Matrix<double> a = Matrix<double>::Zeros(f.p.rows(), f.q.cols());
  for (int64_t i = 0; i < a.rows(); ++i)
    for (int64_t j = 0; j < a.cols(); ++j)
      for (int64_t r = 0; r < f.p.cols(); ++r) a(i, j) += f.p(i, r) * f.q(r, j);
  return a;
}

TEST(RidgeAccumulator, AnyPartitionGivesTheSameSums) {
  const Data data = MakeData(700, 9, 0.1, 1);
  const RidgeAccumulator whole = Accumulate(data, 700);
  const Matrix<double> gram = whole.Gram();
  for (int64_t chunk : {1, 13, 512}) {
    RidgeAccumulator parts = Accumulate(data, chunk);
    const Matrix<double> other = parts.Gram();
    for (int64_t i = 0; i < gram.size(); ++i) EXPECT_NEAR(gram.data()[i], other.data()[i], 1e-12 * gram(2, 2)) << chunk;
    for (int64_t i = 0; i < whole.Cross().size(); ++i)
      EXPECT_NEAR(whole.Cross().data()[i], parts.Cross().data()[i],
                  1e-12 * std::sqrt(gram(2, 2) * whole.DeltaSquares()));
    EXPECT_NEAR(whole.DeltaSquares(), parts.DeltaSquares(), 1e-12 * whole.DeltaSquares());
    EXPECT_EQ(parts.tokens(), 700);
  }
  RidgeAccumulator twice = Accumulate(data, 100);
  twice += whole;
  EXPECT_NEAR(twice.Gram()(2, 2), 2 * gram(2, 2), 1e-12 * gram(2, 2));
  // The last row of G holds the sums of the columns, and the number of tokens.
  double sum = 0;
  for (int64_t t = 0; t < 700; ++t) sum += data.h(t, 4);
  EXPECT_NEAR(gram(9, 4), sum, 1e-9);
  EXPECT_EQ(gram(9, 9), 700);
}

TEST(RidgeAccumulator, NamesTheRowThatIsNotFinite) {
  Data data = MakeData(5, 4, 0, 1);
  data.delta(3, 1) = NAN;
  EXPECT_THROW(Accumulate(data, 5), Error);
}

TEST(Ridge, MatchesThePlainSolutionWithFreeAndWithPenalisedBias) {
  const int64_t n = 300, d = 7;
  const Data data = MakeData(n, d, 0.3, 2);
  const RidgeAccumulator sums = Accumulate(data, 64);
  for (double lambda : {1e-3, 5.0}) {
    // Penalised: the normal equations of the paper, on [H | 1].
    Matrix<double> g = sums.Gram();
    for (int64_t i = 0; i <= d; ++i) g(i, i) += lambda;
    const Matrix<double> x = SolvePlain(g, sums.Cross());
    const LambdaSpec spec{LambdaSpec::Kind::kAbsolute, lambda};
    const RidgeSolution penalised = SolveRidge(kContext, sums, {spec, true});
    // Free: the same, the penalty left off the last entry.
    g(d, d) -= lambda;
    const Matrix<double> y = SolvePlain(g, sums.Cross());
    const RidgeSolution free = SolveRidge(kContext, sums, {spec, false});
    for (int64_t i = 0; i < d; ++i)
      for (int64_t j = 0; j < d; ++j) {
        EXPECT_NEAR(penalised.a(i, j), x(i, j), 1e-9);
        EXPECT_NEAR(free.a(i, j), y(i, j), 1e-9);
      }
    for (int64_t j = 0; j < d; ++j) {
      EXPECT_NEAR(penalised.b(0, j), x(d, j), 1e-9);
      EXPECT_NEAR(free.b(0, j), y(d, j), 1e-8);
    }
    EXPECT_NEAR(RSquared(kContext, sums, free.a.view(), free.b.view()),
                1 - Residual(data, free.a.view(), free.b.view()) / Variation(data), 1e-8);
  }
}

TEST(Ridge, RecoversABlockThatIsAffineAndVanishesUnderAnInfinitePenalty) {
  const Data data = MakeData(400, 8, 0, 3);
  const RidgeAccumulator sums = Accumulate(data, 100);
  const RidgeSolution exact = SolveRidge(kContext, sums, {{LambdaSpec::Kind::kAbsolute, 1e-9}, false});
  EXPECT_LT(Residual(data, exact.a.view(), exact.b.view()), 1e-8 * Variation(data));
  const RidgeSolution gone = SolveRidge(kContext, sums, {{LambdaSpec::Kind::kAbsolute, 1e30}, true});
  for (double x : gone.a.span()) EXPECT_LT(std::abs(x), 1e-12);
  for (double x : gone.b.span()) EXPECT_LT(std::abs(x), 1e-12);
}

TEST(Ridge, GcvMinimisesTheScoreComputedFromTheHatMatrix) {
  const int64_t n = 40, d = 6;
  const Data data = MakeData(n, d, 1.0, 4);
  const RidgeAccumulator sums = Accumulate(data, 40);
  const RidgeSolution chosen = SolveRidge(kContext, sums, {});
  // GCV by its definition: N RSS / (N - trace of the hat matrix)^2, the trace from solves, one a token.
  const auto score = [&](double lambda) {
    const RidgeSolution s = SolveRidge(kContext, sums, {{LambdaSpec::Kind::kAbsolute, lambda}, false});
    Matrix<double> g = sums.Gram();
    for (int64_t i = 0; i < d; ++i) g(i, i) += lambda;
    Matrix<double> rows(d + 1, n);
    for (int64_t t = 0; t < n; ++t)
      for (int64_t i = 0; i <= d; ++i) rows(i, t) = i < d ? data.h(t, i) : 1;
    const Matrix<double> solved = SolvePlain(g, rows);
    double trace = 0;
    for (int64_t t = 0; t < n; ++t)
      for (int64_t i = 0; i <= d; ++i) trace += rows(i, t) * solved(i, t);
    return static_cast<double>(n) * Residual(data, s.a.view(), s.b.view()) / std::pow(n - trace, 2);
  };
  const double best = score(chosen.lambda);
  for (double factor : {0.1, 0.5, 2.0, 10.0}) EXPECT_LE(best, score(chosen.lambda * factor) * (1 + 1e-6)) << factor;
}

TEST(Ridge, SingularDataFallsBackWithAWarning) {
  Data data = MakeData(60, 6, 0.1, 5);
  for (int64_t t = 0; t < 60; ++t) data.h(t, 5) = data.h(t, 4);
  const RidgeSolution s = SolveRidge(kContext, Accumulate(data, 60), {{LambdaSpec::Kind::kAbsolute, 0}, false});
  EXPECT_NE(s.warning.find("condition number"), std::string::npos);
  for (double x : s.a.span()) EXPECT_TRUE(std::isfinite(x));
  EXPECT_THROW(SolveRidge(kContext, RidgeAccumulator(3), {}), Error);
}

TEST(Factorize, FullRankIsTheMapAndRrrIsNeverWorseThanSvd) {
  const int64_t d = 10;
  for (uint64_t seed : {6, 7, 8}) {
    const Data data = MakeData(200, d, 0.5, seed);
    const RidgeAccumulator sums = Accumulate(data, 50);
    const RidgeSolution full = SolveRidge(kContext, sums, {});
    double previous = HUGE_VAL;
    for (int64_t rank : {1, 3, 6, 10}) {
      const LowRank svd = Factorize(kContext, sums, full, rank, Factorization::kSvd);
      const LowRank rrr = Factorize(kContext, sums, full, rank, Factorization::kReducedRank);
      const double of_svd = Residual(data, Product(svd).view(), svd.b.view());
      const double of_rrr = Residual(data, Product(rrr).view(), rrr.b.view());
      EXPECT_LE(of_rrr, of_svd * (1 + 1e-9)) << "rank " << rank;
      EXPECT_LE(of_rrr, previous * (1 + 1e-9));
      previous = of_rrr;
    }
    const Matrix<double> whole = Product(Factorize(kContext, sums, full, d, Factorization::kSvd));
    for (int64_t i = 0; i < whole.size(); ++i) EXPECT_NEAR(whole.data()[i], full.a.data()[i], 1e-9);
    EXPECT_THROW(Factorize(kContext, sums, full, d + 1, Factorization::kSvd), UsageError);
    EXPECT_THROW(Factorize(kContext, sums, full, 0, Factorization::kSvd), UsageError);
  }
}

TEST(Factorize, SvdIsTheBestRankOneApproximation) {
  // A = 3 u v' + 1 w z' with orthonormal u, w and v, z: rank 1 keeps the first term.
  const Data data = MakeData(50, 4, 0.1, 9);
  const RidgeAccumulator sums = Accumulate(data, 50);
  RidgeSolution s{Matrix<double>::Zeros(4, 4), Matrix<double>::Zeros(1, 4), 0, 0, ""};
  s.a(0, 1) = 3;
  s.a(2, 3) = 1;
  const LowRank f = Factorize(kContext, sums, s, 1, Factorization::kSvd);
  const Matrix<double> a = Product(f);
  EXPECT_NEAR(a(0, 1), 3, 1e-12);
  EXPECT_NEAR(a(2, 3), 0, 1e-12);
  EXPECT_NEAR(f.singular_values[0], 3, 1e-12);
  EXPECT_NEAR(f.singular_values[1], 1, 1e-12);
}

std::shared_ptr<const Lra> RandomLra(int64_t d, int64_t rank, uint64_t seed) {
  Random random(seed);
  const auto fill = [&](int64_t rows, int64_t cols) {
    Matrix<float> m(rows, cols);
    for (float& x : m.span()) x = static_cast<float>(0.3 * random.Normal());
    return m;
  };
  return std::make_shared<const Lra>(rank > 0 ? Lra{{}, fill(d, rank), fill(rank, d), fill(1, d)}
                                              : Lra{fill(d, d), {}, {}, fill(1, d)});
}

std::vector<double> ApplyPlain(const Lra& lra, std::vector<double> h) {
  const auto d = static_cast<int64_t>(h.size());
  std::vector<double> out = h;
  for (int64_t j = 0; j < d; ++j) {
    out[j] += lra.b(0, j);
    for (int64_t i = 0; i < d; ++i) {
      double a = lra.low_rank() ? 0.0 : lra.a(i, j);
      for (int64_t r = 0; lra.low_rank() && r < lra.rank(); ++r) a += static_cast<double>(lra.p(i, r)) * lra.q(r, j);
      out[j] += h[i] * a;
    }
  }
  return out;
}

TEST(Merge, EqualsTheSequenceOfSites) {
  const int64_t d = 8;
  const std::vector<int64_t> removed = {1, 2, 3, 5};
  for (int64_t rank : {0, 2}) {
    const std::vector<std::shared_ptr<const Lra>> adapters = {RandomLra(d, rank, 1), RandomLra(d, rank, 2),
                                                              RandomLra(d, rank, 3), RandomLra(d, rank, 4)};
    const DepthPlan plan = DepthPlan::Corrected(7, removed, adapters);
    for (Merge merge : {Merge::kFull, Merge::kLowRank}) {
      const DepthPlan merged = MergeAdapters(plan, merge);
      ASSERT_EQ(merged.stages.size(), 5u);  // 0, (1 2 3), 4, (5), 6
      const auto& run = std::get<AdapterStage>(merged.stages[1]);
      EXPECT_EQ(run.layers, (std::vector<int64_t>{1, 2, 3}));
      EXPECT_EQ(run.lra->low_rank(), merge == Merge::kLowRank && rank > 0);
      if (run.lra->low_rank()) EXPECT_EQ(run.lra->rank(), 3 * rank);
      EXPECT_EQ(std::get<AdapterStage>(merged.stages[3]).lra, adapters[3]);
      std::vector<double> h(d);
      for (int64_t i = 0; i < d; ++i) h[i] = std::sin(static_cast<double>(i) + 1);
      std::vector<double> one_by_one = h;
      for (int i = 0; i < 3; ++i) one_by_one = ApplyPlain(*adapters[i], one_by_one);
      const std::vector<double> at_once = ApplyPlain(*run.lra, h);
      for (int64_t i = 0; i < d; ++i) EXPECT_NEAR(at_once[i], one_by_one[i], 2e-6);
    }
    EXPECT_EQ(MergeAdapters(plan, Merge::kOff).stages.size(), plan.stages.size());
  }
}

TEST(Criteria, PicksTheLowestAndBreaksTiesDeeper) {
  EXPECT_EQ(PickLayers({3, 1, 2, 1, 5}, 2, 0, 0), (std::vector<int64_t>{1, 3}));
  EXPECT_EQ(PickLayers({1, 1, 1, 1}, 1, 0, 0), (std::vector<int64_t>{3}));
  EXPECT_EQ(PickLayers({0, 9, 8, 0}, 1, 1, 1), (std::vector<int64_t>{2}));
  EXPECT_THROW(PickLayers({1, 2}, 2, 0, 0), UsageError);
  EXPECT_THROW(PickLayers({1, 2, 3}, 2, 1, 1), UsageError);
}

TEST(Criteria, ParsesWhatTheHelpPromisesAndRefusesTheRest) {
  EXPECT_EQ(ParsePrune("bi:0.25").ratio, 0.25);
  EXPECT_EQ(ParsePrune("bi:token:0.25").criterion, "bi");
  EXPECT_EQ(ParsePrune("reverse*:8").count, 8);
  EXPECT_EQ(ParsePrune("layers=3,5,8-10").layers, (std::vector<int64_t>{3, 5, 8, 9, 10}));
  const PruneSpec keep = ParsePrune("magnitude-l1:2,keep=first:4,last:2");
  EXPECT_EQ(keep.keep_first, 4);
  EXPECT_EQ(keep.keep_last, 2);
  for (const char* bad : {"", "bi", "bi:", "bi:0", "bi:1.5", "bi:-1", "bi:0.25x", "nonsense:1", "taylor:0.25",
                          "bi:params=6B", "layers=", "layers=3,3", "layers=5-3", "bi:2,first:1", "bi:2,keep=middle:1"})
    EXPECT_THROW(ParsePrune(bad), UsageError) << bad;
}

TEST(Lambda, ParsesItsThreeForms) {
  EXPECT_EQ(ParseLambda("1e-2").value, 0.01);
  EXPECT_EQ(ParseLambda("1e-4rel").kind, LambdaSpec::Kind::kRelative);
  EXPECT_EQ(ParseLambda("gcv").kind, LambdaSpec::Kind::kGcv);
  for (const char* bad : {"", "rel", "-1", "nan", "inf", "1x", "1e-4 rel "})
    EXPECT_THROW(ParseLambda(bad), UsageError) << bad;
}

}  // namespace
}  // namespace shiftrt
