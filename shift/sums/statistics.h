// SPDX-License-Identifier: Apache-2.0
// Sums over calibration tokens, from taps. Those of a ridge regression add, so parts of a text combine by +=.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "engine/collector.h"
#include "runtime/context.h"
#include "runtime/tensor.h"

namespace shiftrt {

// The change of direction of the residual stream across a block or a window of blocks: one number per first block;
// lower = less important.
class InfluenceStatistics {
 public:
  explicit InfluenceStatistics(int64_t layers) : sums_(layers) {}
  // The products of each token's stream before the window's first block and after its last, one per token. `offsets`,
  // if given, are those of the batch (engine/decoder.h) and mark the last token of each sequence.
  void Add(int64_t layer, std::span<const RowProducts> tokens, std::span<const int64_t> offsets = {});
  // 1 - mean over tokens of cos(h_in, h_out): block influence (Men et al., ShortGPT, 2024), and what LLM-Streamline
  // (Chen et al., 2024) ranks windows by.
  std::vector<double> Scores() const;
  // 1 - <H_in, H_out>_F / (|H_in| |H_out|), one cosine over all tokens.
  std::vector<double> FrobeniusScores() const;
  // Mean over sequences of acos(cos(h_in, h_out)) / pi of the last token (Gromov et al., 2024).
  std::vector<double> AngularScores() const;

 private:
  struct Sums {
    double cosines = 0, angles = 0;
    RowProducts products;
    int64_t tokens = 0, sequences = 0;
  };
  std::vector<Sums> sums_;
};

// The sums that a ridge regression takes of one site's tokens (docs/dev/method.md): with Haug = [H | 1], H (tokens, n),
// and W the diagonal of the rows' weights (I unless given), G = Haug'W Haug, C = Haug'W D, D (tokens, d), in float64.
// An adapter has n = d. Memory: Bytes(n, d), whatever the number of tokens.
class RidgeSums {
 public:
  // The matrices take no memory until something is added.
  explicit RidgeSums(int64_t hidden) : RidgeSums(hidden, hidden) {}
  RidgeSums(int64_t inputs, int64_t hidden)
      : inputs_(inputs), hidden_(hidden), matrices_{{inputs + 1, inputs + 1}, {inputs + 1, hidden}} {}
  static int64_t Bytes(int64_t inputs, int64_t hidden) { return (inputs + 1) * (inputs + 1 + hidden) * 8; }
  static int64_t Bytes(int64_t hidden) { return Bytes(hidden, hidden); }
  // From what Gram(), Cross(), DeltaSquares() and tokens() gave. Throws Error where the shapes do not fit.
  static RidgeSums FromSums(Matrix<double> gram, Matrix<double> cross, double delta_squares, int64_t tokens);
  // h: the inputs (tokens, inputs), delta: the updates (tokens, hidden). `weights`, if not empty: one per row, not
  // negative. Throws Error naming the row for NaN or infinity.
  void Add(const Context& context, MatrixView<const float> h, MatrixView<const float> delta,
           std::span<const double> weights = {});
  RidgeSums& operator+=(const RidgeSums& other);
  RidgeSums Clone() const;

  // G and C where they are, with their totals. A collector adds to them there.
  RidgeMatrices& matrices() { return matrices_; }
  const RidgeMatrices& matrices() const { return matrices_; }
  // Leaves the memory of a GPU.
  void ToHost();

  int64_t inputs() const { return inputs_; }                  // n
  int64_t hidden() const { return hidden_; }                  // d
  int64_t tokens() const { return matrices_.totals.tokens; }  // those of a weight above 0
  // Where the matrices are a GPU's, these calls copy vectors to the host, and not the matrices.
  double weight() const;                     // sum of the rows' weights; the tokens where none were given
  Matrix<double> InputSums() const;          // (1, n): column sums of W H
  Matrix<double> DeltaSums() const;          // (1, d): column sums of W D
  std::vector<double> InputSquares() const;  // n: the diagonal of H'W H
  double DeltaSquares() const { return matrices_.totals.delta_squares; }  // tr(D'W D)
  // The following have the matrices in host memory, to which a GPU's are copied.
  // G (n + 1, n + 1), symmetric, both triangles; last row and column: column sums of W H, and weight().
  Matrix<double> Gram() const;
  // As it is kept: the upper triangle is valid.
  MatrixView<const double> UpperGram() const { return matrices_.gram.host().view(); }
  const Matrix<double>& Cross() const { return matrices_.cross.host(); }  // C (n + 1, d); last row: column sums of W D

  // The same tokens with H + D in place of D: what follows the block is regressed on, not the block's update. n = d.
  RidgeSums OntoOutputs() const;

  // The same second moments about zero means, as if every token came with its mirror image (-h, -d): a fit with a free
  // bias on these sums is the fit without any bias on the tokens.
  RidgeSums WithoutMeans() const;

  // The same tokens with `count` of the inputs alone, from `first` on.
  RidgeSums OfInputs(int64_t first, int64_t count) const;

  // Over the tokens; second moments about them are in shift/sums/moments.h.
  Matrix<double> InputMean() const;     // (1, n)
  Matrix<double> DeltaMean() const;     // (1, d)
  double CenteredDeltaSquares() const;  // about the mean; 0 where D varies by no more than rounding

 private:
  int64_t inputs_ = 0, hidden_ = 0;
  RidgeMatrices matrices_;
};

}  // namespace shiftrt
