// SPDX-License-Identifier: Apache-2.0
// Attention of whole sequences on compute capability 9.0, after FlashAttention-3 (Shah et al. 2024). One warp copies
// tiles of keys and values. Two warpgroups, with 64 queries each, multiply them. They take turns at the tensor cores:
// while one multiplies, the other computes its softmax. Each also keeps the product of the previous tile's weights and
// values in flight with the product of queries and keys of the next.
#include "kernels/cuda/attention_common.h"
#include "kernels/cuda/hopper.cuh"
#include "kernels/cuda/warp.cuh"

namespace shiftrt::gpu {

namespace {

template <typename T, int kHeadDim>
struct WarpgroupKernel {
  static constexpr bool kHopper = true;
  static constexpr int kGroups = 2, kGroupWarps = 4, kGroupThreads = kGroupWarps * kWarpSize;
  // A third warpgroup, of which one warp copies. It starts with 168 of the 65,536 registers per thread, as the others
  // do, and leaves them all but 24.
  static constexpr int kThreads = (kGroups + 1) * kGroupThreads;
  static constexpr int kCopyRegisters = 24, kMultiplyRegisters = 240;
  static constexpr int kGroupQueries = 64, kQueries = kGroups * kGroupQueries, kKeys = 128, kStages = 2;
  static constexpr int kBoxes = kHeadDim / kBoxColumns, kBox = kKeys * kBoxColumns, kTile = kBoxes * kBox;
  static constexpr int kTileBytes = kTile * static_cast<int>(sizeof(T));
  static_assert(kQueries == kKeys && kHeadDim % kBoxColumns == 0);
  static constexpr int kMbarriers = 2 + 4 * kStages;
  static constexpr int kShared = (1 + 2 * kStages) * SharedBytes<T>(kTile) + SharedBytes<Mbarrier>(kMbarriers);
  static_assert(kShared <= kHopperSharedBytes);
  struct Args {
    BoxMap q, keys, values;
    const PackedSequence* sequences;
    T* out;
    float* log_sums;  // may be null
    int heads, kv_heads;
    float scale;  // turns scores into exponents of two
  };

  struct Memory {
    Shared<T> q, keys, values;  // keys and values: kStages tiles
    // Full: a tile has arrived. Free: all warps have read it. Tiles of keys and values use theirs in turn.
    Shared<Mbarrier> q_full, values_landed, keys_full, keys_free, values_full, values_free;
  };
  // Where a block's queries are, and how many tiles of keys they see.
  struct Place {
    PackedSequence sequence;
    int first, tiles;
  };
  // One lane's part of the state of its warp's queries: rows lane / 4 and lane / 4 + 8.
  struct State {
    float maximum[2] = {-Infinity(), -Infinity()}, sum[2] = {}, before[2] = {};
  };
  using Scores = float[kKeys / 2];
  using Weights = uint32_t[kKeys / 16][4];
  using Out = float[kHeadDim / 2];

  // --- The warp that copies ---

  static SHIFTRT_DEVICE void CopyTile(Shared<T> to, const BoxMap& map, int row, int head, Shared<Mbarrier> full) {
    ArriveExpecting(full, kTileBytes);
    for (int box = 0; box < kBoxes; ++box)
      CopyBox(to + box * kBox, map, row, head * kHeadDim + box * kBoxColumns, full);
  }

  // The rows after a sequence's last key belong to another sequence or were never written. Their weights are 0, but 0
  // times what is stored there may be NaN.
  static SHIFTRT_DEVICE void ClearRows(Shared<T> values, int first_row) {
    for (int box = 0; box < kBoxes; ++box)
      for (int i = first_row * kBoxColumns + 8 * Lane(); i < kBox; i += 8 * kWarpSize)
        ClearShared16(values + box * kBox + i);
  }

