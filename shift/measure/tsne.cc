// SPDX-License-Identifier: Apache-2.0
#include "shift/measure/tsne.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <vector>

#include "runtime/check.h"
#include "runtime/parallel.h"
#include "runtime/random.h"

namespace shiftrt {

namespace {

// The settings of the paper's algorithm, with the step width of Belkina et al., 2019: points / exaggeration.
constexpr double kExaggeration = 12, kLeastStep = 50, kFirstPositions = 1e-4;
constexpr double kEarlyMomentum = 0.5, kMomentum = 0.8, kMoreGain = 0.2, kLessGain = 0.8, kLeastGain = 0.01;
// Steps of bisection for the width of a Gaussian.
constexpr int kBisections = 64;
constexpr double kEntropyTolerance = 1e-10;

Matrix<double> SquaredDistances(const Context& context, MatrixView<const double> x) {
  Matrix<double> distances(x.rows, x.rows);
  ParallelFor(context, x.rows, 1, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i)
      for (int64_t j = 0; j < x.rows; ++j) {
        double sum = 0;
        for (int64_t k = 0; k < x.cols; ++k) sum += (x(i, k) - x(j, k)) * (x(i, k) - x(j, k));
        distances(i, j) = sum;
      }
  });
  return distances;
}

// Row i of the similarities in place of the squared distances; returns their entropy in nats. The nearest neighbour's
// distance is subtracted, which changes nothing and keeps the sum from underflowing.
double Weigh(const double* squared, int64_t n, int64_t i, double precision, double* row) {
  double nearest = std::numeric_limits<double>::infinity(), sum = 0, mean = 0;
  for (int64_t j = 0; j < n; ++j)
    if (j != i) nearest = std::min(nearest, squared[j]);
  for (int64_t j = 0; j < n; ++j) {
    const double apart = squared[j] - nearest;
    row[j] = j == i ? 0.0 : std::exp(-precision * apart);
    sum += row[j];
    mean += row[j] * (j == i ? 0.0 : apart);
  }
  for (int64_t j = 0; j < n; ++j) row[j] /= sum;
  return std::log(sum) + precision * mean / sum;
}

void Calibrate(const double* squared, int64_t n, int64_t i, double entropy, double* row) {
  double low = 0, high = std::numeric_limits<double>::infinity(), precision = 1;
  for (int step = 0; step < kBisections; ++step) {
    const double above = Weigh(squared, n, i, precision, row) - entropy;
    if (std::abs(above) < kEntropyTolerance) return;
    (above > 0 ? low : high) = precision;
    precision = std::isinf(high) ? 2 * precision : (low + high) / 2;
  }
}

class Descent {
 public:
  Descent(const Context& context, const Matrix<double>& similarities, const TsneOptions& options)
      : context_(context),
        n_(similarities.rows()),
        p_(n_, n_),
        kernel_(n_, n_),
        y_(n_, 2),
        velocity_(Matrix<double>::Zeros(n_, 2)),
        gains_(n_, 2),
        sums_(n_) {
    for (int64_t i = 0; i < n_; ++i)
      for (int64_t j = 0; j < n_; ++j)
        p_(i, j) = (similarities(i, j) + similarities(j, i)) / (2 * static_cast<double>(n_));
    Random random(options.seed);
    for (int64_t k = 0; k < 2 * n_; ++k) {
      y_.data()[k] = kFirstPositions * random.Normal();
      gains_.data()[k] = 1;
    }
  }

  void Step(double exaggeration, double momentum) {
    const double total = Kernel();
    const double width = std::max(kLeastStep, static_cast<double>(n_) / kExaggeration);
    Matrix<double> next(n_, 2);
    ParallelFor(context_, n_, 1, [&](int64_t begin, int64_t end) {
      for (int64_t i = begin; i < end; ++i) {
        double gradient[2] = {0, 0};
        for (int64_t j = 0; j < n_; ++j) {
          const double k = kernel_(i, j), pull = (exaggeration * p_(i, j) - k / total) * k;
          gradient[0] += pull * (y_(i, 0) - y_(j, 0));
          gradient[1] += pull * (y_(i, 1) - y_(j, 1));
        }
        for (int c = 0; c < 2; ++c) {
          const bool turned = (gradient[c] > 0) == (velocity_(i, c) > 0);
          gains_(i, c) = std::max(kLeastGain, turned ? gains_(i, c) * kLessGain : gains_(i, c) + kMoreGain);
          velocity_(i, c) = momentum * velocity_(i, c) - 4 * width * gains_(i, c) * gradient[c];
          next(i, c) = y_(i, c) + velocity_(i, c);
        }
      }
    });
    y_ = std::move(next);
    Centre();
  }

  Matrix<double> Take() { return std::move(y_); }

 private:
  // 1 / (1 + |y_i - y_j|^2), and the sum over all pairs.
  double Kernel() {
    ParallelFor(context_, n_, 1, [&](int64_t begin, int64_t end) {
      for (int64_t i = begin; i < end; ++i) {
        sums_[i] = 0;
        for (int64_t j = 0; j < n_; ++j) {
          const double across = y_(i, 0) - y_(j, 0), up = y_(i, 1) - y_(j, 1);
          kernel_(i, j) = j == i ? 0.0 : 1 / (1 + across * across + up * up);
          sums_[i] += kernel_(i, j);
        }
      }
    });
    double total = 0;
    for (const double sum : sums_) total += sum;
    return total;
  }

  void Centre() {
    for (int64_t c = 0; c < 2; ++c) {
      double mean = 0;
      for (int64_t i = 0; i < n_; ++i) mean += y_(i, c) / static_cast<double>(n_);
      for (int64_t i = 0; i < n_; ++i) y_(i, c) -= mean;
    }
  }

  const Context& context_;
  const int64_t n_;
  Matrix<double> p_, kernel_, y_, velocity_, gains_;
  std::vector<double> sums_;  // sums of the rows of kernel_
};

}  // namespace

Matrix<double> TsneSimilarities(const Context& context, MatrixView<const double> points, double perplexity) {
  const int64_t n = points.rows;
  Check(n <= kTsnePoints, "t-SNE of {} points; it takes at most {}", n, kTsnePoints);
  for (int64_t i = 0; i < n; ++i)
    for (int64_t j = 0; j < points.cols; ++j)
      Check(std::isfinite(points(i, j)), "t-SNE: coordinate {} of point {} is not finite", j, i);
  Check(perplexity >= 1 && perplexity <= static_cast<double>(n - 1), "a perplexity of {} for {} points", perplexity, n);
  const Matrix<double> squared = SquaredDistances(context, points);
  Matrix<double> similarities(n, n);
  ParallelFor(context, n, 1, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) Calibrate(squared.row(i), n, i, std::log(perplexity), similarities.row(i));
  });
  return similarities;
}

Matrix<double> Tsne(const Context& context, MatrixView<const double> points, const TsneOptions& options) {
  const int64_t n = points.rows;
  if (n < 3) return Matrix<double>::Zeros(n, 2);
  const double perplexity = std::max(1.0, std::min(options.perplexity, static_cast<double>(n) / 3));
  Descent descent(context, TsneSimilarities(context, points, perplexity), options);
  const int early = options.iterations / 4;
  for (int i = 0; i < options.iterations; ++i)
    descent.Step(i < early ? kExaggeration : 1, i < early ? kEarlyMomentum : kMomentum);
  return descent.Take();
}

}  // namespace shiftrt
