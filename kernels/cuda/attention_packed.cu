// SPDX-License-Identifier: Apache-2.0
// Attention of whole sequences wherever attention_warpgroup.cu does not compute it, and the choice between the two.
// Follows FlashAttention-2 (Dao 2023). A block holds some queries of one head and loops over tiles of keys and values.
// The next tile of keys is copied while values are multiplied, and the other way round. Scores never leave the
// registers.
#include "kernels/cuda/attention_common.h"
#include "kernels/cuda/tiles.h"
#include "kernels/cuda/warp.cuh"

namespace shiftrt::gpu {

namespace {

// kLimited: with a window, a soft cap, or both. It is a separate kernel, because the plain one has no registers for
// them.
template <typename T, int kHeadDim, bool kLimited>
struct WarpsKernel {
  static constexpr int kThreads = 128, kWarps = kThreads / kWarpSize;
  // The number of tiles of 16 queries per warp. Keys and values that a warp loads serve all its tiles, so with two
  // tiles the products are no longer bound by shared memory. With a head_dim of 256, there are not enough registers for
  // two.
  static constexpr int kRowTiles = kHeadDim <= 128 ? 2 : 1;
  static constexpr int kWarpQueries = 16 * kRowTiles, kQueries = kWarpQueries * kWarps;
  static constexpr int kKeys = kHeadDim == 128 ? 48 : 64;  // with a head_dim of 128, 64 do not fit into the registers
  static constexpr int kStride = kHeadDim + 8;             // 16 bytes of padding avoid bank conflicts of ldmatrix
  static constexpr int kScoreTiles = kKeys / 8, kValueTiles = kHeadDim / 8;
  struct Args {
    const T *q, *keys, *values;
    const PackedSequence* sequences;
    T* out;
    float* log_sums;  // may be null
    int heads, kv_heads;
    int window;  // 0: none
    bool capped;
    ScoreScales scales;
    const float* sinks;
  };
  static constexpr int kShared = SharedBytes<T>(kQueries * kStride) + 2 * SharedBytes<T>(kKeys * kStride);
  static_assert(kShared <= kMaxSharedBytes);

  struct Tiles {
    Shared<T> q, keys, values;
  };
  // One lane's part of the state of its warp's queries: rows lane / 4 and lane / 4 + 8 of every tile of 16.
  struct State {
    float maximum[kRowTiles][2], sum[kRowTiles][2], out[kRowTiles][kValueTiles][4];
  };
  using WarpScores = float[kRowTiles][kScoreTiles][4];

  // Copies rows first .. first + kRows - 1 of a (rows, heads, head_dim) array, and zeros for rows from `limit` on.
  template <int kRows>
  static SHIFTRT_DEVICE void CopyRows(Shared<T> to, const T* from, int row_stride, int first, int limit) {
    constexpr int kPieces = kHeadDim / 8;
#pragma unroll 1  // unrolling would take registers that the products need
    for (int i = Thread(); i < kRows * kPieces; i += kThreads) {
      const int row = i / kPieces, piece = 8 * (i % kPieces);
      CopyAsync16(to + row * kStride + piece, from + static_cast<int64_t>(first + row) * row_stride + piece,
                  first + row < limit);
    }
    CopyAsyncCommit();
  }

  // Waits for the copies of this thread and for all threads.
  static SHIFTRT_DEVICE void Arrive() {
    CopyAsyncWait<0>();
    SyncThreads();
  }