  static SHIFTRT_DEVICE void Copy(const Args& args, const Memory& memory, const Place& at) {
    const int head = Block().x, kv_head = head / (args.heads / args.kv_heads);
    const int all_keys = at.sequence.past + at.sequence.count;
    const bool first_lane = Lane() == 0;
    if (first_lane) CopyTile(memory.q, args.q, at.sequence.begin + at.first, head, memory.q_full);
#pragma unroll 1
    for (int tile = 0; tile < at.tiles; ++tile) {
      const int stage = tile % kStages, row = at.sequence.kv_begin + tile * kKeys, rows = all_keys - tile * kKeys;
      const uint32_t parity_before = tile / kStages % 2 ^ 1;
      WaitMbarrier(memory.keys_free + stage, parity_before);
      if (first_lane) CopyTile(memory.keys + stage * kTile, args.keys, row, kv_head, memory.keys_full + stage);
      WaitMbarrier(memory.values_free + stage, parity_before);
      const Shared<T> values = memory.values + stage * kTile;
      if (rows >= kKeys) {
        if (first_lane) CopyTile(values, args.values, row, kv_head, memory.values_full + stage);
        continue;
      }
      if (first_lane) CopyTile(values, args.values, row, kv_head, memory.values_landed);
      WaitMbarrier(memory.values_landed, 0);  // only the last tile comes here
      ClearRows(values, rows);
      FenceAsync();
      SyncWarp();
      if (first_lane) Arrive(memory.values_full + stage);
    }
  }

  // --- The warpgroups that multiply ---

  // The tensor cores belong to one warpgroup at a time. Each barrier has the threads of the one that waits and of the
  // one that lets it go.
  static SHIFTRT_DEVICE void TakeTurn(int group) { SyncSome(1 + group, kGroups * kGroupThreads); }
  static SHIFTRT_DEVICE void GiveTurn(int group) { ArriveSome(1 + (1 - group), kGroups * kGroupThreads); }

  // A warp's products are complete before those of the other warps are, so every warp arrives.
  static SHIFTRT_DEVICE void Release(Shared<Mbarrier> free) {
    if (Lane() == 0) Arrive(free);
  }

  // scores = queries (64 x head_dim) keys (128 x head_dim)', unscaled.
  static SHIFTRT_DEVICE void MultiplyKeys(Shared<T> q, Shared<T> keys, Scores& scores) {
#pragma unroll
    for (int k = 0; k < kHeadDim; k += 16) {
      const int at = k / kBoxColumns * kBox + k % kBoxColumns;
      MultiplyTiles<T>(scores, RowsTile(q + at), RowsTile(keys + at), k > 0);
    }
    CommitProducts();
  }

  // out += weights (64 x 128) values (128 x head_dim).
  static SHIFTRT_DEVICE void AddValues(const Weights& weights, Shared<T> values, Out& out) {
#pragma unroll
    for (int n = 0; n < kKeys / 16; ++n)
      MultiplyRegisters<T>(out, weights[n], ColumnsTile(values + 16 * n * kBoxColumns, kBox));
    CommitProducts();
  }

  // Query `first_query` + row sees the keys up to itself.
  static SHIFTRT_DEVICE void Mask(int first_query, int first_key, Scores& scores) {
#pragma unroll
    for (int n = 0; n < kKeys / 8; ++n) {
      for (int r = 0; r < 4; ++r) {
        const int query = first_query + Lane() / 4 + 8 * (r / 2), key = first_key + 8 * n + 2 * (Lane() % 4) + r % 2;
        if (key > query) scores[4 * n + r] = -Infinity();
      }
    }
  }

  // Replaces the scores by their weights. state.before is what sums and outputs of earlier tiles are multiplied by: 0
  // at the first tile, where every query sees key 0, and exactly 1 if the maximum does not change.
  static SHIFTRT_DEVICE void Softmax(float scale, Scores& scores, State& state) {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      float largest = state.maximum[half];
#pragma unroll
      for (int n = 0; n < kKeys / 8; ++n)
        largest = Larger(largest, Larger(scores[4 * n + 2 * half], scores[4 * n + 2 * half + 1]));
      const float maximum = WarpMax<4>(largest), shift = maximum * scale;
      state.before[half] = Exp2((state.maximum[half] - maximum) * scale);
      state.maximum[half] = maximum;
      float sum = 0;
#pragma unroll
      for (int n = 0; n < kKeys / 8; ++n) {
        for (int i = 4 * n + 2 * half; i < 4 * n + 2 * half + 2; ++i) {
          scores[i] = Exp2(scores[i] * scale - shift);
          sum += scores[i];
        }
      }
      state.sum[half] = state.sum[half] * state.before[half] + sum;
    }
  }

