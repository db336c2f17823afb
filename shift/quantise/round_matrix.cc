// SPDX-License-Identifier: Apache-2.0
#include "shift/quantise/round_matrix.h"

#include <algorithm>
#include <atomic>
#include <cmath>
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

constexpr double kDamping = 0.01;
constexpr int64_t kChunk = 2048;  // rows of the matrix that are rounded together
constexpr int64_t kPanel = 256;   // columns after which the errors go to all later columns

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

  float Target(const Row& row, int64_t j) const {
    return rounding_ == Rounding::kFeedback ? row.w[j] + row.cost[j] / root_(j, j) : row.w[j];
  }

  bool RoundPanel(const Row& row, std::byte* out) const {
    const int64_t elements = grid_.elements(), bytes = LayoutOf(grid_.type).bytes;
    std::array<float, BlockGrid::kMostElements> targets;
    RoundedBlock block;
    for (int64_t at = row.first; at < row.end; at += elements) {
      for (int64_t i = 0; i < elements; ++i) targets[i] = Target(row, at + i);
      if (!ChooseScales(grid_, targets.data(), weights_.data() + at, block)) return false;
      for (int64_t i = 0; i < elements; ++i) {
        const int64_t j = at + i;
        const int code = Nearest(grid_, block, i, Target(row, j));
        block.codes[i] = static_cast<int8_t>(code);
        const float error = row.w[j] - Decoded(grid_, block, i, code);
        row.errors[j] = error;
        const float* const v = root_.row(j);
        for (int64_t k = j; k < row.end; ++k) row.cost[k] += error * v[k];
      }
      Pack(grid_, block, out + at / elements * bytes);
    }
    return true;
  }

  const Context& context_;
  const BlockGrid& grid_;
  const MatrixView<const float> root_;
  const Rounding rounding_;
  std::vector<float> weights_;  // by input
};

}  // namespace

void InputGram::Add(const Context& context, MatrixView<const float> x) {
  constexpr int64_t kRows = 512;
  Check(x.cols == inputs(), "inputs of width {}, expected {}", x.cols, inputs());
  Matrix<double> wide(std::min(kRows, x.rows), x.cols);
  for (int64_t first = 0; first < x.rows; first += kRows) {
    const int64_t count = std::min(kRows, x.rows - first);
    ParallelFor(context, count, 16, [&](int64_t begin, int64_t end) {
      for (int64_t i = begin; i < end; ++i) std::copy_n(x.row(first + i), x.cols, wide.row(i));
    });
    linalg::AddGram(context, wide.view().Rows(0, count), gram_.view());
  }
}

// With the reversal J, J H J = U' U gives H = (J U' J) (J U' J)', and J U' J is upper triangular.
Matrix<float> InputGram::TakeRoot(const Context& context) {
  const int64_t n = inputs();
  linalg::CheckFinite(gram_.view());
  double trace = 0;
  for (int64_t i = 0; i < n; ++i) trace += gram_(i, i);
  const double damping = trace > 0 ? kDamping * trace / static_cast<double>(n) : 1;
  Matrix<double> reversed = Matrix<double>::Zeros(n, n);
  for (int64_t i = 0; i < n; ++i) {
    gram_(i, i) += damping;
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
