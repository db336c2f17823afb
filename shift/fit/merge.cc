// SPDX-License-Identifier: Apache-2.0
#include "shift/fit/merge.h"

#include <algorithm>
#include <utility>

#include "runtime/linalg/linalg.h"
#include "shift/fit/convert.h"
#include "shift/fit/factorize.h"

namespace shiftrt {

namespace {

// c += a b.
void AddProduct(const Context& context, const Matrix<double>& a, const Matrix<double>& b, const Matrix<double>& c) {
  linalg::Gemm(context, false, false, 1.0, a.view(), b.view(), 1.0, c.view());
}

void AddTo(const Matrix<double>& x, const Matrix<double>& y) {
  for (int64_t i = 0; i < y.size(); ++i) y.data()[i] += x.data()[i];
}

Matrix<double> SideBySide(const Matrix<double>& left, const Matrix<double>& right) {
  Matrix<double> out(left.rows(), left.cols() + right.cols());
  for (int64_t i = 0; i < out.rows(); ++i)
    std::copy_n(right.row(i), right.cols(), std::copy_n(left.row(i), left.cols(), out.row(i)));
  return out;
}

Matrix<double> Stacked(const Matrix<double>& top, const Matrix<double>& bottom) {
  Matrix<double> out(top.rows() + bottom.rows(), top.cols());
  std::copy_n(bottom.data(), bottom.size(), std::copy_n(top.data(), top.size(), out.data()));
  return out;
}

using Run = std::vector<const AdapterStage*>;

// (I + A)(I + A2) - I = A + A2 + A A2; b M2 + b2 = b + b A2 + b2.
std::shared_ptr<const Lra> MergeFull(const Context& context, const Run& run) {
  Matrix<double> a = DenseMap(context, *run[0]->lra), b = Converted<double>(run[0]->lra->b);
  for (size_t i = 1; i < run.size(); ++i) {
    const Matrix<double> a2 = DenseMap(context, *run[i]->lra);
    Matrix<double> b2 = Converted<double>(run[i]->lra->b);
    Matrix<double> sum = a2.Clone();
    AddTo(a, sum);
    AddProduct(context, a, a2, sum);
    a = std::move(sum);
    AddTo(b, b2);
    AddProduct(context, b, a2, b2);
    b = std::move(b2);
  }
  auto lra = std::make_shared<Lra>();
  lra->a = Converted<float>(a);
  lra->b = Converted<float>(b);
  return lra;
}

// (I + P Q)(I + P2 Q2) - I = [P | P2] [Q + (Q P2) Q2 ; Q2].
std::shared_ptr<const Lra> MergeLowRank(const Context& context, const Run& run) {
  Matrix<double> p = Converted<double>(run[0]->lra->p), q = Converted<double>(run[0]->lra->q),
                 b = Converted<double>(run[0]->lra->b);
  for (size_t i = 1; i < run.size(); ++i) {
    const Matrix<double> p2 = Converted<double>(run[i]->lra->p), q2 = Converted<double>(run[i]->lra->q),
                         b2 = Converted<double>(run[i]->lra->b);
    const Matrix<double> rows = Stacked(q, b);  // b goes through the second adapter as the rows of Q do
    const Matrix<double> inner = Matrix<double>::Zeros(rows.rows(), p2.cols());
    AddProduct(context, rows, p2, inner);
    AddProduct(context, inner, q2, rows);
    std::copy_n(rows.data(), q.size(), q.data());
    std::copy_n(rows.row(q.rows()), b.size(), b.data());
    AddTo(b2, b);
    p = SideBySide(p, p2);
    q = Stacked(q, q2);
  }
  auto lra = std::make_shared<Lra>();
  lra->p = Converted<float>(p);
  lra->q = Converted<float>(q);
  lra->b = Converted<float>(b);
  return lra;
}

AdapterStage MergeRun(const Context& context, const Run& run, Merge merge) {
  if (run.size() == 1) return *run[0];
  AdapterStage merged;
  for (const AdapterStage* site : run) merged.parts.insert(merged.parts.end(), site->parts.begin(), site->parts.end());
  const bool factored = std::all_of(run.begin(), run.end(), [](const AdapterStage* s) { return s->lra->low_rank(); });
  merged.lra = merge == Merge::kLowRank && factored ? MergeLowRank(context, run) : MergeFull(context, run);
  return merged;
}

}  // namespace

DepthPlan MergeAdapters(const DepthPlan& plan, Merge merge, const Context& context) {
  if (merge == Merge::kOff) return plan;
  DepthPlan merged{{}, plan.output};
  Run run;
  const auto close_run = [&] {
    if (!run.empty()) merged.stages.emplace_back(MergeRun(context, run, merge));
    run.clear();
  };
  for (const Stage& stage : plan.stages) {
    stage.Visit(
        [&](const BlockStage& block) {
          close_run();
          merged.stages.emplace_back(block);
        },
        [&](const AdapterStage& adapter) { run.push_back(&adapter); });
  }
  close_run();
  return merged;
}

}  // namespace shiftrt
