// SPDX-License-Identifier: Apache-2.0
#include "shift/refit/iterative.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <utility>
#include <vector>

#include "runtime/check.h"
#include "runtime/linalg/linalg.h"

namespace shiftrt {

namespace {

// Tokens whose inputs are widened to float64 at once.
int64_t ChunkTokens(int64_t inputs) { return std::clamp<int64_t>(inputs / 4, 16, 256); }

constexpr int kMostPasses = 1000;  // for one lambda and group
// The lambdas that are tried, in powers of ten of the mean of the Gram's diagonal.
constexpr int kFirstPower = 2, kLastPower = -8;

// The first moments of the rows, and of the second ones the diagonal of the Gram.
struct Moments {
  Matrix<double> mean, delta_mean;  // (1, n), (1, d); zeros without a free bias
  std::vector<double> diagonal;     // about the mean
  double weight = 0, unit = 0;      // unit: the mean of the diagonal about zero, which relative lambdas multiply
};

// Rows begin .. begin + count - 1 about the means, times the square roots of their weights.
struct Chunk {
  Matrix<double> inputs, missing;
};

double Root(const FitRows& rows, int64_t t) { return rows.weights.empty() ? 1.0 : std::sqrt(rows.weights[t]); }

Matrix<double> Centred(const MatrixView<const float>& from, const FitRows& rows, int64_t begin, int64_t count,
                       const Matrix<double>& mean) {
  Matrix<double> out(count, from.cols);
  for (int64_t t = 0; t < count; ++t) {
    const double root = Root(rows, begin + t);
    for (int64_t j = 0; j < from.cols; ++j) out(t, j) = root * (from(begin + t, j) - mean(0, j));
  }
  return out;
}

template <typename Use>
void ForChunks(const RowPass& pass, const Matrix<double>& mean, const Matrix<double>& delta_mean, const Use& use) {
  pass([&](const FitRows& rows) {
    const int64_t tokens = ChunkTokens(rows.inputs.cols);
    for (int64_t begin = 0; begin < rows.inputs.rows; begin += tokens) {
      const int64_t count = std::min(tokens, rows.inputs.rows - begin);
      use(Chunk{Centred(rows.inputs, rows, begin, count, mean), Centred(rows.missing, rows, begin, count, delta_mean)});
    }
  });
}

Moments MomentsOf(const IterativeProblem& problem) {
  const int64_t n = problem.inputs, d = problem.hidden;
  Moments moments{Matrix<double>::Zeros(1, n), Matrix<double>::Zeros(1, d), std::vector<double>(n, 0.0)};
  problem.fit([&](const FitRows& rows) {
    for (int64_t t = 0; t < rows.inputs.rows; ++t) {
      const double weight = rows.weights.empty() ? 1.0 : rows.weights[t];
      moments.weight += weight;
      for (int64_t j = 0; j < n; ++j) {
        const double value = rows.inputs(t, j);
        moments.mean(0, j) += weight * value;
        moments.diagonal[j] += weight * value * value;
      }
      for (int64_t j = 0; j < d; ++j) moments.delta_mean(0, j) += weight * rows.missing(t, j);
    }
  });
  Check(moments.weight > 0, "ridge regression without a single token that has weight");
  for (const double square : moments.diagonal) moments.unit += square / static_cast<double>(n);
  Check(std::isfinite(moments.unit), "the squares of the inputs of a fit add up to {}", moments.unit);
  for (int64_t j = 0; j < n; ++j) {
    moments.mean(0, j) *= problem.free_bias ? 1 / moments.weight : 0;
    moments.diagonal[j] = std::max(0.0, moments.diagonal[j] - moments.weight * moments.mean(0, j) * moments.mean(0, j));
  }
  for (int64_t j = 0; j < d; ++j) moments.delta_mean(0, j) *= problem.free_bias ? 1 / moments.weight : 0;
  return moments;
}

// Outputs first .. first + columns - 1 of (G + lambda I) X = C.
class Group {
 public:
  Group(const Context& context, const IterativeProblem& problem, const Moments& moments, int64_t first, int64_t columns,
        Progress& progress)
      : context_(context),
        problem_(problem),
        moments_(moments),
        first_(first),
        columns_(columns),
        progress_(progress),
        x_(Matrix<double>::Zeros(problem.inputs, columns)),
        residual_(Matrix<double>::Zeros(problem.inputs, columns)) {
    ForChunks(problem.fit, moments.mean, moments.delta_mean, [&](const Chunk& chunk) {
      linalg::Gemm(context_, true, false, 1.0, chunk.inputs.view(), Missing(chunk), 1.0, residual_.view());
    });
    ++passes_;
  }

