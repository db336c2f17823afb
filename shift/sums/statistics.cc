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

RidgeSums RidgeSums::FromSums(Matrix<double> gram, Matrix<double> cross, double delta_squares, int64_t tokens) {
  Check(gram.rows() == gram.cols() && gram.rows() >= 1 && cross.rows() == gram.rows(),
        "a Gram of ({}, {}) with cross products of ({}, {})", gram.rows(), gram.cols(), cross.rows(), cross.cols());
  RidgeSums sums(cross.rows() - 1, cross.cols());
  sums.matrices_ = {std::move(gram), std::move(cross), {tokens, delta_squares, {}}};
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
  AddToRidgeSums(context, h, delta, weights, matrices_.ToWrite());
  matrices_.totals.tokens += CountedRows(h.rows, weights);
  matrices_.totals.delta_squares += squares;
}

RidgeSums& RidgeSums::operator+=(const RidgeSums& other) {
  Check(inputs_ == other.inputs_ && hidden_ == other.hidden_,
        "sums of {} inputs and {} outputs added to those of {} and {}", other.inputs_, other.hidden_, inputs_, hidden_);
  const auto add = [](const Matrix<double>& from, const Matrix<double>& to) {
    for (int64_t i = 0; i < to.size(); ++i) to.data()[i] += from.data()[i];
  };
  add(other.matrices_.gram.host(), matrices_.gram.ToWrite());
  add(other.matrices_.cross.host(), matrices_.cross.ToWrite());
  matrices_.totals.delta_squares += other.DeltaSquares();
  matrices_.totals.tokens += other.tokens();
  return *this;
}

RidgeSums RidgeSums::Clone() const {
  RidgeSums out(inputs_, hidden_);
  out.matrices_.gram = matrices_.gram.Clone();
  out.matrices_.cross = matrices_.cross.Clone();
  out.matrices_.totals = matrices_.totals;
  return out;
}

void RidgeSums::ToHost() {
  matrices_.gram.ToHost();
  matrices_.cross.ToHost();
}

Matrix<double> RidgeSums::Gram() const {
  Matrix<double> gram = matrices_.gram.host().Clone();
  linalg::SymmetrizeFromUpper(gram.view());
  return gram;
}

// C + G [I; 0], and tr((H + D)'W(H + D)) from its three parts.
RidgeSums RidgeSums::OntoOutputs() const {
  Check(inputs_ == hidden_, "{} inputs are not of the kind of the {} outputs", inputs_, hidden_);
  Matrix<double> gram = Gram(), cross = Cross().Clone();
  double squares = DeltaSquares();
  for (int64_t j = 0; j < hidden_; ++j) squares += gram(j, j) + 2 * cross(j, j);
  for (int64_t i = 0; i <= hidden_; ++i)
    for (int64_t j = 0; j < hidden_; ++j) cross(i, j) += gram(i, j);
  return FromSums(std::move(gram), std::move(cross), squares, tokens());
}

RidgeSums RidgeSums::WithoutMeans() const {
  RidgeSums out = Clone();
  const RidgeSumsView sums = out.matrices_.ToWrite();
  for (int64_t j = 0; j < inputs_; ++j) sums.gram(j, inputs_) = 0.0;
  for (int64_t j = 0; j < hidden_; ++j) sums.cross(inputs_, j) = 0.0;
  return out;
}

RidgeSums RidgeSums::OfInputs(int64_t first, int64_t count) const {
  Check(first >= 0 && count >= 0 && first + count <= inputs_, "inputs {} to {} of {}", first, first + count, inputs_);
  RidgeSums out(count, hidden_);
  const RidgeSumsView sums = out.matrices_.ToWrite();
  const MatrixView<const double> gram = UpperGram();
  const auto from = [&](int64_t i) { return i < count ? first + i : inputs_; };
  for (int64_t i = 0; i <= count; ++i) {
    for (int64_t j = i; j <= count; ++j) sums.gram(i, j) = gram(from(i), from(j));
    std::copy_n(Cross().row(from(i)), hidden_, sums.cross.row(i));
  }
  out.matrices_.totals = matrices_.totals;
  return out;
}

namespace {

Matrix<double> AsRow(const std::vector<double>& values) {
  Matrix<double> row(1, std::ssize(values));
  std::copy(values.begin(), values.end(), row.data());
  return row;
}

Matrix<double> Over(Matrix<double> row, double weight) {
  for (double& x : row.span()) x /= weight;
  return row;
}

}  // namespace

double RidgeSums::weight() const { return matrices_.gram.Elements(inputs_ * (inputs_ + 2), 1, 1)[0]; }

Matrix<double> RidgeSums::InputSums() const { return AsRow(matrices_.gram.Elements(inputs_, inputs_ + 1, inputs_)); }

Matrix<double> RidgeSums::DeltaSums() const { return AsRow(matrices_.cross.Elements(inputs_ * hidden_, 1, hidden_)); }

std::vector<double> RidgeSums::InputSquares() const { return matrices_.gram.Elements(0, inputs_ + 2, inputs_); }

Matrix<double> RidgeSums::InputMean() const { return Over(InputSums(), weight()); }

Matrix<double> RidgeSums::DeltaMean() const { return Over(DeltaSums(), weight()); }

double RidgeSums::CenteredDeltaSquares() const {
  const Matrix<double> sums = DeltaSums();
  const double weight = this->weight();
  double squares = DeltaSquares();
  for (const double sum : sums.span()) squares -= sum * sum / weight;
  const auto terms = static_cast<double>(std::max(tokens(), hidden()));
  const double rounding = terms * std::numeric_limits<double>::epsilon() * DeltaSquares();
  return squares > rounding ? squares : 0.0;
}

}  // namespace shiftrt
