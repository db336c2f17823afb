#include "shift/statistics.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "runtime/check.h"
#include "runtime/linalg.h"
#include "runtime/parallel.h"

namespace shiftrt {

namespace {

// Rows widened to float64 at a time: enough for the products to run at full speed, little next to the accumulators.
constexpr int64_t kChunkRows = 512;

double Cosine(const float* a, const float* b, int64_t n) {
  double dot = 0, aa = 0, bb = 0;
  for (int64_t i = 0; i < n; ++i) {
    const double x = a[i], y = b[i];
    dot += x * y;
    aa += x * x;
    bb += y * y;
  }
  if (aa == 0 || bb == 0) return aa == bb ? 1.0 : 0.0;  // a zero row that stays zero has not been influenced
  return dot / std::sqrt(aa * bb);
}

// out(:, 0 .. cols) = rows of `in` as float64; returns each row's sum of squares, which is finite exactly if the row is
// (squares of float32 cannot overflow float64).
std::vector<double> Widen(const Context& context, MatrixView<const float> in, MatrixView<double> out) {
  std::vector<double> squares(in.rows, 0.0);
  ParallelFor(context, in.rows, 16, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) {
      double sum = 0;
      for (int64_t j = 0; j < in.cols; ++j) {
        const double x = in(i, j);
        out(i, j) = x;
        sum += x * x;
      }
      squares[i] = sum;
    }
  });
  return squares;
}

void CheckFinite(const std::vector<double>& squares, int64_t first_row, const char* what) {
  for (size_t i = 0; i < squares.size(); ++i)
    Check(std::isfinite(squares[i]), "row {} of the {} is not finite", first_row + static_cast<int64_t>(i), what);
}

}  // namespace

void InfluenceStatistics::Add(int64_t layer, MatrixView<const float> h_in, MatrixView<const float> h_out) {
  Check(layer >= 0 && layer < static_cast<int64_t>(tokens_.size()), "layer {} of {} layers", layer, tokens_.size());
  Check(h_in.rows == h_out.rows && h_in.cols == h_out.cols, "block input is ({}, {}), its output ({}, {})", h_in.rows,
        h_in.cols, h_out.rows, h_out.cols);
  for (int64_t i = 0; i < h_in.rows; ++i) cosine_sum_[layer] += Cosine(h_in.row(i), h_out.row(i), h_in.cols);
  tokens_[layer] += h_in.rows;
}

InfluenceStatistics& InfluenceStatistics::operator+=(const InfluenceStatistics& other) {
  Check(tokens_.size() == other.tokens_.size(), "statistics of {} layers added to those of {}", other.tokens_.size(),
        tokens_.size());
  for (size_t i = 0; i < tokens_.size(); ++i) {
    cosine_sum_[i] += other.cosine_sum_[i];
    tokens_[i] += other.tokens_[i];
  }
  return *this;
}

std::vector<double> InfluenceStatistics::Scores() const {
  std::vector<double> scores(tokens_.size());
  for (size_t i = 0; i < scores.size(); ++i) {
    Check(tokens_[i] > 0, "block influence of layer {}: no tokens were seen", i);
    scores[i] = 1.0 - cosine_sum_[i] / static_cast<double>(tokens_[i]);
  }
  return scores;
}

RidgeAccumulator::RidgeAccumulator(int64_t hidden)
    : hidden_(hidden),
      gram_(Matrix<double>::Zeros(hidden + 1, hidden + 1)),
      cross_(Matrix<double>::Zeros(hidden + 1, hidden)) {}

void RidgeAccumulator::Add(const Context& context, MatrixView<const float> h, MatrixView<const float> delta) {
  Check(h.cols == hidden_ && delta.cols == hidden_ && h.rows == delta.rows,
        "inputs ({}, {}) and updates ({}, {}) for an accumulator of hidden size {}", h.rows, h.cols, delta.rows,
        delta.cols, hidden_);
  const int64_t chunk = std::min(kChunkRows, h.rows);
  const Matrix<double> inputs(chunk, hidden_ + 1), updates(chunk, hidden_);
  for (int64_t i = 0; i < chunk; ++i) inputs(i, hidden_) = 1.0;
  for (int64_t first = 0; first < h.rows; first += chunk) {
    const int64_t rows = std::min(chunk, h.rows - first);
    const MatrixView<double> x = inputs.view().Rows(0, rows), y = updates.view().Rows(0, rows);
    CheckFinite(Widen(context, h.Rows(first, rows), x), first, "block's input");
    const std::vector<double> squares = Widen(context, delta.Rows(first, rows), y);
    CheckFinite(squares, first, "block's update");
    linalg::AddGram(context, x, gram_.view());
    linalg::Gemm(context, true, false, 1.0, x, y, 1.0, cross_.view());
    for (double row : squares) delta_squares_ += row;
    tokens_ += rows;
  }
}

RidgeAccumulator& RidgeAccumulator::operator+=(const RidgeAccumulator& other) {
  Check(hidden_ == other.hidden_, "an accumulator of hidden size {} added to one of {}", other.hidden_, hidden_);
  for (int64_t i = 0; i < gram_.size(); ++i) gram_.data()[i] += other.gram_.data()[i];
  for (int64_t i = 0; i < cross_.size(); ++i) cross_.data()[i] += other.cross_.data()[i];
  delta_squares_ += other.delta_squares_;
  tokens_ += other.tokens_;
  return *this;
}

Matrix<double> RidgeAccumulator::Gram() const {
  Matrix<double> gram = gram_.Clone();
  linalg::SymmetrizeFromUpper(gram.view());
  return gram;
}

Matrix<double> RidgeAccumulator::InputMean() const {
  Matrix<double> mean(1, hidden_);
  for (int64_t j = 0; j < hidden_; ++j) mean(0, j) = gram_(j, hidden_) / static_cast<double>(tokens_);
  return mean;
}

Matrix<double> RidgeAccumulator::DeltaMean() const {
  Matrix<double> mean(1, hidden_);
  for (int64_t j = 0; j < hidden_; ++j) mean(0, j) = cross_(hidden_, j) / static_cast<double>(tokens_);
  return mean;
}

Matrix<double> RidgeAccumulator::CenteredGram() const {
  const Matrix<double> mean = InputMean();
  Matrix<double> gram(hidden_, hidden_);
  for (int64_t i = 0; i < hidden_; ++i)
    for (int64_t j = i; j < hidden_; ++j) gram(i, j) = gram_(i, j) - gram_(i, hidden_) * mean(0, j);
  linalg::SymmetrizeFromUpper(gram.view());
  return gram;
}

Matrix<double> RidgeAccumulator::CenteredCross() const {
  const Matrix<double> mean = DeltaMean();
  Matrix<double> cross(hidden_, hidden_);
  for (int64_t i = 0; i < hidden_; ++i)
    for (int64_t j = 0; j < hidden_; ++j) cross(i, j) = cross_(i, j) - gram_(i, hidden_) * mean(0, j);
  return cross;
}

double RidgeAccumulator::CenteredDeltaSquares() const {
  double squares = delta_squares_;
  for (int64_t j = 0; j < hidden_; ++j)
    squares -= cross_(hidden_, j) * cross_(hidden_, j) / static_cast<double>(tokens_);
  const double rounding = static_cast<double>(tokens_) * std::numeric_limits<double>::epsilon() * delta_squares_;
  return squares > rounding ? squares : 0.0;
}

}  // namespace shiftrt
