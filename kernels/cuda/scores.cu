#include "kernels/cuda/scores.h"
#include "kernels/cuda/warp.cuh"

namespace shiftrt::gpu {

namespace {

struct Best {
  float value;
  int32_t index;
};
SHIFTRT_DEVICE Best Better(const Best& a, const Best& b) {
  return b.value > a.value || (b.value == a.value && b.index < a.index) ? b : a;
}

// A block a token.
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

  static SHIFTRT_DEVICE Best BlockBest(Best best, Shared<float> values, Shared<int32_t> indices) {
    for (int step = kWarpSize / 2; step > 0; step /= 2)
      best = Better(best, {ShuffleXor(best.value, step), ShuffleXor(best.index, step)});
    if (Lane() == 0) {
      values[Warp()] = best.value;
      indices[Warp()] = best.index;
    }
    SyncThreads();
    best = {values[0], indices[0]};
    for (int w = 1; w < kWarps; ++w) best = Better(best, {values[w], indices[w]});
    return best;
  }

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
    best = BlockBest(best, values, indices);
    TokenScore score;
    const bool starts = first == 0;
    if (!starts) score = args.scores[token];
    const float maximum = starts || best.value > score.maximum ? best.value : score.maximum;
    float sum = 0;
    for (int i = Thread(); i < cols; i += kThreads) sum += Exp(logits[i] - maximum);
    sum = BlockSum<kThreads>(sum, sums);
    if (Thread() != 0) return;

    // A chunk of nothing but NaN leaves the maximum at -infinity; its sum is NaN all the same.
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

// A block a row.
struct RowCosinesKernel {
  static constexpr int kThreads = 128, kWarps = kThreads / kWarpSize;
  struct Args {
    const float *a, *b;
    double* cosines;
    int hidden;
  };
  static constexpr int kShared = 3 * SharedBytes<double>(kWarps);
  static SHIFTRT_DEVICE void Run(const Args& args) {
    SharedArena arena;
    const Shared<double> dots = arena.Take<double>(kWarps), squares_a = arena.Take<double>(kWarps),
                         squares_b = arena.Take<double>(kWarps);
    const int64_t row = static_cast<int64_t>(Block().x) * args.hidden;
    double dot = 0, aa = 0, bb = 0;
    for (int i = 8 * Thread(); i < args.hidden; i += 8 * kThreads) {
      float a[8], b[8];
      Load8(args.a + row + i, a);
      Load8(args.b + row + i, b);
      for (int j = 0; j < 8; ++j) {
        const double x = static_cast<double>(a[j]), y = static_cast<double>(b[j]);
        dot += x * y;
        aa += x * x;
        bb += y * y;
      }
    }
    dot = BlockSum<kThreads>(dot, dots);
    aa = BlockSum<kThreads>(aa, squares_a);
    bb = BlockSum<kThreads>(bb, squares_b);
    if (Thread() != 0) return;
    const bool zero = aa == 0 || bb == 0;
    args.cosines[Block().x] = zero ? (aa == bb ? 1.0 : 0.0) : dot / SquareRoot(aa * bb);
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

void RowCosines(Stream stream, const float* a, const float* b, int64_t tokens, int64_t hidden, double* cosines) {
  Require(hidden % 8 == 0, "block influence", "a hidden size that is a multiple of 8", hidden);
  if (tokens == 0) return;
  Launch<RowCosinesKernel>(stream, {.x = static_cast<int>(tokens), .shared_bytes = RowCosinesKernel::kShared},
                           {a, b, cosines, static_cast<int>(hidden)});
}

}  // namespace shiftrt::gpu
