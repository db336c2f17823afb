#include "eval/scorer.h"

#include <algorithm>
#include <cmath>

#include "runtime/check.h"

namespace shiftrt {

namespace {

constexpr int64_t kHeadRows = 512;  // rows of the stream copied together for the head at once

}  // namespace

std::vector<Score> ScoreBatch(Decoder& decoder, const PackedBatch& packed, MatrixView<const float> stream) {
  const int64_t pairs = std::ssize(packed.rows);
  std::vector<float> log_probs(pairs);
  std::vector<int32_t> likeliest(pairs);
  Matrix<float> wanted(std::min(kHeadRows, pairs), stream.cols);
  for (int64_t first = 0; first < pairs; first += kHeadRows) {
    const int64_t count = std::min(kHeadRows, pairs - first);
    for (int64_t i = 0; i < count; ++i) std::copy_n(stream.row(packed.rows[first + i]), stream.cols, wanted.row(i));
    const auto targets = std::span(packed.targets).subspan(first, count);
    const auto some =
        decoder.LogProbs(wanted.view().Rows(0, count), targets, std::span(likeliest).subspan(first, count));
    std::copy(some.begin(), some.end(), log_probs.begin() + first);
  }
  std::vector<Score> scores;
  for (const PackedBatch::Member& member : packed.members) {
    Score score;
    for (const int64_t pair : member.pairs) {
      score.log_likelihood += log_probs[pair];
      score.greedy &= likeliest[pair] == packed.targets[pair];
    }
    Check(std::isfinite(score.log_likelihood), "a log-likelihood is not finite: the weights hold bad values");
    scores.push_back(score);
  }
  return scores;
}

}  // namespace shiftrt