  // From the solution for the lambda before, or from zero.
  void Solve(double lambda) {
    const int64_t n = problem_.inputs;
    for (int64_t i = 0; i < n * columns_; ++i) residual_.data()[i] += (lambda_ - lambda) * x_.data()[i];
    lambda_ = lambda;
    Matrix<double> direction(n, columns_), image(n, columns_);
    std::vector<double> energy = Energies();
    const std::vector<double> right = RightSides();
    for (int64_t i = 0; i < n; ++i)
      for (int64_t k = 0; k < columns_; ++k) direction(i, k) = residual_(i, k) / Scale(i);
    for (int pass = 0; !Solved(energy, right); ++pass) {
      Check(pass < kMostPasses, "conjugate gradients did not reach a residual of {:.0e} in {} passes at lambda {:.3g}",
            kIterativeTolerance, pass, lambda);
      Image(direction, image, energy, right);
      std::vector<double> curvature(columns_, 0.0);
      for (int64_t i = 0; i < n; ++i)
        for (int64_t k = 0; k < columns_; ++k) curvature[k] += direction(i, k) * image(i, k);
      for (int64_t k = 0; k < columns_; ++k) curvature[k] = curvature[k] > 0 ? energy[k] / curvature[k] : 0;
      for (int64_t i = 0; i < n; ++i)
        for (int64_t k = 0; k < columns_; ++k) {
          x_(i, k) += curvature[k] * direction(i, k);
          residual_(i, k) -= curvature[k] * image(i, k);
        }
      std::vector<double> next = Energies();
      for (int64_t i = 0; i < n; ++i)
        for (int64_t k = 0; k < columns_; ++k)
          direction(i, k) = residual_(i, k) / Scale(i) + (energy[k] > 0 ? next[k] / energy[k] : 0) * direction(i, k);
      energy = std::move(next);
    }
  }

  // The squared error on held-out rows.
  double HeldOut() const {
    double error = 0;
    ForChunks(problem_.heldout, moments_.mean, moments_.delta_mean, [&](const Chunk& chunk) {
      Matrix<double> left(chunk.inputs.rows(), columns_);
      for (int64_t t = 0; t < left.rows(); ++t) std::copy_n(chunk.missing.row(t) + first_, columns_, left.row(t));
      linalg::Gemm(context_, false, false, -1.0, chunk.inputs.view(), x_.view(), 1.0, left.view());
      for (const double value : left.span()) error += value * value;
    });
    return error;
  }

  const Matrix<double>& x() const { return x_; }
  int64_t passes() const { return passes_; }

 private:
  MatrixView<const double> Missing(const Chunk& chunk) const { return chunk.missing.view().Cols(first_, columns_); }

  double Scale(int64_t i) const {
    const double scale = moments_.diagonal[i] + lambda_;
    return scale > 0 ? scale : 1;
  }

  // |R|^2 of each output in the norm of the inverse diagonal.
  std::vector<double> Energies() const {
    std::vector<double> energies(columns_, 0.0);
    for (int64_t i = 0; i < problem_.inputs; ++i)
      for (int64_t k = 0; k < columns_; ++k) energies[k] += residual_(i, k) * residual_(i, k) / Scale(i);
    return energies;
  }

  // The same of the right sides, which are the residuals of X = 0.
  std::vector<double> RightSides() {
    if (right_.empty()) right_ = Energies();
    return right_;
  }

  static bool Solved(const std::vector<double>& energies, const std::vector<double>& right) {
    for (size_t k = 0; k < energies.size(); ++k)
      if (energies[k] > kIterativeTolerance * kIterativeTolerance * right[k]) return false;
    return true;
  }

  // (G + lambda I) P.
  void Image(const Matrix<double>& direction, Matrix<double>& image, const std::vector<double>& energies,
             const std::vector<double>& right) {
    double worst = 0;
    for (size_t k = 0; k < energies.size(); ++k)
      if (right[k] > 0) worst = std::max(worst, std::sqrt(energies[k] / right[k]));
    progress_.Begin(fmt::format("without a Gram: outputs {}-{} of {}, pass {}, residual {:.1e}", first_ + 1,
                                first_ + columns_, problem_.hidden, passes_, worst),
                    problem_.tokens);
    for (int64_t i = 0; i < image.size(); ++i) image.data()[i] = lambda_ * direction.data()[i];
    Matrix<double> outputs(ChunkTokens(problem_.inputs), columns_);
    ForChunks(problem_.fit, moments_.mean, moments_.delta_mean, [&](const Chunk& chunk) {
      const MatrixView<double> here = outputs.view().Rows(0, chunk.inputs.rows());
      linalg::Gemm(context_, false, false, 1.0, chunk.inputs.view(), direction.view(), 0.0, here);
      linalg::Gemm(context_, true, false, 1.0, chunk.inputs.view(), here, 1.0, image.view());
      progress_.Advance(chunk.inputs.rows());
    });
    progress_.End();
    ++passes_;
  }

