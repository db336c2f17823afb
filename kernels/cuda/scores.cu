// SPDX-License-Identifier: Apache-2.0
#include "kernels/cuda/scores.h"
#include "kernels/cuda/warp.cuh"

namespace shiftrt::gpu {

namespace {

// There is one block per token.
struct UpdateScoresKernel {
  static constexpr int kThreads = 256, kWarps = kThreads / kWarpSize;
  struct Args {
    LogitChunk chunk;
    const int32_t* targets;
    TokenScore* scores;
    float* log_probs;
    int32_t* argmax;
  };
  static constexpr int kShared = SharedBytes<float>(kWarps) * 2 + SharedBytes<int32_t>(kWarps);

  static SHIFTRT_DEVICE void Run(const Args& args) {
    SharedArena arena;
    const Shared<float> sums = arena.Take<float>(kWarps), values = arena.Take<float>(kWarps);
    const Shared<int32_t> indices = arena.Take<int32_t>(kWarps);
    const LogitChunk& chunk = args.chunk;
    const int64_t token = Block().x;
    const int first = static_cast<int>(chunk.first), cols = static_cast<int>(chunk.cols);
    const float* const logits = args.chunk.logits + token * chunk.cols;

    Best best{-Infinity(), first};
    for (int i = Thread(); i < cols; i += kThreads) best = Better(best, {logits[i], first + i});
    best = BlockBest<kThreads>(best, values, indices);
    TokenScore score;
    const bool starts = first == 0;
    if (!starts) score = args.scores[token];
    const float maximum = starts || best.value > score.maximum ? best.value : score.maximum;
    float sum = 0;
    for (int i = Thread(); i < cols; i += kThreads) sum += Exp(logits[i] - maximum);
    sum = BlockSum<kThreads>(sum, sums);
    if (Thread() != 0) return;

    // A chunk with only NaN leaves the maximum at -infinity, but its sum is NaN.
    if (!starts) score.sum *= static_cast<double>(Exp(score.maximum - maximum));
    if (starts || best.value > score.maximum) score.best = best.index;
    score.maximum = maximum;
    score.sum += static_cast<double>(sum);
    const int target = args.targets[token] - first;
    if (target >= 0 && target < cols) score.target = logits[target];
    args.scores[token] = score;
    if (chunk.first + chunk.cols < chunk.vocab) return;
    args.log_probs[token] =
        static_cast<float>(static_cast<double>(score.target) - static_cast<double>(score.maximum) - Log(score.sum));
    args.argmax[token] = score.best;
  }
};

}  // namespace

void UpdateScores(Stream stream, const LogitChunk& chunk, const int32_t* targets, TokenScore* scores, float* log_probs,
                  int32_t* argmax) {
  Require(chunk.cols > 0 && chunk.first + chunk.cols <= chunk.vocab, "token scores",
          "a chunk inside the vocabulary, not one that ends at", chunk.first + chunk.cols);
  if (chunk.tokens == 0) return;
  Launch<UpdateScoresKernel>(stream, {.x = static_cast<int>(chunk.tokens), .shared_bytes = UpdateScoresKernel::kShared},
                             {chunk, targets, scores, log_probs, argmax});
}

}  // namespace shiftrt::gpu
