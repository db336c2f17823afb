// SPDX-License-Identifier: Apache-2.0
#include "shift/fit/metric.h"

#include <algorithm>
#include <cmath>

#include "runtime/check.h"
#include "runtime/linalg/linalg.h"
#include "shift/fit/loss_gradients.h"

namespace shiftrt {

namespace {

constexpr double kFloor = 1e-3;

}  // namespace

MetricKind ParseMetric(const std::string& text) {
  for (const MetricKind kind : {MetricKind::kIdentity, MetricKind::kFisherDiagonal, MetricKind::kFisher})
    if (text == Name(kind)) return kind;
  FailUsage(Field("metric"), "unknown metric \"{}\"; known: identity, fisher-diagonal, fisher", text);
}

const char* Name(MetricKind kind) {
  switch (kind) {
    case MetricKind::kIdentity: return "identity";
    case MetricKind::kFisherDiagonal: return "fisher-diagonal";
    case MetricKind::kFisher: return "fisher";
  }
  return "?";
}

OutputMetric::OutputMetric(const Context& context, MetricKind kind, MatrixView<const double> squares) {
  const int64_t d = squares.rows;
  double trace = 0;
  for (int64_t i = 0; i < d; ++i) trace += squares(i, i);
  Check(std::isfinite(trace) && trace > 0, "the squares of the loss's gradients add up to {}", trace);
  const double mean = trace / static_cast<double>(d);
  if (kind == MetricKind::kFisherDiagonal) {
    for (int64_t i = 0; i < d; ++i) scales_.push_back(std::sqrt(squares(i, i) / mean + kFloor));
    return;
  }
  Matrix<double> moment(d, d);
  for (int64_t i = 0; i < d; ++i) {
    for (int64_t j = i; j < d; ++j) moment(i, j) = moment(j, i) = squares(i, j) / mean;
    moment(i, i) += kFloor;
  }
  const auto solver = linalg::MakeHostSolver(context);
  const linalg::ArrayPtr upper = solver->Uploaded(moment.view()),
                         nothing = solver->Uploaded(Matrix<double>::Zeros(d, 1).view());
  Check(solver->CholeskySolve(*upper, *nothing, nullptr),
        "the second moment of the loss's gradients is not positive definite");
  moment = solver->Downloaded(*upper);
  root_ = Matrix<double>::Zeros(d, d);
  for (int64_t i = 0; i < d; ++i)
    for (int64_t j = 0; j <= i; ++j) root_(i, j) = moment(j, i);
}

Matrix<double> OutputMetric::Times(const Context& context, const Matrix<double>& x) const {
  Matrix<double> out(x.rows(), x.cols());
  if (scales_.empty()) {
    linalg::Gemm(context, false, false, 1.0, x.view(), root_.view(), 0.0, out.view());
    return out;
  }
  for (int64_t i = 0; i < x.rows(); ++i)
    for (int64_t j = 0; j < x.cols(); ++j) out(i, j) = x(i, j) * scales_[j];
  return out;
}

Matrix<double> OutputMetric::Over(const Context& context, const Matrix<double>& y) const {
  Matrix<double> out = y.Clone();
  if (scales_.empty()) {
    Matrix<double> root = root_.Clone();
    linalg::SolveFromRight(context, root.view(), out.view(), 0);
    return out;
  }
  for (int64_t i = 0; i < y.rows(); ++i)
    for (int64_t j = 0; j < y.cols(); ++j) out(i, j) /= scales_[j];
  return out;
}

GradientMoments CollectGradientMoments(const ShiftJob& job, std::span<const int64_t> layers) {
  GradientMoments moments;
  for (const int64_t layer : layers) moments.emplace(layer, Matrix<double>::Zeros(job.hidden(), job.hidden()));
  job.progress.Begin("gradients of the loss", job.calibration.fit_tokens);
  VisitLossGradients(job, job.calibration.fit, layers, [&](int64_t layer, const Batch&, const Matrix<float>& g) {
    const Matrix<double> wide(g.rows(), g.cols());
    std::copy_n(g.data(), wide.size(), wide.data());
    linalg::AddGram(job.context, wide.view(), moments.at(layer).view());
  });
  job.progress.End();
  return moments;
}

std::shared_ptr<const OutputMetrics> MakeMetrics(const Context& context, MetricKind kind,
                                                 const GradientMoments& moments) {
  auto metrics = std::make_shared<OutputMetrics>();
  for (const auto& [layer, squares] : moments) metrics->emplace(layer, OutputMetric(context, kind, squares.view()));
  return metrics;
}

std::shared_ptr<const OutputMetrics> CollectMetrics(const ShiftJob& job, MetricKind kind,
                                                    std::span<const int64_t> layers) {
  return MakeMetrics(job.context, kind, CollectGradientMoments(job, layers));
}

}  // namespace shiftrt