  // The accumulators of a product have the layout of an operand of the next.
  static SHIFTRT_DEVICE void Round(const Scores& scores, Weights& weights) {
#pragma unroll
    for (int n = 0; n < kKeys / 16; ++n)
      for (int r = 0; r < 4; ++r) weights[n][r] = Pack2<T>(scores[8 * n + 2 * r], scores[8 * n + 2 * r + 1]);
  }

  static SHIFTRT_DEVICE void Rescale(const State& state, Out& out) {
#pragma unroll
    for (int i = 0; i < kHeadDim / 2; ++i) out[i] *= state.before[i / 2 % 2];
  }

  static SHIFTRT_DEVICE void Store(const Args& args, const Place& at, int group, const State& state, const Out& out) {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const float sum = WarpSum<4>(state.sum[half]), share = 1 / sum;
      const int query = at.first + kGroupQueries * group + 16 * (Warp() % kGroupWarps) + Lane() / 4 + 8 * half;
      if (query >= at.sequence.count) continue;
      const int64_t head = static_cast<int64_t>(at.sequence.begin + query) * args.heads + Block().x;
      if (args.log_sums != nullptr && Lane() % 4 == 0)
        args.log_sums[head] = LogSum(state.maximum[half] * args.scale, sum);
      T* const to = args.out + head * kHeadDim + 2 * (Lane() % 4);
#pragma unroll
      for (int n = 0; n < kHeadDim / 8; ++n)
        Store2(to + 8 * n, out[4 * n + 2 * half] * share, out[4 * n + 2 * half + 1] * share);
    }
  }

  static SHIFTRT_DEVICE void Multiply(const Args& args, const Memory& memory, const Place& at, int group) {
    const Shared<T> q = memory.q + group * kGroupQueries * kBoxColumns;
    const int warp_query =
        at.sequence.past + at.first + kGroupQueries * group + 16 * (Warp() % kGroupWarps);  // its first one's position
    State state;
    Scores scores;
    Weights weights;
    Out out;
#pragma unroll
    for (int i = 0; i < kHeadDim / 2; ++i) out[i] = 0;

    if (group == 1) GiveTurn(group);
    WaitMbarrier(memory.q_full, 0);
    WaitMbarrier(memory.keys_full, 0);
    TakeTurn(group);
    FenceProducts(scores);
    MultiplyKeys(q, memory.keys, scores);
    GiveTurn(group);
    WaitProducts<0>(scores);
    Release(memory.keys_free);
    if (kKeys > warp_query + 1) Mask(warp_query, 0, scores);
    Softmax(args.scale, scores, state);
    Round(scores, weights);
    WaitMbarrier(memory.values_full, 0);
#pragma unroll 1
    for (int tile = 1; tile < at.tiles; ++tile) {
      const int stage = tile % kStages, stage_before = (tile - 1) % kStages;
      const uint32_t parity = tile / kStages % 2;
      WaitMbarrier(memory.keys_full + stage, parity);
      TakeTurn(group);
      FenceProducts(scores, weights, out);
      MultiplyKeys(q, memory.keys + stage * kTile, scores);
      AddValues(weights, memory.values + stage_before * kTile, out);
      GiveTurn(group);
      WaitProducts<1>(scores);
      Release(memory.keys_free + stage);
      if ((tile + 1) * kKeys > warp_query + 1) Mask(warp_query, tile * kKeys, scores);
      Softmax(args.scale, scores, state);
      // The softmax overlaps the product with the values. Without a loop between the two, ptxas moves the wait for that
      // product before the exponentials; so here is the loop that waits for the next product's values.
      Pin(scores);
      WaitMbarrier(memory.values_full + stage, parity);
      WaitProducts<0>(weights, out);
      Release(memory.values_free + stage_before);
      Rescale(state, out);
      Round(scores, weights);
    }
    TakeTurn(group);
    FenceProducts(weights, out);
    AddValues(weights, memory.values + (at.tiles - 1) % kStages * kTile, out);
    if (group == 0) GiveTurn(group);
    WaitProducts<0>(weights, out);
    Store(args, at, group, state, out);
  }

