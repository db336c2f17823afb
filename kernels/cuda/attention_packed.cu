// After FlashAttention-2 (Dao 2023): a block holds 64 queries of one head, keys and values stream past in tiles that
// arrive one ahead of the arithmetic, and the scores never leave the registers.
#include "kernels/cuda/attention_common.h"
#include "kernels/cuda/warp.cuh"

namespace shiftrt::gpu {

namespace {

template <typename T, int kHeadDim>
struct PackedKernel {
  static constexpr int kThreads = 128, kWarps = kThreads / kWarpSize;
  static constexpr int kQueries = 16 * kWarps;
  static constexpr int kKeys = kHeadDim <= 128 ? 64 : 32;
  static constexpr int kStride = kHeadDim + 8;  // 16 bytes more than a row: ldmatrix then meets no bank twice
  static constexpr int kTile = kKeys * kStride;
  static constexpr int kScoreTiles = kKeys / 8, kValueTiles = kHeadDim / 8;
  struct Args {
    const T *q, *keys, *values;
    const PackedSequence* sequences;
    T* out;
    int heads, kv_heads;
    float scale;  // times log2 e
  };
  static constexpr int kShared = SharedBytes<T>(kQueries * kStride) + 2 * SharedBytes<T>(2 * kTile);

  struct Tiles {
    Shared<T> q, keys, values;  // two stages of keys and values: a run-time index would move an array out of registers
  };
  // A lane's part of its warp's 16 queries: rows lane / 4 and lane / 4 + 8.
  struct State {
    float maximum[2], sum[2], out[kValueTiles][4];
  };

  // Rows first .. first + kRows - 1 of a (rows, heads, head_dim) array, zeros from `limit` on.
  template <int kRows>
  static SHIFTRT_DEVICE void CopyRows(Shared<T> to, const T* from, int64_t row_stride, int first, int limit) {
    constexpr int kPieces = kHeadDim / 8;
    for (int i = Thread(); i < kRows * kPieces; i += kThreads) {
      const int row = i / kPieces, piece = 8 * (i % kPieces);
      CopyAsync16(to + row * kStride + piece, from + (first + row) * row_stride + piece, first + row < limit);
    }
  }

  // scores (16 queries x kKeys) of this warp.
  static SHIFTRT_DEVICE void Scores(Shared<T> q, Shared<T> keys, float (&scores)[kScoreTiles][4]) {
#pragma unroll
    for (int n = 0; n < kScoreTiles; ++n)
      for (int r = 0; r < 4; ++r) scores[n][r] = 0;
#pragma unroll
    for (int k = 0; k < kHeadDim; k += 16) {
      uint32_t a[4];
      LoadMatrices(a, q + (16 * Warp() + Lane() % 16) * kStride + k + Lane() / 16 * 8);
#pragma unroll
      for (int n = 0; n < kScoreTiles; n += 2) {
        uint32_t b[4];
        LoadMatrices(b, keys + (8 * n + Lane() / 16 * 8 + Lane() % 8) * kStride + k + Lane() / 8 % 2 * 8);
        MultiplyAccumulate<T>(scores[n], a, b[0], b[1]);
        MultiplyAccumulate<T>(scores[n + 1], a, b[2], b[3]);
      }
    }
  }

  // Scores become weights, and the state is scaled to their maximum. Query `first_query` + row sees keys up to itself.
  static SHIFTRT_DEVICE void Softmax(float scale, int first_query, int first_key, float (&scores)[kScoreTiles][4],
                                     State& state) {
    float largest[2] = {state.maximum[0], state.maximum[1]};
#pragma unroll
    for (int n = 0; n < kScoreTiles; ++n) {
      for (int r = 0; r < 4; ++r) {
        const int query = first_query + Lane() / 4 + 8 * (r / 2), key = first_key + 8 * n + 2 * (Lane() % 4) + r % 2;
        scores[n][r] = key <= query ? scores[n][r] * scale : -Infinity();
        largest[r / 2] = Larger(largest[r / 2], scores[n][r]);
      }
    }
    float before[2];
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const float maximum = WarpMax<4>(largest[half]);
      before[half] = Exp2(state.maximum[half] - maximum);  // the first tile's: 0, for every query sees key 0
      state.maximum[half] = maximum;
      state.sum[half] *= before[half];
    }
#pragma unroll
    for (int n = 0; n < kScoreTiles; ++n) {
      for (int r = 0; r < 4; ++r) {
        scores[n][r] = Exp2(scores[n][r] - state.maximum[r / 2]);
        state.sum[r / 2] += scores[n][r];
      }
    }
#pragma unroll
    for (int d = 0; d < kValueTiles; ++d)
      for (int r = 0; r < 4; ++r) state.out[d][r] *= before[r / 2];
  }

  // state.out += weights (16 x kKeys) values (kKeys x head_dim): a score's fragment is the next product's operand.
  static SHIFTRT_DEVICE void AddValues(const float (&weights)[kScoreTiles][4], Shared<T> values, State& state) {
#pragma unroll
    for (int n = 0; n < kScoreTiles; n += 2) {
      const uint32_t a[4] = {Pack2<T>(weights[n][0], weights[n][1]), Pack2<T>(weights[n][2], weights[n][3]),
                             Pack2<T>(weights[n + 1][0], weights[n + 1][1]),
                             Pack2<T>(weights[n + 1][2], weights[n + 1][3])};
#pragma unroll
      for (int d = 0; d < kValueTiles; d += 2) {
        uint32_t b[4];
        LoadMatricesTransposed(b, values + (8 * n + Lane() % 16) * kStride + 8 * d + Lane() / 16 * 8);
        MultiplyAccumulate<T>(state.out[d], a, b[0], b[1]);
        MultiplyAccumulate<T>(state.out[d + 1], a, b[2], b[3]);
      }
    }
  }

