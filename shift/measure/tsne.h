// SPDX-License-Identifier: Apache-2.0
// t-SNE (van der Maaten and Hinton, 2008): points in a plane whose neighbours are those of points in many dimensions.
// Distances between groups mean little; which points are neighbours is what it shows.
#pragma once

#include <cstdint>

#include "runtime/context.h"
#include "runtime/tensor.h"

namespace shiftrt {

struct TsneOptions {
  double perplexity = 30;  // about how many neighbours a point has; at most a third of the points is used
  int iterations = 500;    // steps of gradient descent; early exaggeration ends after a quarter of them
  uint64_t seed = 0;       // the seed of the first positions
};

// The most points that Tsne takes: it is exact, with arrays of all pairs.
constexpr int64_t kTsnePoints = 2000;

// (n, 2) for the rows of `points` (n, d), with mean 0. The result does not depend on the number of threads. Time:
// iterations n^2, and n^2 d once; memory: 24 n^2 bytes. Throws Error for more than kTsnePoints rows, or rows that are
// not finite.
Matrix<double> Tsne(const Context& context, MatrixView<const double> points, const TsneOptions& options = {});

// The similarities p(j | i) (n, n) that t-SNE starts from: in row i a Gaussian about point i, as wide as makes the
// perplexity of the row (2 to its entropy in bits) what is asked for; the diagonal is 0. Where a point has more equal
// neighbours than that at distance 0, these share the row.
Matrix<double> TsneSimilarities(const Context& context, MatrixView<const double> points, double perplexity);

}  // namespace shiftrt