  const Context& context_;
  const IterativeProblem& problem_;
  const Moments& moments_;
  int64_t first_, columns_;
  Progress& progress_;
  Matrix<double> x_, residual_;
  std::vector<double> right_;
  double lambda_ = 0;
  int64_t passes_ = 0;
};

// The lambda from which the error on held-out rows does not fall any more; the group holds its solution.
double ChooseLambda(Group& group, double unit, Matrix<double>& best) {
  double lambda = 0, lowest = std::numeric_limits<double>::infinity();
  for (int power = kFirstPower; power >= kLastPower; --power) {
    const double tried = unit * std::pow(10.0, power);
    group.Solve(tried);
    const double error = group.HeldOut();
    if (!(error < lowest)) break;
    lowest = error;
    lambda = tried;
    best = group.x().Clone();
  }
  return lambda;
}

}  // namespace

int64_t IterativeBytes(int64_t inputs, int64_t hidden, int64_t columns) {
  return 8 * inputs * hidden + 40 * inputs * columns + 8 * ChunkTokens(inputs) * (inputs + 2 * hidden);
}

void CheckIterativeMemory(int64_t inputs, int64_t hidden, int64_t memory) {
  const int64_t taken = IterativeBytes(inputs, hidden, 1);
  Check(
      taken <= memory,
      "a fit of n = {} inputs and d = {} outputs without their Gram takes at least 8 n d + 40 n bytes and some tokens, "
      "which is {:.4g} MiB of memory, and {:.4g} MiB may be used; a higher limit allows more",
      inputs, hidden, static_cast<double>(taken) / (1 << 20), static_cast<double>(memory) / (1 << 20));
}

RidgeSolution SolveIteratively(const Context& context, const IterativeProblem& problem, const LambdaSpec& lambda,
                               Progress& progress) {
  const int64_t n = problem.inputs, d = problem.hidden;
  const bool choose = lambda.kind == LambdaSpec::Kind::kGcv || lambda.kind == LambdaSpec::Kind::kHoldout;
  Check(!choose || problem.heldout,
        "there is no memory for the Gram of {} inputs, and without it lambda is chosen on held-out calibration tokens; "
        "there are none: give lambda as a number",
        n);
  const int64_t room = problem.memory - IterativeBytes(n, d, 0), columns = std::min(d, room / (40 * n));
  CheckIterativeMemory(n, d, problem.memory);

  const Moments moments = MomentsOf(problem);
  RidgeSolution solution;
  Matrix<double> a(n, d);
  solution.condition = std::numeric_limits<double>::quiet_NaN();
  solution.lambda = lambda.kind == LambdaSpec::Kind::kRelative ? lambda.value * moments.unit : lambda.value;
  int64_t passes = 1;
  for (int64_t first = 0; first < d; first += columns) {
    Group group(context, problem, moments, first, std::min(columns, d - first), progress);
    Matrix<double> best;
    if (choose && first == 0) {
      solution.lambda = ChooseLambda(group, moments.unit, best);
    } else {
      group.Solve(solution.lambda);
    }
    const Matrix<double>& x = best.empty() ? group.x() : best;
    for (int64_t i = 0; i < n; ++i) std::copy_n(x.row(i), x.cols(), a.row(i) + first);
    passes += group.passes();
  }
  solution.b = moments.delta_mean.Clone();
  linalg::Gemm(context, false, false, -1.0, moments.mean.view(), a.view(), 1.0, solution.b.view());
  solution.a = std::move(a);
  solution.warning = fmt::format(
      "the Gram of {} inputs has no room in memory: solved by conjugate gradients to a relative residual of {:.0e}, in "
      "{} passes over the activations{}",
      n, kIterativeTolerance, passes, choose ? "; lambda by hold-out, in powers of ten" : "");
  return solution;
}

double RSquaredOver(const Context& context, const RowPass& pass, const Matrix<double>& map,
                    const Matrix<double>& bias) {
  const int64_t d = map.cols();
  Matrix<double> sums = Matrix<double>::Zeros(1, d);
  double weight = 0, squares = 0, residual = 0;
  const Matrix<double> zeros = Matrix<double>::Zeros(1, map.rows()), none = Matrix<double>::Zeros(1, d);
  pass([&](const FitRows& rows) {
    for (int64_t t = 0; t < rows.missing.rows; ++t) {
      const double here = rows.weights.empty() ? 1.0 : rows.weights[t];
      weight += here;
      for (int64_t j = 0; j < d; ++j) {
        sums(0, j) += here * rows.missing(t, j);
        squares += here * rows.missing(t, j) * rows.missing(t, j);
      }
    }
    const RowPass same = [&](const std::function<void(const FitRows&)>& take) { take(rows); };
    ForChunks(same, zeros, bias, [&](const Chunk& chunk) {
      linalg::Gemm(context, false, false, -1.0, chunk.inputs.view(), map.view(), 1.0, chunk.missing.view());
      for (const double value : chunk.missing.span()) residual += value * value;
    });
  });
  for (int64_t j = 0; j < d && weight > 0; ++j) squares -= sums(0, j) * sums(0, j) / weight;
  return squares > 0 ? 1 - residual / squares : 0;
}

}  // namespace shiftrt