  static SHIFTRT_DEVICE void Store(const Args& args, const PackedSequence& sequence, int first_query, int head,
                                   State& state) {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const float sum = WarpSum<4>(state.sum[half]);
      const int query = first_query + Lane() / 4 + 8 * half;
      if (query >= sequence.count) continue;
      T* const out = args.out + (static_cast<int64_t>(sequence.begin + query) * args.heads + head) * kHeadDim;
#pragma unroll
      for (int d = 0; d < kValueTiles; ++d)
        Store2(out + 8 * d + 2 * (Lane() % 4), state.out[d][2 * half] / sum, state.out[d][2 * half + 1] / sum);
    }
  }

  static SHIFTRT_DEVICE void Run(const Args& args) {
    const PackedSequence sequence = args.sequences[Block().z];
    // The blocks with the most keys start first.
    const int first = (GridBlocks().x - 1 - Block().x) * kQueries, head = Block().y;
    if (first >= sequence.count) return;
    SharedArena arena;
    Tiles tiles;
    tiles.q = arena.Take<T>(kQueries * kStride);
    tiles.keys = arena.Take<T>(2 * kTile);
    tiles.values = arena.Take<T>(2 * kTile);
    const int kv_head = head / (args.heads / args.kv_heads), all_keys = sequence.past + sequence.count;
    const int64_t q_stride = static_cast<int64_t>(args.heads) * kHeadDim,
                  kv_stride = static_cast<int64_t>(args.kv_heads) * kHeadDim;
    const T* const keys = args.keys + sequence.kv_begin * kv_stride + kv_head * kHeadDim;
    const T* const values = args.values + sequence.kv_begin * kv_stride + kv_head * kHeadDim;
    const int last = first + kQueries < sequence.count ? first + kQueries : sequence.count;
    const int key_tiles = (sequence.past + last + kKeys - 1) / kKeys;

    State state;
    for (int half = 0; half < 2; ++half) {
      state.maximum[half] = -Infinity();
      state.sum[half] = 0;
    }
#pragma unroll
    for (int d = 0; d < kValueTiles; ++d)
      for (int r = 0; r < 4; ++r) state.out[d][r] = 0;

    CopyRows<kQueries>(tiles.q, args.q + sequence.begin * q_stride + head * kHeadDim, q_stride, first, sequence.count);
    CopyRows<kKeys>(tiles.keys, keys, kv_stride, 0, all_keys);
    CopyRows<kKeys>(tiles.values, values, kv_stride, 0, all_keys);
    CopyAsyncCommit();
    for (int tile = 0; tile < key_tiles; ++tile) {
      const int stage = tile % 2;
      if (tile + 1 < key_tiles) {
        CopyRows<kKeys>(tiles.keys + (1 - stage) * kTile, keys, kv_stride, (tile + 1) * kKeys, all_keys);
        CopyRows<kKeys>(tiles.values + (1 - stage) * kTile, values, kv_stride, (tile + 1) * kKeys, all_keys);
      }
      CopyAsyncCommit();
      CopyAsyncWait<1>();
      SyncThreads();
      float scores[kScoreTiles][4];
      Scores(tiles.q, tiles.keys + stage * kTile, scores);
      Softmax(args.scale, sequence.past + first + 16 * Warp(), tile * kKeys, scores, state);
      AddValues(scores, tiles.values + stage * kTile, state);
      SyncThreads();
    }
    Store(args, sequence, first + 16 * Warp(), head, state);
  }
};

}  // namespace

void AttendPacked(Stream stream, const PackedAttention& call) {
  const AttentionShape& shape = call.shape;
  RequireShape(shape);
  Require(call.q.dtype != DType::kFloat32 && call.q.dtype == call.keys.dtype && call.q.dtype == call.out.dtype,
          "attention of whole sequences", "bfloat16 or float16 throughout, not queries of bytes",
          static_cast<int64_t>(SizeOf(call.q.dtype)));
  if (call.longest == 0 || call.sequence_count == 0) return;
  WithHeadDim(shape.head_dim, [&](auto head_dim) {
    const auto launch = [&](auto type) {
      using T = decltype(type);
      using Kernel = PackedKernel<T, head_dim()>;
      Launch<Kernel>(stream,
                     {.x = Blocks(call.longest, Kernel::kQueries),
                      .y = shape.heads,
                      .z = static_cast<int>(call.sequence_count),
                      .shared_bytes = Kernel::kShared},
                     {static_cast<const T*>(call.q.data), static_cast<const T*>(call.keys.data),
                      static_cast<const T*>(call.values.data), call.sequences, static_cast<T*>(call.out.data),
                      shape.heads, shape.kv_heads, shape.scale * kLog2E});
    };
    if (call.q.dtype == DType::kBFloat16) {
      launch(BFloat16());
    } else {
      launch(Float16());
    }
  });
}

}  // namespace shiftrt::gpu
