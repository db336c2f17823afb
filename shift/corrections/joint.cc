// SPDX-License-Identifier: Apache-2.0
// The last projection before a removed run and one adapter in the run's place, fitted together. With out the stream
// after the half that has the projection, and a what the projection W reads (an MLP's activation, or what heads give),
// the ridge regression of what is missing after the run on [out | a] gives A, B and b: out + out A + a B + b. That is
// the function of the projection W + B (I + A)^-1 followed by the adapter h + h A + b, and these two run. A run that
// begins with the attention of layer 0 gets an adapter alone.
#include <algorithm>
#include <limits>
#include <utility>

#include "runtime/check.h"
#include "runtime/linalg/linalg.h"
#include "runtime/stopwatch.h"
#include "shift/corrections/corrections.h"
#include "shift/fit/convert.h"
#include "shift/refit/fold.h"
#include "shift/refit/projection.h"
#include "shift/sums/moments.h"

namespace shiftrt {

namespace {

// The least reciprocal condition number of a Cholesky factorization that is trusted.
constexpr double kRounding = 1e-14;
// I + A is singular to the precision of the weights where its reciprocal condition number is lower than this.
constexpr double kLeastCondition = 1e-5;
// The factor by which lambda grows until I + A is not singular, and how often it may grow.
constexpr double kMoreLambda = 10;
constexpr int kAttempts = 20;

Matrix<double> RowRange(const Matrix<double>& m, int64_t first, int64_t count) {
  Matrix<double> out(count, m.cols());
  std::copy_n(m.row(first), count * m.cols(), out.data());
  return out;
}

// The stream's part of the Gram with lambda on its diagonal, less what the activations say of it: G_oo - G_oa G_aa^-1
// G_ao. In this metric a change of A costs the error that no choice of B can remove. As sums, for Factorize.
RidgeSums MetricOfStream(const Context& context, const RidgeSums& sums, double lambda) {
  const int64_t n = sums.inputs(), d = sums.hidden(), width = n - d;
  const auto solver = linalg::MakeHostSolver(context);
  Matrix<double> gram = solver->Downloaded(*CenteredGram(*solver, sums));
  linalg::SymmetrizeFromUpper(gram.view());
  for (int64_t i = 0; i < n; ++i) gram(i, i) += lambda;
  Matrix<double> metric = Matrix<double>::Zeros(d + 1, d + 1), solved = RowRange(gram, d, width), side(width, d);
  for (int64_t i = 0; i < width; ++i) std::copy_n(gram.row(d + i), d, side.row(i));
  for (int64_t i = 0; i < d; ++i) std::copy_n(gram.row(i), d, metric.row(i));
  const Matrix<double> cross = side.Clone();
  Matrix<double> activations(width, width);
  for (int64_t i = 0; i < width; ++i) std::copy_n(solved.row(i) + d, width, activations.row(i));
  double rcond = 0;
  if (linalg::CholeskySolve(context, activations.view(), side.view(), &rcond) && rcond >= kRounding)
    linalg::Gemm(context, true, false, -1.0, cross.view(), side.view(), 1.0, metric.view().Rows(0, d).Cols(0, d));
  metric(d, d) = 1;  // a token at the mean
  return RidgeSums::FromSums(std::move(metric), Matrix<double>::Zeros(d + 1, d), 0, sums.tokens());
}

// A of some rank, B and b.
struct Joint {
  std::shared_ptr<const Lra> lra;
  Matrix<double> b_map;
  double rcond = 0;       // reciprocal condition number of I + A
  Matrix<double> folded;  // B (I + A)^-1, where that can be trusted
  std::vector<double> singular_values;
  linalg::Tridiagonal squares;  // as in SiteReport
};

class JointFit {
 public:
  JointFit(const Context& context, const SiteSums& sums, const FitOptions& options)
      : context_(context), sums_(sums), options_(options), d_(sums.fit.hidden()), width_(sums.fit.inputs() - d_) {}

  // Fits with the lambda that the options give, or with a larger one if I + A would be singular.
  Joint Fit(SiteReport& report) {
    RidgeSolution solution = SolveRidge(context_, sums_.fit, {options_.ridge.lambda, false}, &sums_.heldout);
    Joint joint = Reduced(solution);
    const double asked = solution.lambda, singular = joint.rcond;
    for (int attempt = 0; joint.rcond < kLeastCondition; ++attempt) {
      Check(attempt < kAttempts, "layer {}: I + A is singular at every lambda from {:.3g} to {:.3g}", sums_.site.Name(),
            asked, solution.lambda);
      const double more = std::max(solution.lambda * kMoreLambda, std::numeric_limits<double>::min());
      solution = SolveRidge(context_, sums_.fit, {{LambdaSpec::Kind::kAbsolute, more}, false});
      joint = Reduced(solution);
    }
    report.Record(solution);
    if (solution.lambda != asked)
      report.warning += fmt::format(
          "{}I + A is near singular at lambda {:.3g} (reciprocal condition number {:.1e}): lambda raised to {:.3g}",
          report.warning.empty() ? "" : "; ", asked, singular, solution.lambda);
    return joint;
  }

