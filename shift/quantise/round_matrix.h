// SPDX-License-Identifier: Apache-2.0
// Rounds a weight matrix to blocks of quantised numbers so that its products with the inputs of a text change little.
#pragma once

#include <memory>
#include <span>

#include "include/shiftrt/recipe.h"
#include "runtime/block_types.h"
#include "runtime/context.h"
#include "runtime/tensor.h"

namespace shiftrt {

// The Gram matrix of the inputs of a matrix over the tokens of a text.
class InputGram {
 public:
  explicit InputGram(int64_t inputs) : gram_(Matrix<double>::Zeros(inputs, inputs)) {}
  // Adds the rows of x (tokens, inputs), each divided by its size where sizes are given. Products are in float32, and
  // sums of 512 rows are added up in float64.
  void Add(const Context& context, MatrixView<const float> x, std::span<const float> sizes = {});
  int64_t inputs() const { return gram_.rows(); }
  // The upper triangular V (inputs, inputs) with V V' = Gram + damping of its diagonal by 1%. The Gram matrix is
  // overwritten.
  Matrix<float> TakeRoot(const Context& context);

 private:
  Matrix<double> gram_;
  Matrix<float> part_;  // the sums of some rows; allocated by the first
};

struct RoundedMatrix {
  TensorView tensor;                    // has the type asked for
  std::shared_ptr<const void> storage;  // keeps it alive
  double error = 0, size = 0;           // the sums of |X (W - Q)'|^2 and of |X W'|^2 over the text
};

// Rounds w (outputs, inputs), whose rows are whole blocks of `type`. `root`: of the inputs' Gram matrix.
//
// Rounding::kNearest gives each number the nearest code, with scales for the least sum of squared errors of the
// weights. kImportance weights each error by the mean square of its input. kFeedback minimises |X (W - Q)'|^2 column by
// column: with H = V V', the error e of a row costs |e V|^2, of which column j depends on the columns up to j alone, so
// that each code is the one nearest to w_j + (e_1 V_1j + ... + e_j-1 V_j-1,j) / V_jj. That is GPTQ (Frantar et al.,
// 2022) as Babai's nearest plane algorithm. Scales are chosen for the first such numbers of a block, with weights
// V_jj^2, which is what an error costs there.
//
// Cost: outputs * inputs^2 FLOP with kFeedback, twice for the figures. Throws Error, which begins with `name`, for a
// number that is not finite or that the type cannot hold.
RoundedMatrix RoundMatrix(const Context& context, const char* name, const TensorView& w, BlockType type,
                          MatrixView<const float> root, Rounding rounding);

}  // namespace shiftrt