  // The scores (queries x kKeys) of this warp, unscaled.
  static SHIFTRT_DEVICE void Scores(Shared<T> q, Shared<T> keys, WarpScores& scores) {
#pragma unroll
    for (int m = 0; m < kRowTiles; ++m)
#pragma unroll
      for (int n = 0; n < kScoreTiles; ++n)
        for (int r = 0; r < 4; ++r) scores[m][n][r] = 0;
#pragma unroll
    for (int k = 0; k < kHeadDim; k += 16) {
      uint32_t a[kRowTiles][4];
#pragma unroll
      for (int m = 0; m < kRowTiles; ++m)
        LoadMatrices(a[m], q + (kWarpQueries * Warp() + 16 * m + Lane() % 16) * kStride + k + Lane() / 16 * 8);
#pragma unroll
      for (int n = 0; n < kScoreTiles; n += 2) {
        uint32_t b[4];
        LoadMatrices(b, keys + (8 * n + Lane() / 16 * 8 + Lane() % 8) * kStride + k + Lane() / 8 % 2 * 8);
#pragma unroll
        for (int m = 0; m < kRowTiles; ++m) {
          MultiplyAccumulate<T>(scores[m][n], a[m], b[0], b[1]);
          MultiplyAccumulate<T>(scores[m][n + 1], a[m], b[2], b[3]);
        }
      }
    }
  }

  static SHIFTRT_DEVICE void Cap(float inner, WarpScores& scores) {
#pragma unroll
    for (int m = 0; m < kRowTiles; ++m)
#pragma unroll
      for (int n = 0; n < kScoreTiles; ++n)
        for (int r = 0; r < 4; ++r) scores[m][n][r] = Tanh(scores[m][n][r] * inner);
  }

  // Query `first_query` + row sees the keys up to itself, at most the last `window` of them.
  static SHIFTRT_DEVICE void Mask(int first_query, int first_key, int window, WarpScores& scores) {
#pragma unroll
    for (int m = 0; m < kRowTiles; ++m) {
#pragma unroll
      for (int n = 0; n < kScoreTiles; ++n) {
        for (int r = 0; r < 4; ++r) {
          const int query = first_query + 16 * m + Lane() / 4 + 8 * (r / 2);
          const int key = first_key + 8 * n + 2 * (Lane() % 4) + r % 2;
          if (key > query || (kLimited && window > 0 && key <= query - window)) scores[m][n][r] = -Infinity();
        }
      }
    }
  }

  // Replaces the scores by their weights and rescales the state to the new maximum.
  static SHIFTRT_DEVICE void Softmax(float scale, WarpScores& scores, State& state) {
#pragma unroll
    for (int m = 0; m < kRowTiles; ++m) {
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        float largest = state.maximum[m][half];
#pragma unroll
        for (int n = 0; n < kScoreTiles; ++n)
          largest = Larger(largest, Larger(scores[m][n][2 * half], scores[m][n][2 * half + 1]));
        const float maximum = WarpMax<4>(largest), shift = maximum * scale;
        // This is 0 at the first tile, because every query sees key 0. With a window, which may hide a whole tile from
        // a query, the maximum starts finite. It is exactly 1 if the maximum does not change.
        const float before = Exp2((state.maximum[m][half] - maximum) * scale);
        state.maximum[m][half] = maximum;
        state.sum[m][half] *= before;
#pragma unroll
        for (int n = 0; n < kScoreTiles; ++n) {
          for (int r = 2 * half; r < 2 * half + 2; ++r) {
            scores[m][n][r] = Exp2(scores[m][n][r] * scale - shift);
            state.sum[m][half] += scores[m][n][r];
          }
        }
#pragma unroll
        for (int d = 0; d < kValueTiles; ++d)
          for (int r = 2 * half; r < 2 * half + 2; ++r) state.out[m][d][r] *= before;
      }
    }
  }

