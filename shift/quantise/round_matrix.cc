// SPDX-License-Identifier: Apache-2.0
#include "shift/quantise/round_matrix.h"

#include <algorithm>
#include <array>
#include <atomic>
#include <cmath>
#include <limits>
#include <optional>
#include <vector>

#include "kernels/matmul.h"
#include "runtime/block_rounding.h"
#include "runtime/check.h"
#include "runtime/linalg/large.h"
#include "runtime/linalg/linalg.h"
#include "runtime/parallel.h"

namespace shiftrt {

namespace {

// Damping of an input by its own mean square, because a few inputs are a thousand times larger than most; and of an
// input that is always 0, by that of all.
constexpr double kDamping = 0.01, kLeastDamping = 1e-6;
constexpr int64_t kChunk = 2048;  // rows of the matrix that are rounded together
constexpr int64_t kPanel = 256;   // columns after which the errors go to all later columns
constexpr int kTrials = 4;        // choices of the scales of a block

double SumOfSquares(MatrixView<const float> m) {
  double sum = 0;
  for (int64_t i = 0; i < m.rows; ++i)
    for (int64_t j = 0; j < m.cols; ++j) sum += static_cast<double>(m(i, j)) * m(i, j);
  return sum;
}

// Rounds some rows of a matrix.
class Rounder {
 public:
  Rounder(const Context& context, const BlockGrid& grid, MatrixView<const float> root, Rounding rounding)
      : context_(context), grid_(grid), root_(root), rounding_(rounding), weights_(root.rows, 1.0f) {
    for (int64_t j = 0; j < root.rows && rounding != Rounding::kNearest; ++j) {
      double square = static_cast<double>(root(j, j)) * root(j, j);
      for (int64_t k = j + 1; k < root.cols && rounding == Rounding::kImportance; ++k)
        square += static_cast<double>(root(j, k)) * root(j, k);
      weights_[j] = static_cast<float>(square);
    }
  }

  // Rounds w (rows, inputs) into `out`. Returns the sum of |e V|^2, 0 without V, or nothing if the type cannot hold w.
  std::optional<double> Round(MatrixView<const float> w, std::byte* out) const {
    const int64_t inputs = w.cols;
    if (root_.rows == 0) return RoundAlone(w, out);
    Matrix<float> cost = Matrix<float>::Zeros(w.rows, inputs), errors(w.rows, kPanel);
    std::atomic<bool> good = true;
    for (int64_t first = 0; first < inputs; first += kPanel) {
      const int64_t count = std::min(kPanel, inputs - first), end = first + count;
      ParallelFor(context_, w.rows, 4, [&](int64_t begin, int64_t last) {
        for (int64_t i = begin; i < last; ++i)
          if (!RoundPanel({w.row(i), cost.row(i), errors.row(i) - first, first, end}, out + i * RowBytes(inputs)))
            good = false;
      });
      if (!good) return std::nullopt;
      if (end < inputs)
        MatMulRight(context_, errors.view().Cols(0, count), root_.Rows(first, count).Cols(end, inputs - end), true,
                    cost.view().Cols(end, inputs - end));
    }
    return SumOfSquares(cost.view());
  }
  int64_t RowBytes(int64_t inputs) const { return BytesOf(grid_.type, inputs); }

 private:
  std::optional<double> RoundAlone(MatrixView<const float> w, std::byte* out) const {
    std::atomic<bool> good = true;
    ParallelFor(context_, w.rows, 4, [&](int64_t begin, int64_t last) {
      for (int64_t i = begin; i < last; ++i)
        if (!RoundBlocks(grid_, w.row(i), w.cols / grid_.elements(), nullptr, w.cols, out + i * RowBytes(w.cols)))
          good = false;
    });
    return good ? std::optional(0.0) : std::nullopt;
  }

  // One row: its numbers, e V so far, and the errors, by column. The columns from `first` to `end` are rounded.
  struct Row {
    const float* w;
    float *cost, *errors;
    int64_t first, end;
  };

