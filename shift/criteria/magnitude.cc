// SPDX-License-Identifier: Apache-2.0
// Magnitude: the sum of |w|^p over a block's, or a half's, projections and its norms of the residual stream, without
// its biases and its norms of heads.
#include <cmath>

#include "models/block_tensors.h"
#include "runtime/elements.h"
#include "runtime/parallel.h"
#include "shift/criteria/criteria.h"

namespace shiftrt {

namespace {

using Power = double (*)(double);

double Absolute(double x) { return std::abs(x); }
double Square(double x) { return x * x; }

template <Power kPower, typename T>
double RowSum(const T* row, int64_t n) {
  constexpr int64_t kLanes = 8;  // independent sums, so that additions need not wait for each other
  double lanes[kLanes] = {};
  int64_t i = 0;
  for (; i + kLanes <= n; i += kLanes)
    for (int64_t k = 0; k < kLanes; ++k) lanes[k] += kPower(static_cast<float>(row[i + k]));
  for (; i < n; ++i) lanes[0] += kPower(static_cast<float>(row[i]));
  double sum = 0;
  for (double lane : lanes) sum += lane;
  return sum;
}

// Adds row by row, so that the sum does not depend on the number of threads.
template <Power kPower>
double Sum(const Context& context, const TensorView& tensor) {
  const int64_t cols = tensor.cols();
  std::vector<double> rows(tensor.rows());
  ParallelFor(context, tensor.rows(), 64, [&](int64_t begin, int64_t end) {
    std::vector<float> values(cols);
    for (int64_t i = begin; i < end; ++i) {
      Widen(tensor.dtype, static_cast<const std::byte*>(tensor.data) + i * BytesOf(tensor.dtype, cols), cols,
            values.data());
      rows[i] = RowSum<kPower>(values.data(), cols);
    }
  });
  double sum = 0;
  for (double row : rows) sum += row;
  return sum;
}

template <Power kPower>
std::vector<double> Scores(const CriterionTask& task) {
  const std::vector<BlockWeights>& blocks = task.input.weights->blocks;
  task.progress.Begin("selecting layers", task.quota.units());
  std::vector<double> scores;
  for (int64_t unit = 0; unit < task.quota.units(); ++unit) {
    const BlockPart part = PartOf(task.quota.unit(), unit);
    double sum = 0;
    for (const auto kind : {BlockTensor::Kind::kMatrix, BlockTensor::Kind::kNorm})
      ForEachTensor(blocks[part.layer], part.halves, [&](const BlockTensor& row, const TensorView& tensor) {
        if (row.kind == kind && !row.NormsHeads()) sum += Sum<kPower>(task.input.context, tensor);
      });
    scores.push_back(sum);
    task.progress.Advance(1);
  }
  task.progress.End();
  return scores;
}

}  // namespace

std::vector<double> MagnitudeL1Scores(const CriterionTask& task) { return Scores<Absolute>(task); }

std::vector<double> MagnitudeL2Scores(const CriterionTask& task) { return Scores<Square>(task); }

}  // namespace shiftrt