  // state.out += weights (queries x kKeys) values (kKeys x head_dim). The fragments of the scores have the layout of an
  // operand of this product.
  static SHIFTRT_DEVICE void AddValues(const WarpScores& weights, Shared<T> values, State& state) {
#pragma unroll
    for (int n = 0; n < kScoreTiles; n += 2) {
      uint32_t a[kRowTiles][4];
#pragma unroll
      for (int m = 0; m < kRowTiles; ++m)
        for (int r = 0; r < 4; ++r)
          a[m][r] = Pack2<T>(weights[m][n + r / 2][2 * (r % 2)], weights[m][n + r / 2][2 * (r % 2) + 1]);
#pragma unroll
      for (int d = 0; d < kValueTiles; d += 2) {
        uint32_t b[4];
        LoadMatricesTransposed(b, values + (8 * n + Lane() % 16) * kStride + 8 * d + Lane() / 16 * 8);
#pragma unroll
        for (int m = 0; m < kRowTiles; ++m) {
          MultiplyAccumulate<T>(state.out[m][d], a[m], b[0], b[1]);
          MultiplyAccumulate<T>(state.out[m][d + 1], a[m], b[2], b[3]);
        }
      }
    }
  }

  static SHIFTRT_DEVICE void Store(const Args& args, int first_query, State& state) {
    const PackedSequence sequence = args.sequences[Block().z];  // read again to save registers
#pragma unroll
    for (int m = 0; m < kRowTiles; ++m) {
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const float sum = WarpSum<4>(state.sum[m][half]) +
                          SinkTerm(args.sinks, Block().x, state.maximum[m][half] * args.scales.outer),
                    share = 1 / sum;
        const int query = first_query + 16 * m + Lane() / 4 + 8 * half;
        if (query >= sequence.count) continue;
        const int64_t head = static_cast<int64_t>(sequence.begin + query) * args.heads + Block().x;
        if (args.log_sums != nullptr && Lane() % 4 == 0)
          args.log_sums[head] = LogSum(state.maximum[m][half] * args.scales.outer, sum);
        T* const out = args.out + head * kHeadDim;
#pragma unroll
        for (int d = 0; d < kValueTiles; ++d)
          Store2(out + 8 * d + 2 * (Lane() % 4), state.out[m][d][2 * half] * share,
                 state.out[m][d][2 * half + 1] * share);
      }
    }
  }

  static SHIFTRT_DEVICE void Run(const Args& args) {
    const PackedSequence sequence = args.sequences[Block().z];
    const int first = FirstQuery(kQueries), head = Block().x;
    if (first >= sequence.count) return;
    SharedArena arena;
    Tiles tiles;
    tiles.q = arena.Take<T>(kQueries * kStride);
    tiles.keys = arena.Take<T>(kKeys * kStride);
    tiles.values = arena.Take<T>(kKeys * kStride);
    const int kv_head = head / (args.heads / args.kv_heads), all_keys = sequence.past + sequence.count;
    const int q_stride = args.heads * kHeadDim, kv_stride = args.kv_heads * kHeadDim;
    const int64_t first_kv = static_cast<int64_t>(sequence.kv_begin) * kv_stride + kv_head * kHeadDim;
    const int last = first + kQueries < sequence.count ? first + kQueries : sequence.count;
    const int seen = sequence.past + last;                                 // keys that the block's last query sees
    const int warp_first = sequence.past + first + kWarpQueries * Warp();  // position of the warp's first query
    // The first tile that contains a key visible to the block's first query.
    const int hidden = kLimited && args.window > 0 ? sequence.past + first + 1 - args.window : 0;
    const int start = hidden > 0 ? hidden / kKeys * kKeys : 0;

    State state;
#pragma unroll
    for (int m = 0; m < kRowTiles; ++m) {
      for (int half = 0; half < 2; ++half) {
        state.maximum[m][half] = kLimited ? -1e30f : -Infinity();
        state.sum[m][half] = 0;
      }
#pragma unroll
      for (int d = 0; d < kValueTiles; ++d)
        for (int r = 0; r < 4; ++r) state.out[m][d][r] = 0;
    }

    CopyRows<kQueries>(tiles.q, args.q + static_cast<int64_t>(sequence.begin) * q_stride + head * kHeadDim, q_stride,
                       first, sequence.count);
    CopyRows<kKeys>(tiles.keys, args.keys + first_kv, kv_stride, start, all_keys);
    for (int first_key = start; first_key < seen; first_key += kKeys) {
      bool some_seen = first_key < warp_first + kWarpQueries, all_seen = first_key + kKeys <= warp_first + 1;
      if (kLimited && args.window > 0) {
        some_seen = some_seen && first_key + kKeys > warp_first + 1 - args.window;
        all_seen = all_seen && first_key >= warp_first + kWarpQueries - args.window;
      }
      WarpScores scores;
      Arrive();  // the keys are there, and the values of the previous tile are no longer needed
      CopyRows<kKeys>(tiles.values, args.values + first_kv, kv_stride, first_key, all_keys);
      if (some_seen) Scores(tiles.q, tiles.keys, scores);
      Arrive();  // the values are there, and the keys are no longer needed
      if (first_key + kKeys < seen)
        CopyRows<kKeys>(tiles.keys, args.keys + first_kv, kv_stride, first_key + kKeys, all_keys);
      if (!some_seen) continue;
      if (kLimited && args.capped) Cap(args.scales.inner, scores);
      if (!all_seen) Mask(warp_first, first_key, args.window, scores);
      Softmax(args.scales.outer, scores, state);
      AddValues(scores, tiles.values, state);
    }
    Store(args, first + kWarpQueries * Warp(), state);
  }
};

}  // namespace