  // A block as it is rounded: its numbers corrected for earlier errors, its errors, and e V up to its last column.
  struct Trial {
    RoundedBlock block;
    std::array<float, BlockGrid::kMostElements> targets, errors, costs;
    double loss = std::numeric_limits<double>::infinity();  // the sum of costs^2
  };

  bool RoundPanel(const Row& row, std::byte* out) const {
    const int64_t elements = grid_.elements(), bytes = LayoutOf(grid_.type).bytes;
    for (int64_t at = row.first; at < row.end; at += elements) {
      Trial best, next;
      for (int64_t i = 0; i < elements; ++i) best.targets[i] = row.w[at + i] + Feedback(row.cost[at + i], at + i);
      // The numbers move while the errors before them are made good, some of them out of the range of the scales, so
      // that the scales are chosen again for the numbers as they were.
      const int trials = rounding_ == Rounding::kFeedback ? kTrials : 1;
      for (int trial = 0; trial < trials; ++trial) {
        if (!Try(row, at, best.targets, next)) return false;
        if (!(next.loss < best.loss)) break;
        best = next;
      }
      Commit(row, at, best);
      Pack(grid_, best.block, out + at / elements * bytes);
    }
    return true;
  }

  float Feedback(float cost, int64_t j) const { return rounding_ == Rounding::kFeedback ? cost / root_(j, j) : 0; }

  // Rounds the block from column `at` on, with scales for `numbers`.
  bool Try(const Row& row, int64_t at, const std::array<float, BlockGrid::kMostElements>& numbers, Trial& trial) const {
    const int64_t elements = grid_.elements();
    if (!ChooseScales(grid_, numbers.data(), weights_.data() + at, trial.block)) return false;
    std::copy_n(row.cost + at, elements, trial.costs.data());
    trial.loss = 0;
    for (int64_t i = 0; i < elements; ++i) {
      const float w = row.w[at + i], target = w + Feedback(trial.costs[i], at + i);
      const int code = Nearest(grid_, trial.block, i, target);
      trial.block.codes[i] = static_cast<int8_t>(code);
      trial.targets[i] = target;
      trial.errors[i] = w - Decoded(grid_, trial.block, i, code);
      const float* const v = root_.row(at + i) + at;
      for (int64_t k = i; k < elements; ++k) trial.costs[k] += trial.errors[i] * v[k];
      trial.loss += static_cast<double>(trial.costs[i]) * trial.costs[i];
    }
    return true;
  }

  // Adds the errors of a block to e V in the columns of the panel after it.
  void Commit(const Row& row, int64_t at, const Trial& trial) const {
    const int64_t elements = grid_.elements();
    std::copy_n(trial.costs.data(), elements, row.cost + at);
    std::copy_n(trial.errors.data(), elements, row.errors + at);
    for (int64_t i = 0; i < elements; ++i) {
      const float* const v = root_.row(at + i);
      for (int64_t k = at + elements; k < row.end; ++k) row.cost[k] += trial.errors[i] * v[k];
    }
  }

