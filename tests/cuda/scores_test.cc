// SPDX-License-Identifier: Apache-2.0
#include "kernels/cuda/scores.h"

#include "tests/cuda/fixture.h"
#include "tests/kernels/score_cases.h"

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

TEST_F(ScoresOnGpu, AgreeWithFloat64) {
  for (const test::ScoreCase& c : test::ScoreCases()) {
    for (const int64_t chunk : {c.vocab, int64_t{1024}, int64_t{333}, int64_t{41}}) {
      const Found found = Run(c.logits, c.targets, c.vocab, chunk);
      for (int64_t t = 0; t < c.tokens(); ++t) c.Expect(t, found.log_probs[t], found.best[t]);
    }
  }
}

}  // namespace
}  // namespace shiftrt::gpu
