// SPDX-License-Identifier: Apache-2.0
#include "shift/sums/statistics.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <numbers>
#include <utility>

#include "runtime/check.h"
#include "runtime/linalg/linalg.h"

namespace shiftrt {

void InfluenceStatistics::Add(int64_t layer, std::span<const RowProducts> tokens, std::span<const int64_t> offsets) {
  Check(layer >= 0 && layer < std::ssize(sums_), "layer {} of {} layers", layer, sums_.size());
  Sums& sums = sums_[layer];
  size_t next_end = 1;
  for (int64_t t = 0; t < std::ssize(tokens); ++t) {
    const double cosine = tokens[t].Cosine();
    sums.cosines += cosine;
    sums.products += tokens[t];
    if (next_end >= offsets.size() || t + 1 != offsets[next_end]) continue;
    sums.angles += std::acos(std::clamp(cosine, -1.0, 1.0)) / std::numbers::pi;
    ++sums.sequences;
    ++next_end;
  }
  sums.tokens += std::ssize(tokens);
}

InfluenceStatistics& InfluenceStatistics::operator+=(const InfluenceStatistics& other) {
  Check(sums_.size() == other.sums_.size(), "statistics of {} layers added to those of {}", other.sums_.size(),
        sums_.size());
  for (size_t i = 0; i < sums_.size(); ++i) {
    sums_[i].cosines += other.sums_[i].cosines;
    sums_[i].products += other.sums_[i].products;
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
    scores.push_back(1.0 - sums.products.Cosine());
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

RidgeSums::RidgeSums(int64_t inputs, int64_t hidden, bool here) : inputs_(inputs), hidden_(hidden) {
  if (!here) return;
  gram_ = Matrix<double>::Zeros(inputs + 1, inputs + 1);
  cross_ = Matrix<double>::Zeros(inputs + 1, hidden);
}

RidgeSums RidgeSums::FromSums(Matrix<double> gram, Matrix<double> cross, double delta_squares, int64_t tokens) {
  Check(gram.rows() == gram.cols() && gram.rows() >= 1 && cross.rows() == gram.rows(),
        "a Gram of ({}, {}) beside cross products of ({}, {})", gram.rows(), gram.cols(), cross.rows(), cross.cols());
  RidgeSums sums(0);
  sums.inputs_ = cross.rows() - 1;
  sums.hidden_ = cross.cols();
  sums.tokens_ = tokens;
  sums.gram_ = std::move(gram);
  sums.cross_ = std::move(cross);
  sums.delta_squares_ = delta_squares;
  return sums;
}

void RidgeSums::Add(const Context& context, MatrixView<const float> h, MatrixView<const float> delta,
                    std::span<const double> weights) {
  Check(h.cols == inputs_ && delta.cols == hidden_ && h.rows == delta.rows,
        "inputs ({}, {}) and updates ({}, {}) for sums of {} inputs and {} outputs", h.rows, h.cols, delta.rows,
        delta.cols, inputs_, hidden_);
  std::vector<RowProducts> products(h.rows), inputs(h.rows);
  ComputeRowProducts(context, h, h, inputs);
  ComputeRowProducts(context, delta, delta, products);
  for (size_t t = 0; t < products.size(); ++t) products[t].aa = inputs[t].aa;
  const double squares = CheckedDeltaSquares(products, weights);
  AddToRidgeSums(context, h, delta, weights, matrices());
  SetTotals(tokens_ + h.rows, delta_squares_ + squares);
}

void RidgeSums::SetTotals(int64_t tokens, double delta_squares) {
  tokens_ = tokens;
  delta_squares_ = delta_squares;
}

double CheckedDeltaSquares(std::span<const RowProducts> inputs_and_deltas, std::span<const double> weights) {
  Check(weights.empty() || weights.size() == inputs_and_deltas.size(), "{} weights for {} rows", weights.size(),
        inputs_and_deltas.size());
  double sum = 0;
  for (size_t t = 0; t < inputs_and_deltas.size(); ++t) {
    const RowProducts& row = inputs_and_deltas[t];
    Check(std::isfinite(row.aa), "row {} of the block's input is not finite", t);
    Check(std::isfinite(row.bb), "row {} of the block's update is not finite", t);
    sum += weights.empty() ? row.bb : weights[t] * row.bb;
  }
  return sum;
}

RidgeSums& RidgeSums::operator+=(const RidgeSums& other) {
  Check(inputs_ == other.inputs_ && hidden_ == other.hidden_,
        "sums of {} inputs and {} outputs added to those of {} and {}", other.inputs_, other.hidden_, inputs_, hidden_);
  for (int64_t i = 0; i < gram_.size(); ++i) gram_.data()[i] += other.gram_.data()[i];
  for (int64_t i = 0; i < cross_.size(); ++i) cross_.data()[i] += other.cross_.data()[i];
  delta_squares_ += other.delta_squares_;
  tokens_ += other.tokens_;
  return *this;
}

RidgeSums RidgeSums::Clone() const { return FromSums(gram_.Clone(), cross_.Clone(), delta_squares_, tokens_); }

Matrix<double> RidgeSums::Gram() const {
  Matrix<double> gram = gram_.Clone();
  linalg::SymmetrizeFromUpper(gram.view());
  return gram;
}

// C + G [I; 0], and tr((H + D)'W(H + D)) from its three parts.
RidgeSums RidgeSums::OntoOutputs() const {
  Check(inputs_ == hidden_, "{} inputs are not of the kind of the {} outputs", inputs_, hidden_);
  RidgeSums out(hidden_);
  out.tokens_ = tokens_;
  out.gram_ = gram_.Clone();
  const Matrix<double> gram = Gram();
  out.delta_squares_ = delta_squares_;
  for (int64_t j = 0; j < hidden_; ++j) out.delta_squares_ += gram(j, j) + 2 * cross_(j, j);
  for (int64_t i = 0; i <= hidden_; ++i)
    for (int64_t j = 0; j < hidden_; ++j) out.cross_(i, j) = cross_(i, j) + gram(i, j);
  return out;
}

RidgeSums RidgeSums::WithoutMeans() const {
  RidgeSums out = Clone();
  for (int64_t j = 0; j < inputs_; ++j) out.gram_(j, inputs_) = 0.0;
  for (int64_t j = 0; j < hidden_; ++j) out.cross_(inputs_, j) = 0.0;
  return out;
}

RidgeSums RidgeSums::OfInputs(int64_t first, int64_t count) const {
  Check(first >= 0 && count >= 0 && first + count <= inputs_, "inputs {} to {} of {}", first, first + count, inputs_);
  RidgeSums out(count, hidden_);
  const auto from = [&](int64_t i) { return i < count ? first + i : inputs_; };
  for (int64_t i = 0; i <= count; ++i) {
    for (int64_t j = i; j <= count; ++j) out.gram_(i, j) = gram_(from(i), from(j));
    std::copy_n(cross_.row(from(i)), hidden_, out.cross_.row(i));
  }
  out.SetTotals(tokens_, delta_squares_);
  return out;
}

Matrix<double> RidgeSums::InputMean() const {
  Matrix<double> mean(1, inputs_);
  for (int64_t j = 0; j < inputs_; ++j) mean(0, j) = gram_(j, inputs_) / weight();
  return mean;
}

Matrix<double> RidgeSums::DeltaMean() const {
  Matrix<double> mean(1, hidden_);
  for (int64_t j = 0; j < hidden_; ++j) mean(0, j) = cross_(inputs_, j) / weight();
  return mean;
}

double RidgeSums::CenteredDeltaSquares() const {
  double squares = delta_squares_;
  for (int64_t j = 0; j < hidden_; ++j) squares -= cross_(inputs_, j) * cross_(inputs_, j) / weight();
  const double rounding = static_cast<double>(tokens_) * std::numeric_limits<double>::epsilon() * delta_squares_;
  return squares > rounding ? squares : 0.0;
}

}  // namespace shiftrt
