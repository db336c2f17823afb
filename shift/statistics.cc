#include "shift/statistics.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <numbers>
#include <utility>

#include "runtime/check.h"
#include "runtime/linalg.h"
#include "runtime/parallel.h"

namespace shiftrt {

namespace {

// Rows widened to float64 at a time: enough for the products to run at full speed, little next to the accumulators.
constexpr int64_t kChunkRows = 512;

struct Products {
  double dot = 0, aa = 0, bb = 0;

  // 1 for a zero row that stays zero: it has not been turned.
  double Cosine() const { return aa == 0 || bb == 0 ? (aa == bb ? 1.0 : 0.0) : dot / std::sqrt(aa * bb); }
};

Products RowProducts(const float* a, const float* b, int64_t n) {
  Products products;
  for (int64_t i = 0; i < n; ++i) {
    const double x = a[i], y = b[i];
    products.dot += x * y;
    products.aa += x * x;
    products.bb += y * y;
  }
  return products;
}

// out(:, 0 .. cols) = rows of `in` as float64, times `scales` where not empty; returns each row's sum of squares, which
// is finite exactly if the row is (squares of float32 cannot overflow float64).
std::vector<double> Widen(const Context& context, MatrixView<const float> in, std::span<const double> scales,
                          MatrixView<double> out) {
  std::vector<double> squares(in.rows, 0.0);
  ParallelFor(context, in.rows, 16, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) {
      double sum = 0;
      const double scale = scales.empty() ? 1.0 : scales[i];
      for (int64_t j = 0; j < in.cols; ++j) {
        const double x = scale * in(i, j);
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

void InfluenceStatistics::Add(int64_t layer, MatrixView<const float> h_in, MatrixView<const float> h_out,
                              std::span<const int64_t> offsets) {
  Check(layer >= 0 && layer < static_cast<int64_t>(sums_.size()), "layer {} of {} layers", layer, sums_.size());
  Check(h_in.rows == h_out.rows && h_in.cols == h_out.cols, "block input is ({}, {}), its output ({}, {})", h_in.rows,
        h_in.cols, h_out.rows, h_out.cols);
  Sums& sums = sums_[layer];
  size_t next_end = 1;
  for (int64_t i = 0; i < h_in.rows; ++i) {
    const Products row = RowProducts(h_in.row(i), h_out.row(i), h_in.cols);
    sums.cosines += row.Cosine();
    sums.dots += row.dot;
    sums.in_squares += row.aa;
    sums.out_squares += row.bb;
    if (next_end >= offsets.size() || i + 1 != offsets[next_end]) continue;
    sums.angles += std::acos(std::clamp(row.Cosine(), -1.0, 1.0)) / std::numbers::pi;
    ++sums.sequences;
    ++next_end;
  }
  sums.tokens += h_in.rows;
}

InfluenceStatistics& InfluenceStatistics::operator+=(const InfluenceStatistics& other) {
  Check(sums_.size() == other.sums_.size(), "statistics of {} layers added to those of {}", other.sums_.size(),
        sums_.size());
  for (size_t i = 0; i < sums_.size(); ++i) {
    sums_[i].cosines += other.sums_[i].cosines;
    sums_[i].dots += other.sums_[i].dots;
    sums_[i].in_squares += other.sums_[i].in_squares;
    sums_[i].out_squares += other.sums_[i].out_squares;
    sums_[i].angles += other.sums_[i].angles;
    sums_[i].tokens += other.sums_[i].tokens;
    sums_[i].sequences += other.sums_[i].sequences;
  }
  return *this;
}

std::vector<double> InfluenceStatistics::Scores() const {
  std::vector<double> scores;
  for (const Sums& sums : sums_) {
    Check(sums.tokens > 0, "block influence of layer {}: no tokens were seen", scores.size());
    scores.push_back(1.0 - sums.cosines / static_cast<double>(sums.tokens));
  }
  return scores;
}

std::vector<double> InfluenceStatistics::FrobeniusScores() const {
  std::vector<double> scores;
  for (const Sums& sums : sums_) {
    Check(sums.tokens > 0, "block influence of layer {}: no tokens were seen", scores.size());
    scores.push_back(1.0 - Products{sums.dots, sums.in_squares, sums.out_squares}.Cosine());
  }
  return scores;
}

std::vector<double> InfluenceStatistics::AngularScores() const {
  std::vector<double> scores;
  for (const Sums& sums : sums_) {
    Check(sums.sequences > 0, "angular distance from layer {}: no sequence was seen", scores.size());
    scores.push_back(sums.angles / static_cast<double>(sums.sequences));
  }
  return scores;
}

RidgeAccumulator::RidgeAccumulator(int64_t hidden)
    : hidden_(hidden),
      gram_(Matrix<double>::Zeros(hidden + 1, hidden + 1)),
      cross_(Matrix<double>::Zeros(hidden + 1, hidden)) {}

RidgeAccumulator RidgeAccumulator::FromSums(Matrix<double> gram, Matrix<double> cross, double delta_squares,
                                            int64_t tokens) {
  Check(gram.rows() == gram.cols() && cross.rows() == gram.rows() && cross.cols() + 1 == cross.rows(),
        "a Gram of ({}, {}) beside cross products of ({}, {})", gram.rows(), gram.cols(), cross.rows(), cross.cols());
  RidgeAccumulator sums(0);
  sums.hidden_ = cross.cols();
  sums.tokens_ = tokens;
  sums.gram_ = std::move(gram);
  sums.cross_ = std::move(cross);
  sums.delta_squares_ = delta_squares;
  return sums;
}

void RidgeAccumulator::Add(const Context& context, MatrixView<const float> h, MatrixView<const float> delta,
                           std::span<const double> weights) {
  Check(h.cols == hidden_ && delta.cols == hidden_ && h.rows == delta.rows,
        "inputs ({}, {}) and updates ({}, {}) for an accumulator of hidden size {}", h.rows, h.cols, delta.rows,
        delta.cols, hidden_);
  Check(weights.empty() || static_cast<int64_t>(weights.size()) == h.rows, "{} weights for {} rows", weights.size(),
        h.rows);
  std::vector<double> roots;
  for (double weight : weights) {
    Check(std::isfinite(weight) && weight >= 0, "a row's weight of {}", weight);
    roots.push_back(std::sqrt(weight));
  }
  const int64_t chunk = std::min(kChunkRows, h.rows);
  const Matrix<double> inputs(chunk, hidden_ + 1), updates(chunk, hidden_);
  for (int64_t first = 0; first < h.rows; first += chunk) {
    const int64_t rows = std::min(chunk, h.rows - first);
    const MatrixView<double> x = inputs.view().Rows(0, rows), y = updates.view().Rows(0, rows);
    const std::span<const double> scales = roots.empty() ? roots : std::span<const double>(roots).subspan(first, rows);
    for (int64_t i = 0; i < rows; ++i) x(i, hidden_) = scales.empty() ? 1.0 : scales[i];
    CheckFinite(Widen(context, h.Rows(first, rows), scales, x), first, "block's input");
    const std::vector<double> squares = Widen(context, delta.Rows(first, rows), scales, y);
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

// C + G [I; 0], and tr((H + D)'W(H + D)) from its three parts.
RidgeAccumulator RidgeAccumulator::OntoOutputs() const {
  RidgeAccumulator out(hidden_);
  out.tokens_ = tokens_;
  out.gram_ = gram_.Clone();
  const Matrix<double> gram = Gram();
  out.delta_squares_ = delta_squares_;
  for (int64_t j = 0; j < hidden_; ++j) out.delta_squares_ += gram(j, j) + 2 * cross_(j, j);
  for (int64_t i = 0; i <= hidden_; ++i)
    for (int64_t j = 0; j < hidden_; ++j) out.cross_(i, j) = cross_(i, j) + gram(i, j);
  return out;
}

RidgeAccumulator RidgeAccumulator::WithoutMeans() const {
  RidgeAccumulator out(hidden_);
  out.tokens_ = tokens_;
  out.delta_squares_ = delta_squares_;
  out.gram_ = gram_.Clone();
  out.cross_ = cross_.Clone();
  for (int64_t j = 0; j < hidden_; ++j) out.gram_(j, hidden_) = out.cross_(hidden_, j) = 0.0;
  return out;
}

Matrix<double> RidgeAccumulator::InputMean() const {
  Matrix<double> mean(1, hidden_);
  for (int64_t j = 0; j < hidden_; ++j) mean(0, j) = gram_(j, hidden_) / weight();
  return mean;
}

Matrix<double> RidgeAccumulator::DeltaMean() const {
  Matrix<double> mean(1, hidden_);
  for (int64_t j = 0; j < hidden_; ++j) mean(0, j) = cross_(hidden_, j) / weight();
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
  for (int64_t j = 0; j < hidden_; ++j) squares -= cross_(hidden_, j) * cross_(hidden_, j) / weight();
  const double rounding = static_cast<double>(tokens_) * std::numeric_limits<double>::epsilon() * delta_squares_;
  return squares > rounding ? squares : 0.0;
}

}  // namespace shiftrt
