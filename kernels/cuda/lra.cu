#include "kernels/cuda/lra.h"
#include "kernels/cuda/warp.cuh"

namespace shiftrt::gpu {

namespace {

constexpr int kSlice = 64;  // columns of the stream a block owns

// Each block multiplies its slice of the stream by its columns of P'; once every block's share of h P is in `scratch`,
// it adds (h P) Q to the same slice. Its rows of Q' arrive in shared memory while the grid waits.
struct LowRankLraKernel {
  static constexpr int kThreads = 128, kWarps = kThreads / kWarpSize;
  struct Args {
    LowRankLra lra;
    float* scratch;  // (blocks, rank)
    float* h;
  };

  static constexpr int SharedFor(int rank) { return SharedBytes<float>(kSlice * rank) + SharedBytes<float>(rank); }

  static SHIFTRT_DEVICE void Run(const Args& args) {
    const int hidden = static_cast<int>(args.lra.hidden), rank = static_cast<int>(args.lra.rank);
    const int first = Block().x * kSlice, count = hidden - first < kSlice ? hidden - first : kSlice;
    SharedArena arena;
    const Shared<float> q = arena.Take<float>(kSlice * rank), inner = arena.Take<float>(rank);
    for (int i = 4 * Thread(); i < count * rank; i += 4 * kThreads)
      CopyAsync16(q + i, args.lra.q + static_cast<int64_t>(first) * rank + i, true);
    CopyAsyncCommit();

    const int col = 2 * Lane();
    const float h0 = col < count ? args.h[first + col] : 0.0f, h1 = col < count ? args.h[first + col + 1] : 0.0f;
    for (int r = Warp(); r < rank; r += kWarps) {
      const float* const p = args.lra.p + static_cast<int64_t>(r) * hidden + first + col;
      const float share = WarpSum(col < count ? h0 * p[0] + h1 * p[1] : 0.0f);
      if (Lane() == 0) args.scratch[Block().x * rank + r] = share;
    }
    SyncGrid();
    for (int r = Thread(); r < rank; r += kThreads) {
      float sum = 0;
      for (int b = 0; b < GridBlocks().x; ++b) sum += args.scratch[b * rank + r];
      inner[r] = sum;
    }
    CopyAsyncWait<0>();
    SyncThreads();
    for (int c = Warp(); c < count; c += kWarps) {
      float dot = 0;
      for (int r = Lane(); r < rank; r += kWarpSize) dot += inner[r] * q[c * rank + r];
      dot = WarpSum(dot);
      if (Lane() == 0) args.h[first + c] += dot + args.lra.bias[first + c];
    }
  }
};

}  // namespace

int64_t LowRankLraScratch(const LowRankLra& lra) { return Blocks(lra.hidden, kSlice) * lra.rank; }

void ApplyLowRankLra(Stream stream, const LowRankLra& lra, float* scratch, float* h) {
  Require(lra.hidden % 8 == 0, "low-rank adapter", "a hidden size that is a multiple of 8", lra.hidden);
  Require(lra.rank % 8 == 0 && lra.rank > 0 && lra.rank <= kMaxFusedRank, "low-rank adapter",
          "a rank that is a multiple of 8, at most 256", lra.rank);
  Launch<LowRankLraKernel>(stream,
                           {.x = Blocks(lra.hidden, kSlice),
                            .shared_bytes = LowRankLraKernel::SharedFor(static_cast<int>(lra.rank)),
                            .cooperative = true},
                           {lra, scratch, h});
}

}  // namespace shiftrt::gpu
