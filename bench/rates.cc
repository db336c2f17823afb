// SPDX-License-Identifier: Apache-2.0
#include "bench/rates.h"

#include <algorithm>
#include <chrono>

#include "bench/probe.h"
#include "kernels/matmul.h"
#include "runtime/random.h"
#include "runtime/stopwatch.h"
#include "shift/sums/statistics.h"

namespace shiftrt {

namespace {

constexpr int64_t kTokens = 512;
constexpr double kSecondsEach = 0.4, kMostSecondsEach = 2;
constexpr int kRuns = 6;

// FLOP per second of the fastest run. The first run warms up. Another program may stop a run for longer than
// kSecondsEach, so that short runs are repeated kRuns times at least.
template <typename Work>
double BestRate(double flops, const Work& work) {
  using Clock = std::chrono::steady_clock;
  const auto begin = Clock::now();
  double best = 0;
  const auto enough = [&](int runs) {
    const double seconds = SecondsSince(begin);
    return seconds >= kMostSecondsEach || (seconds >= kSecondsEach && runs >= kRuns);
  };
  for (int runs = 0; runs < 2 || !enough(runs); ++runs) {
    const auto start = Clock::now();
    work();
    if (runs > 0) best = std::max(best, flops / SecondsSince(start));
  }
  return best;
}

Matrix<float> RandomMatrix(int64_t rows, int64_t cols, Random& random) {
  Matrix<float> matrix(rows, cols);
  for (float& value : matrix.span()) value = static_cast<float>(2 * random.Uniform() - 1);
  return matrix;
}

double ProductRate(const Context& context, DType weights, int64_t inputs, int64_t outputs) {
  Random random(1);
  const Matrix<float> x = RandomMatrix(kTokens, inputs, random);
  Matrix<float> w = RandomMatrix(outputs, inputs, random), y(kTokens, outputs);
  // The upper half of a float32 number is a bfloat16 number.
  auto* const halves = reinterpret_cast<uint16_t*>(w.data());
  if (weights == DType::kBFloat16)
    for (int64_t i = 0; i < w.size(); ++i) halves[i] = halves[2 * i + 1];
  const TensorView view = {w.data(), weights, {outputs, inputs}};
  return BestRate(2.0 * kTokens * static_cast<double>(inputs) * static_cast<double>(outputs),
                  [&] { MatMul(context, x.view(), view, {}, false, y.view()); });
}

double SumsRate(const Context& context, int64_t hidden) {
  Random random(2);
  const Matrix<float> h = RandomMatrix(kTokens, hidden, random), delta = RandomMatrix(kTokens, hidden, random);
  RidgeSums sums(hidden);
  return BestRate(3.0 * kTokens * static_cast<double>(hidden) * static_cast<double>(hidden),
                  [&] { sums.Add(context, h.view(), delta.view()); });
}

}  // namespace

Rates MeasureRates(const Context& context, const ModelConfig& config, DType weights) {
  const int64_t inputs = std::min<int64_t>(config.hidden, 2048), outputs = std::min<int64_t>(config.intermediate, 4096);
  const DType type = weights == DType::kFloat32 ? DType::kFloat32 : DType::kBFloat16;
  return {ProductRate(context, type, inputs, outputs), SumsRate(context, std::min<int64_t>(config.hidden, 1024)),
          MeasureReadBandwidth(context)};
}

}  // namespace shiftrt