 private:
  Joint Reduced(const RidgeSolution& solution) const {
    Joint joint;
    const Matrix<double> a = RowRange(solution.a.host(), 0, d_);
    joint.b_map = RowRange(solution.a.host(), d_, width_);
    if (options_.rank.kind == RankSpec::Kind::kFull) {
      RidgeSolution stream;
      stream.a = a.Clone();
      stream.b = solution.b.Clone();
      joint.lra = MakeLra(stream);
      if (options_.spectra != Spectra::kNever) {
        const RidgeSums metric = MetricOfStream(context_, sums_.fit, solution.lambda);
        joint.squares = SquaredSpectrum({context_, metric, stream, options_.factorization});
        if (options_.spectra == Spectra::kNow)
          CompleteSpectrum(std::exchange(joint.squares, {}), joint.singular_values);
      }
    } else {
      Truncate(a, solution, joint);
    }
    Matrix<double> identity = DenseMap(context_, *joint.lra);
    for (int64_t i = 0; i < d_; ++i) identity(i, i) += 1;
    joint.folded = joint.b_map.Clone();
    joint.rcond = linalg::SolveFromRight(context_, identity.view(), joint.folded.view(), kLeastCondition);
    return joint;
  }

  // A truncated in the metric of the data, then B and b fitted again to what it leaves.
  void Truncate(const Matrix<double>& a, const RidgeSolution& solution, Joint& joint) const {
    RidgeSolution stream;
    stream.a = a.Clone();
    stream.b = solution.b.Clone();
    const RidgeSums metric = MetricOfStream(context_, sums_.fit, solution.lambda);
    std::vector<std::vector<double>> spectrum(1);
    if (options_.rank.kind == RankSpec::Kind::kEnergy)
      spectrum[0] = SingularValues(context_, metric, stream, options_.factorization);
    const int64_t rank = ChooseRanks(options_.rank, spectrum, d_).front();
    LowRank factors = LeadingFactors({context_, metric, stream, options_.factorization}, rank);
    if (options_.spectra == Spectra::kNow)
      CompleteSpectrum(std::exchange(factors.squares, {}), factors.singular_values);
    if (options_.spectra != Spectra::kNever) joint.singular_values = factors.singular_values;
    if (options_.spectra == Spectra::kLater) joint.squares = std::move(factors.squares);

    // The activations' sums with D - out A in place of D. Of those only the products with the inputs change.
    const RidgeSums& all = sums_.fit;
    Matrix<double> dense(d_, d_), cross(width_ + 1, d_), streams(width_ + 1, d_);
    linalg::Gemm(context_, false, false, 1.0, factors.p.view(), factors.q.view(), 0.0, dense.view());
    const MatrixView<const double> gram = all.UpperGram();
    for (int64_t i = 0; i <= width_; ++i) {
      std::copy_n(all.Cross().row(d_ + i), d_, cross.row(i));
      for (int64_t j = 0; j < d_; ++j) streams(i, j) = gram(j, d_ + i);
    }
    linalg::Gemm(context_, false, false, -1.0, streams.view(), dense.view(), 1.0, cross.view());
    const RidgeSums part = all.OfInputs(d_, width_);
    const RidgeSums left = RidgeSums::FromSums(part.Gram(), std::move(cross), part.DeltaSquares(), part.tokens());
    RidgeSolution again = SolveRidge(context_, left, {{LambdaSpec::Kind::kAbsolute, solution.lambda}, false});
    joint.b_map = again.a.host().Clone();
    factors.b = std::move(again.b);
    joint.lra = MakeLra(factors);
  }

  const Context& context_;
  const SiteSums& sums_;
  const FitOptions& options_;
  int64_t d_, width_;
};

// [A; (W' - W) (I + A)]: what block and adapter add as they are stored, as a map of [out | a].
Matrix<double> MapOf(const Context& context, const Lra& lra, const Matrix<double>& change) {
  const int64_t d = lra.hidden(), width = change.rows();
  const Matrix<double> a = DenseMap(context, lra);
  Matrix<double> map(d + width, d);
  std::copy_n(a.data(), d * d, map.data());
  std::copy_n(change.data(), width * d, map.row(d));
  linalg::Gemm(context, false, false, 1.0, change.view(), a.view(), 1.0, map.view().Rows(d, width));
  return map;
}

}  // namespace

FittedSites FitJoint(const FitInput& input) {
  const auto& [job, sites, all_sums, options, projection, before] = input;
  const SiteSums& sums = *all_sums.front();
  NoProgress quiet;  // the sequential fit has its own
  if (before == nullptr) return FitSites(job.context, all_sums, options, quiet);
  FittedSites fitted;
  const Stopwatch watch(fitted.seconds.solve);
  SiteReport report;
  const Joint joint = JointFit(job.context, sums, options).Fit(report);

  auto folded = std::make_shared<OwnBlock>(before);
  const Matrix<double> weight = InFloat64((*before).*projection->weight);
  for (int64_t i = 0; i < weight.rows(); ++i)
    for (int64_t j = 0; j < weight.cols(); ++j) weight(i, j) += joint.folded(j, i);
  folded->Replace(projection->weight, weight.span());
  fitted.adapters = {joint.lra};
  fitted.own = {{.layer = BlockPart::At(sites.front().begin() - 1).layer, .own = OwnBlock::Share(std::move(folded))}};

  report.site = sums.site;
  report.tokens = sums.fit.tokens();
  report.rank = joint.lra->rank();
  report.singular_values = joint.singular_values;
  report.squares = joint.squares;
  if (report.squares.size() == 0) report.effective_rank = EffectiveRank(report.singular_values);
  Matrix<double> map = MapOf(job.context, *joint.lra, ChangeOf(*projection, *before, *fitted.own.front().own));
  const Matrix<double> bias = Converted<double>(joint.lra->b);
  report.r2_fit = RSquared(job.context, sums.fit, map.view(), bias.view());
  report.r2_heldout = RSquared(job.context, sums.heldout, map.view(), bias.view());
  fitted.reports = {std::move(report)};
  return fitted;
}

}  // namespace shiftrt