  const Context& context_;
  const BlockGrid& grid_;
  const MatrixView<const float> root_;
  const Rounding rounding_;
  std::vector<float> weights_;  // by input
};

}  // namespace

void InputGram::Add(const Context& context, MatrixView<const float> x, std::span<const float> sizes) {
  constexpr int64_t kRows = 512;
  const int64_t n = inputs();
  Check(x.cols == n, "inputs of width {}, expected {}", x.cols, n);
  Matrix<float> scaled(std::min(kRows, x.rows), n);
  if (part_.empty()) part_ = Matrix<float>(n, n);
  for (int64_t first = 0; first < x.rows; first += kRows) {
    const int64_t count = std::min(kRows, x.rows - first);
    ParallelFor(context, count, 16, [&](int64_t begin, int64_t end) {
      for (int64_t i = begin; i < end; ++i) {
        const float size = sizes.empty() ? 1 : sizes[first + i], factor = size > 0 ? 1 / size : 0;
        for (int64_t j = 0; j < n; ++j) scaled(i, j) = x(first + i, j) * factor;
      }
    });
    linalg::Gram(context, scaled.view().Rows(0, count), part_.view());
    ParallelFor(context, n, 16, [&](int64_t begin, int64_t end) {
      for (int64_t i = begin; i < end; ++i)
        for (int64_t j = i; j < n; ++j) gram_(i, j) += part_(i, j);
    });
  }
}

// With the reversal J, J H J = U' U gives H = (J U' J) (J U' J)', and J U' J is upper triangular.
Matrix<float> InputGram::TakeRoot(const Context& context) {
  const int64_t n = inputs();
  part_ = {};
  linalg::CheckFinite(gram_.view());
  double trace = 0;
  for (int64_t i = 0; i < n; ++i) trace += gram_(i, i);
  const double least = trace > 0 ? kLeastDamping * trace / static_cast<double>(n) : 1;
  Matrix<double> reversed = Matrix<double>::Zeros(n, n);
  for (int64_t i = 0; i < n; ++i) {
    gram_(i, i) += kDamping * gram_(i, i) + least;
    for (int64_t j = i; j < n; ++j) reversed(n - 1 - j, n - 1 - i) = gram_(i, j);
  }
  gram_ = {};
  Check(linalg::FactorInBlocks(context, reversed.view()), "the Gram matrix of {} inputs is not positive definite", n);
  Matrix<float> root = Matrix<float>::Zeros(n, n);
  for (int64_t i = 0; i < n; ++i)
    for (int64_t j = i; j < n; ++j) root(i, j) = static_cast<float>(reversed(n - 1 - j, n - 1 - i));
  return root;
}

RoundedMatrix RoundMatrix(const Context& context, const char* name, const TensorView& w, BlockType type,
                          MatrixView<const float> root, Rounding rounding) {
  const DType dtype = DTypeOfBlocks(type);
  const BlockGrid* const grid = FindGrid(dtype);
  Check(grid != nullptr, "{}: nothing is rounded to {}", name, TraitsOf(type).name);
  const int64_t outputs = w.rows(), inputs = w.cols();
  const bool measured = root.rows > 0;
  Check(inputs % grid->elements() == 0 && (inputs == root.rows || (!measured && rounding == Rounding::kNearest)),
        "{}: {} inputs, expected {} in whole blocks of {}", name, inputs, root.rows, grid->elements());
  auto buffer = std::make_shared<Buffer<std::byte>>(BytesOf(dtype, outputs * inputs));
  RoundedMatrix rounded{{buffer->data(), dtype, w.shape}, buffer};
  const Rounder rounder(context, *grid, root, rounding);
  Matrix<float> rows(std::min(kChunk, outputs), inputs), products(measured ? rows.rows() : 0, inputs);
  for (int64_t first = 0; first < outputs; first += kChunk) {
    const int64_t count = std::min(kChunk, outputs - first);
    ParallelFor(context, count, 16, [&](int64_t begin, int64_t end) {
      for (int64_t i = begin; i < end; ++i)
        Widen(w.dtype, static_cast<const std::byte*>(w.data) + (first + i) * BytesOf(w.dtype, inputs), inputs,
              rows.row(i));
    });
    const MatrixView<float> chunk = rows.view().Rows(0, count);
    const std::optional<double> error = rounder.Round(chunk, buffer->data() + first * rounder.RowBytes(inputs));
    Check(error.has_value(), "{}: rows {} to {} have a number that {} cannot hold", name, first, first + count - 1,
          Name(dtype));
    rounded.error += *error;
    if (!measured) continue;
    MatMulRight(context, chunk, root, false, products.view().Rows(0, count));
    rounded.size += SumOfSquares(products.view().Rows(0, count));
  }
  return rounded;
}

}  // namespace shiftrt