bool TakesWarpgroups(int device, const AttentionShape& shape) {
  return (shape.head_dim == 64 || shape.head_dim == 128) && shape.window == 0 && shape.soft_cap == 0 &&
         shape.sinks == nullptr && RunsWarpgroupProducts(device);
}

void AttendPacked(Stream stream, const PackedAttention& call) {
  const AttentionShape& shape = call.shape;
  RequireShape(shape);
  Require(call.q.dtype != DType::kFloat32 && call.q.dtype == call.keys.dtype && call.q.dtype == call.out.dtype,
          "attention of whole sequences", "bfloat16 or float16 throughout, not queries of bytes",
          static_cast<int64_t>(SizeOf(call.q.dtype)));
  if (call.longest == 0 || call.sequence_count == 0) return;
  if (call.kernel != PackedKernel::kWarps) {
    const bool takes = TakesWarpgroups(stream.device, shape);
    Require(takes || call.kernel == PackedKernel::kFastest, "attention by warpgroups",
            "compute capability 9.0 without SHIFTRT_CUDA_WGMMA=0, no window, no soft cap, and heads of 64 or 128",
            shape.head_dim);
    if (takes) return AttendPackedByWarpgroups(stream, call);
  }
  WithHeadDim(shape.head_dim, [&](auto head_dim) {
    const auto launch_with = [&](auto type, auto limited) {
      using T = decltype(type);
      using Kernel = WarpsKernel<T, head_dim(), limited()>;
      ForSequences(call.sequence_count, [&](int64_t first, int blocks) {
        Launch<Kernel>(stream,
                       {.x = shape.heads,
                        .y = Blocks(call.longest, Kernel::kQueries),
                        .z = blocks,
                        .shared_bytes = Kernel::kShared},
                       {static_cast<const T*>(call.q.data), static_cast<const T*>(call.keys.data),
                        static_cast<const T*>(call.values.data), call.sequences + first, static_cast<T*>(call.out.data),
                        call.log_sums, shape.heads, shape.kv_heads, shape.window, shape.soft_cap > 0, ScalesOf(shape),
                        shape.sinks});
      });
    };
    const auto launch = [&](auto type) {
      if (shape.window > 0 || shape.soft_cap > 0) return launch_with(type, std::true_type());
      launch_with(type, std::false_type());
    };
    if (call.q.dtype == DType::kBFloat16) {
      launch(BFloat16());
    } else {
      launch(Float16());
    }
  });
}

}  // namespace shiftrt::gpu
