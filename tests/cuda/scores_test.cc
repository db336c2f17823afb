// SPDX-License-Identifier: Apache-2.0
#include "kernels/cuda/scores.h"

#include "tests/cuda/fixture.h"

namespace shiftrt::gpu {
namespace {

class ScoresOnGpu : public CudaTest {
 protected:
  struct Found {
    std::vector<double> log_probs;
    std::vector<int32_t> best;
  };
  // Passes `logits` (tokens, vocab) to the kernel in chunks of `chunk` columns.
  Found Run(const std::vector<double>& logits, const std::vector<int32_t>& targets, int64_t vocab, int64_t chunk) {
    const auto tokens = static_cast<int64_t>(targets.size());
    const DeviceBuffer<int32_t> wanted(stream_, std::span<const int32_t>(targets), "a test");
    const Output<float> log_probs(stream_, tokens);
    const Output<int32_t> best(stream_, tokens);
    const DeviceBuffer<TokenScore> scores(stream_, tokens, "a test");
    FillBytes(stream_, scores.data(), 0xff, tokens * static_cast<int64_t>(sizeof(TokenScore)));
    for (int64_t first = 0; first < vocab; first += chunk) {
      const int64_t cols = std::min(chunk, vocab - first);
      std::vector<double> part;
      for (int64_t t = 0; t < tokens; ++t)
        for (int64_t j = 0; j < cols; ++j) part.push_back(logits[t * vocab + first + j]);
      const Input<float> columns(stream_, part);
      UpdateScores(stream_, {columns.data(), tokens, cols, first, vocab}, wanted.data(), scores.data(),
                   log_probs.data(), best.data());
    }
    return {log_probs.Values(), best.Raw()};
  }
};

TEST_F(ScoresOnGpu, LogProbabilitiesAgreeWithFloat64) {
  const int64_t tokens = 3, vocab = 1500;
  for (const double scale : {1.0, 30.0, 1000.0}) {
    const auto logits = Input<float>::Normal(stream_, tokens * vocab, 7, scale);
    const std::vector<int32_t> targets = {0, 1499, 700};
    for (const int64_t chunk : {1500, 1024, 333}) {
      const Found found = Run(logits.values, targets, vocab, chunk);
      for (int64_t t = 0; t < tokens; ++t) {
        const double* const row = logits.values.data() + t * vocab;
        const auto at = std::max_element(row, row + vocab);
        double sum = 0;
        for (int64_t j = 0; j < vocab; ++j) sum += std::exp(row[j] - *at);
        const double expected = row[targets[t]] - *at - std::log(sum);
        EXPECT_CLOSE(found.log_probs[t], expected, 2e-6 + 4 * kUnit<float> * (std::abs(expected) + std::abs(*at)), t);
        EXPECT_EQ(found.best[t], at - row);
      }
    }
  }
}

TEST_F(ScoresOnGpu, TheLowestIdWinsATie) {
  std::vector<double> logits(600, -5.0);
  for (const int at : {70, 301, 599}) logits[at] = 2.0;
  for (const int64_t chunk : {600, 300, 7}) EXPECT_EQ(Run(logits, {0}, 600, chunk).best[0], 70);
}

TEST_F(ScoresOnGpu, ANaNMakesANaN) {
  for (const int at : {0, 250, 599}) {
    std::vector<double> logits(600, 1.0);
    logits[at] = NAN;
    for (const int64_t chunk : {600, 200, 41}) EXPECT_TRUE(std::isnan(Run(logits, {3}, 600, chunk).log_probs[0]));
  }
}

}  // namespace
}  // namespace shiftrt::gpu
