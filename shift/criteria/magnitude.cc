#include <cmath>

#include "kernels/widen.h"
#include "runtime/parallel.h"
#include "shift/criteria/criteria.h"

namespace shiftrt::criteria {

namespace {

double SumOfPowers(const TensorView& tensor, bool squared) {
  double sum = 0;
  const int64_t rows = tensor.rows(), cols = tensor.elements() / rows;
  const auto row_bytes = cols * static_cast<int64_t>(SizeOf(tensor.dtype));
  for (int64_t i = 0; i < rows; ++i) {
    const auto* row = static_cast<const std::byte*>(tensor.data) + i * row_bytes;
    for (float w : Widened({row, tensor.dtype, {cols}}))
      sum += squared ? static_cast<double>(w) * w : std::abs(static_cast<double>(w));
  }
  return sum;
}

std::vector<double> Magnitude(const CriterionInput& input, Progress& progress, bool squared) {
  const auto& blocks = input.weights->blocks;
  const auto layers = static_cast<int64_t>(blocks.size());
  std::vector<double> scores(layers);
  progress.Begin("selecting layers", layers);
  ParallelFor(input.context, layers, 1, [&](int64_t begin, int64_t end) {
    for (int64_t l = begin; l < end; ++l) {
      const BlockWeights& b = blocks[l];
      for (const TensorView* w : {&b.q, &b.k, &b.v, &b.o, &b.gate, &b.up, &b.down, &b.input_norm, &b.post_norm})
        scores[l] += SumOfPowers(*w, squared);
    }
  });
  progress.Advance(layers);
  progress.End();
  return scores;
}

}  // namespace

std::vector<double> MagnitudeL1(const CriterionInput& input, Progress& progress) {
  return Magnitude(input, progress, false);
}
std::vector<double> MagnitudeL2(const CriterionInput& input, Progress& progress) {
  return Magnitude(input, progress, true);
}

}  // namespace shiftrt::criteria
