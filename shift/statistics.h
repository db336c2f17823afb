// Sums over calibration tokens, from taps. They add, so chunks and processes combine by +=.
#pragma once

#include <cstdint>
#include <vector>

#include "runtime/context.h"
#include "runtime/tensor.h"

namespace shiftrt {

// Block influence (Men et al., ShortGPT 2024), token form: 1 - mean cos(h_in, h_out). Dot products in float64.
class InfluenceStatistics {
 public:
  explicit InfluenceStatistics(int64_t layers) : cosine_sum_(layers, 0.0), tokens_(layers, 0) {}
  // Rows of h_in and h_out (tokens, hidden) of one block.
  void Add(int64_t layer, MatrixView<const float> h_in, MatrixView<const float> h_out);
  InfluenceStatistics& operator+=(const InfluenceStatistics& other);
  // A score a layer, lower = less important.
  std::vector<double> Scores() const;

 private:
  std::vector<double> cosine_sum_;
  std::vector<int64_t> tokens_;
};

// Ridge accumulators of one site (docs/method.md): with Haug = [H | 1], G = Haug'Haug, C = Haug'D, in float64.
// Memory: (2 d^2 + 3 d) x 8 bytes, whatever the number of tokens.
class RidgeAccumulator {
 public:
  explicit RidgeAccumulator(int64_t hidden);
  // h: the block's inputs, delta: its updates, both (tokens, hidden). Throws Error naming the row for NaN or infinity.
  void Add(const Context& context, MatrixView<const float> h, MatrixView<const float> delta);
  RidgeAccumulator& operator+=(const RidgeAccumulator& other);

  int64_t hidden() const { return hidden_; }
  int64_t tokens() const { return tokens_; }
  // G (d + 1, d + 1), symmetric, both triangles; last row and column: column sums of H, and N.
  Matrix<double> Gram() const;
  const Matrix<double>& Cross() const { return cross_; }  // C (d + 1, d); last row: column sums of D
  double DeltaSquares() const { return delta_squares_; }  // sum of squares of D

  // About the means over the tokens, which is what a free bias leaves to explain.
  Matrix<double> InputMean() const;      // (1, d)
  Matrix<double> DeltaMean() const;      // (1, d)
  Matrix<double> CenteredGram() const;   // (d, d), both triangles
  Matrix<double> CenteredCross() const;  // (d, d)
  double CenteredDeltaSquares() const;   // 0 where D varies by no more than rounding

 private:
  int64_t hidden_ = 0;
  int64_t tokens_ = 0;
  Matrix<double> gram_;  // upper triangle
  Matrix<double> cross_;
  double delta_squares_ = 0;
};

}  // namespace shiftrt