  static SHIFTRT_DEVICE void Run(const Args& args) {
    Place at;
    at.sequence = args.sequences[Block().z];
    at.first = FirstQuery(kQueries);
    if (at.first >= at.sequence.count) return;
    const int last = at.first + kQueries < at.sequence.count ? at.first + kQueries : at.sequence.count;
    at.tiles = (at.sequence.past + last + kKeys - 1) / kKeys;
    SharedArena arena;
    Memory memory;
    memory.q = arena.Take<T>(kTile);
    memory.keys = arena.Take<T>(kStages * kTile);
    memory.values = arena.Take<T>(kStages * kTile);
    memory.q_full = arena.Take<Mbarrier>(kMbarriers);
    memory.values_landed = memory.q_full + 1;
    memory.keys_full = memory.q_full + 2;
    memory.keys_free = memory.keys_full + kStages;
    memory.values_full = memory.keys_free + kStages;
    memory.values_free = memory.values_full + kStages;
    if (Thread() == 0) {
      InitMbarrier(memory.q_full, 1);
      InitMbarrier(memory.values_landed, 1);
      for (int stage = 0; stage < kStages; ++stage) {
        InitMbarrier(memory.keys_full + stage, 1);
        InitMbarrier(memory.values_full + stage, 1);
        InitMbarrier(memory.keys_free + stage, kGroups * kGroupWarps);
        InitMbarrier(memory.values_free + stage, kGroups * kGroupWarps);
      }
      FenceMbarriers();
    }
    SyncThreads();
    const int warp = Shuffle(Warp(), 0);  // the compiler then knows that it is the same in all lanes
    if (warp / kGroupWarps == kGroups) {
      GiveRegisters<kCopyRegisters>();
      if (warp % kGroupWarps == 0) Copy(args, memory, at);
    } else {
      TakeRegisters<kMultiplyRegisters>();
      Multiply(args, memory, at, warp / kGroupWarps);
    }
  }
};

}  // namespace

void AttendPackedByWarpgroups(Stream stream, const PackedAttention& call) {
  const AttentionShape& shape = call.shape;
  const auto launch = [&](auto type, auto head_dim) {
    using T = decltype(type);
    using Kernel = WarpgroupKernel<T, head_dim()>;
    const auto map = [&](const ConstDeviceArray& array, int64_t rows, int heads) {
      return MapBoxes(EncodeBoxes(array, rows, static_cast<int64_t>(heads) * head_dim(), Kernel::kKeys));
    };
    const BoxMap q = map(call.q, call.tokens, shape.heads), keys = map(call.keys, call.rows, shape.kv_heads),
                 values = map(call.values, call.rows, shape.kv_heads);
    ForSequences(call.sequence_count, [&](int64_t first, int blocks) {
      Launch<Kernel>(
          stream,
          {.x = shape.heads, .y = Blocks(call.longest, Kernel::kQueries), .z = blocks, .shared_bytes = Kernel::kShared},
          {q, keys, values, call.sequences + first, static_cast<T*>(call.out.data), call.log_sums, shape.heads,
           shape.kv_heads, ScalesOf(shape).outer});
    });
  };
  const auto launch_with = [&](auto head_dim) {
    if (call.q.dtype == DType::kBFloat16) return launch(BFloat16(), head_dim);
    launch(Float16(), head_dim);
  };
  if (shape.head_dim == 64) return launch_with(std::integral_constant<int, 64>());
  launch_with(std::integral_constant<int, 128>());
}

}  // namespace shiftrt::gpu
