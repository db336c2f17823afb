// SPDX-License-Identifier: Apache-2.0
#include "kernels/cuda/attention_common.h"
#include "kernels/cuda/warp.cuh"

namespace shiftrt::gpu {

namespace {

constexpr int kMostHeads = 8;      // query heads per block
constexpr int kKeysPerSplit = 64;  // fewer keys are not worth another block
constexpr int kMostSplits = 64;

// The state of a softmax over part of the keys, in powers of two: the sums are scaled by 2^-maximum.
constexpr float kNothingSeen = -1e30f;  // finite, so that its difference with itself is 0

// The factor of a state with this maximum when it is added to a state with a larger maximum.
SHIFTRT_DEVICE float Weight(float maximum, float larger) { return Exp2(maximum - larger); }

// A state in memory: head_dim sums of weighted values, then the maximum and the sum of the weights.
constexpr int StateSize(int head_dim) { return head_dim + 2; }

// A block processes one query, kHeads query heads of one kv head, and one split of the keys. Groups of kLanes lanes
// take turns at the keys. Each lane holds 8 elements of the head.
template <typename T, int kHeadDim, int kHeads, bool kCapped>
struct SplitKernel {
  static constexpr int kThreads = 128, kWarps = kThreads / kWarpSize;
  static constexpr int kUsedLanes = kHeadDim / 8;
  static constexpr int kLanes = kUsedLanes <= 8 ? 8 : kUsedLanes <= 16 ? 16 : 32;
  static constexpr int kGroups = kWarpSize / kLanes;
  static constexpr int kStep = kWarps * kGroups;         // keys that a block processes at a time
  static constexpr int kBatch = sizeof(T) == 2 ? 4 : 1;  // keys in flight per group; latency dominates for short texts
  struct Args {
    const float* q;
    const T *keys, *values;
    const int32_t *first_row, *visible;
    float *scratch, *out;
    float* log_sums;              // may be null
    int heads, kv_heads, chunks;  // chunks: groups of kHeads query heads per kv head
    int window;                   // 0: none
    ScoreScales scales;
  };
  static constexpr int kShared = SharedBytes<float>(kWarps * kHeads * StateSize(kHeadDim));

  struct State {
    float maximum[kHeads], sum[kHeads], values[kHeads][8];
  };

  static SHIFTRT_DEVICE void TakeKey(const Args& args, const float (&q)[kHeads][8], const float (&key)[8],
                                     const float (&value)[8], bool valid, State& state) {
#pragma unroll
    for (int h = 0; h < kHeads; ++h) {
      float score = 0;
      for (int j = 0; j < 8; ++j) score += q[h][j] * key[j];
      score = WarpSum<kLanes>(score);
      if constexpr (kCapped) score = Tanh(score) * args.scales.outer;
      if (!valid) continue;  // the shuffles above need every lane
      const float maximum = Larger(state.maximum[h], score);
      const float before = Weight(state.maximum[h], maximum), now = Weight(score, maximum);
      state.maximum[h] = maximum;
      state.sum[h] = state.sum[h] * before + now;
      for (int j = 0; j < 8; ++j) state.values[h][j] = state.values[h][j] * before + now * value[j];
    }
  }

  // Merges the states of the groups of a warp; every group then has the same state.
  static SHIFTRT_DEVICE void MergeGroups(State& state) {
    for (int step = kLanes; step < kWarpSize; step *= 2) {
#pragma unroll
      for (int h = 0; h < kHeads; ++h) {
        const float theirs = ShuffleXor(state.maximum[h], step), maximum = Larger(state.maximum[h], theirs);
        const float mine_counts = Weight(state.maximum[h], maximum), theirs_count = Weight(theirs, maximum);
        state.maximum[h] = maximum;
        state.sum[h] = state.sum[h] * mine_counts + ShuffleXor(state.sum[h], step) * theirs_count;
        for (int j = 0; j < 8; ++j)
          state.values[h][j] = state.values[h][j] * mine_counts + ShuffleXor(state.values[h][j], step) * theirs_count;
      }
    }
  }

  static SHIFTRT_DEVICE void Run(const Args& args) {
    SharedArena arena;
    const Shared<float> states = arena.Take<float>(kWarps * kHeads * StateSize(kHeadDim));
    const int64_t token = Block().x;
    const int kv_head = Block().y / args.chunks, group = args.heads / args.kv_heads;
    const int first_head = kv_head * group + Block().y % args.chunks * kHeads;
    const int heads_left = (kv_head + 1) * group - first_head, heads = heads_left < kHeads ? heads_left : kHeads;
    const int lane = Lane() % kLanes;
    const bool used = lane < kUsedLanes;

    float q[kHeads][8] = {};
    State state;
#pragma unroll
    for (int h = 0; h < kHeads; ++h) {
      state.maximum[h] = kNothingSeen;
      state.sum[h] = 0;
      for (int j = 0; j < 8; ++j) state.values[h][j] = 0;
      if (!used || h >= heads) continue;
      Load8(args.q + (token * args.heads + first_head + h) * kHeadDim + 8 * lane, q[h]);
      for (int j = 0; j < 8; ++j) q[h][j] *= kCapped ? args.scales.inner : args.scales.outer;
    }

    const int all = args.visible[token], hidden = args.window > 0 && all > args.window ? all - args.window : 0;
    const int visible = all - hidden, splits = GridBlocks().z;
    const int share = (visible + splits - 1) / splits, begin = Block().z * share;
    const int end = begin + share < visible ? begin + share : visible;
    const int64_t first_row = args.first_row[token] + hidden;
    for (int base = begin + Warp() * kGroups; base < end; base += kBatch * kStep) {
      const int first_key = base + Lane() / kLanes;
      Raw8<T> keys[kBatch], values[kBatch];
#pragma unroll
      for (int i = 0; i < kBatch; ++i) {
        if (first_key + i * kStep >= end || !used) continue;
        const int64_t row = first_row + first_key + i * kStep, at = (row * args.kv_heads + kv_head) * kHeadDim;
        keys[i] = LoadOnce8(args.keys + at + 8 * lane);
        values[i] = LoadOnce8(args.values + at + 8 * lane);
      }
      SyncWarp();  // keeps the loads above together, so that all are issued before the first use
#pragma unroll
      for (int i = 0; i < kBatch; ++i) {
        float key[8], value[8];
        Widen8(keys[i], key);
        Widen8(values[i], value);
        TakeKey(args, q, key, value, first_key + i * kStep < end, state);
      }
    }
    MergeGroups(state);
    if (Lane() < kUsedLanes) Leave(state, states, lane);
    SyncThreads();
    for (int i = Thread(); i < heads * kHeadDim; i += kThreads) Finish(args, states, token, first_head, i);
  }

  static SHIFTRT_DEVICE void Leave(const State& state, Shared<float> states, int lane) {
#pragma unroll
    for (int h = 0; h < kHeads; ++h) {
      const int at = (Warp() * kHeads + h) * StateSize(kHeadDim);
      for (int j = 0; j < 8; ++j) states[at + 8 * lane + j] = state.values[h][j];
      if (lane != 0) continue;
      states[at + kHeadDim] = state.maximum[h];
      states[at + kHeadDim + 1] = state.sum[h];
    }
  }

  // Writes element i % head_dim of head i / head_dim: the result if this block processed all keys, otherwise its share.
  static SHIFTRT_DEVICE void Finish(const Args& args, Shared<float> states, int64_t token, int first_head, int i) {
    const int h = i / kHeadDim, element = i % kHeadDim;
    float maximum = kNothingSeen, sum = 0, value = 0;
    for (int w = 0; w < kWarps; ++w)
      maximum = Larger(maximum, states[(w * kHeads + h) * StateSize(kHeadDim) + kHeadDim]);
    for (int w = 0; w < kWarps; ++w) {
      const int at = (w * kHeads + h) * StateSize(kHeadDim);
      const float weight = Weight(states[at + kHeadDim], maximum);
      sum += weight * states[at + kHeadDim + 1];
      value += weight * states[at + element];
    }
    const int64_t head = token * args.heads + first_head + h;
    if (GridBlocks().z == 1) {
      args.out[head * kHeadDim + element] = value / sum;
      if (args.log_sums != nullptr && element == 0) args.log_sums[head] = LogSum(maximum, sum);
      return;
    }
    float* const share = args.scratch + (head * GridBlocks().z + Block().z) * StateSize(kHeadDim);
    share[element] = value;
    if (element == 0) {
      share[kHeadDim] = maximum;
      share[kHeadDim + 1] = sum;
    }
  }
};

// Combines the splits. There is one block per query and head.
struct CombineKernel {
  static constexpr int kThreads = 64;
  struct Args {
    const float* scratch;
    float *out, *log_sums;
    int heads, head_dim, splits;
  };
  static SHIFTRT_DEVICE void Run(const Args& args) {
    const int64_t head = static_cast<int64_t>(Block().x) * args.heads + Block().y;
    const int size = StateSize(args.head_dim);
    const float* const shares = args.scratch + head * args.splits * size;
    float maximum = kNothingSeen, sum = 0;
    for (int s = 0; s < args.splits; ++s) maximum = Larger(maximum, shares[s * size + args.head_dim]);
    for (int s = 0; s < args.splits; ++s)
      sum += Weight(shares[s * size + args.head_dim], maximum) * shares[s * size + args.head_dim + 1];
    if (args.log_sums != nullptr && Thread() == 0) args.log_sums[head] = LogSum(maximum, sum);
    for (int i = Thread(); i < args.head_dim; i += kThreads) {
      float value = 0;
      for (int s = 0; s < args.splits; ++s)
        value += Weight(shares[s * size + args.head_dim], maximum) * shares[s * size + i];
      args.out[head * args.head_dim + i] = value / sum;
    }
  }
};

int Group(const AttentionShape& shape) { return shape.heads / shape.kv_heads; }
int HeadsPerBlock(const AttentionShape& shape) { return Group(shape) == 1 ? 1 : Group(shape) <= 4 ? 4 : kMostHeads; }
int ChunksPerKvHead(const AttentionShape& shape) { return Blocks(Group(shape), HeadsPerBlock(shape)); }

template <typename T, int kHeadDim, int kHeads, bool kCapped>
void LaunchSplit(Stream stream, const SplitAttention& call) {
  using Kernel = SplitKernel<T, kHeadDim, kHeads, kCapped>;
  const AttentionShape& shape = call.shape;
  const int chunks = ChunksPerKvHead(shape);
  Launch<Kernel>(stream,
                 {.x = static_cast<int>(call.tokens),
                  .y = shape.kv_heads * chunks,
                  .z = call.splits,
                  .shared_bytes = Kernel::kShared},
                 {call.q, static_cast<const T*>(call.keys.data), static_cast<const T*>(call.values.data),
                  call.first_row, call.visible, call.scratch, call.out, call.log_sums, shape.heads, shape.kv_heads,
                  chunks, shape.window, ScalesOf(shape)});
}

}  // namespace

int AttentionSplits(const AttentionShape& shape, int64_t tokens, int64_t longest, int multiprocessors) {
  const int64_t blocks = tokens * shape.kv_heads * ChunksPerKvHead(shape);
  const int64_t seen = shape.window > 0 && shape.window < longest ? shape.window : longest;
  const int64_t wanted = (2 * multiprocessors + blocks - 1) / blocks, useful = Blocks(seen, kKeysPerSplit);
  const int64_t splits = wanted < useful ? wanted : useful;
  return splits < 1 ? 1 : splits > kMostSplits ? kMostSplits : static_cast<int>(splits);
}

int64_t SplitAttentionScratch(const AttentionShape& shape, int64_t tokens, int splits) {
  return splits == 1 ? 0 : tokens * shape.heads * splits * StateSize(shape.head_dim);
}

void AttendSplit(Stream stream, const SplitAttention& call) {
  RequireShape(call.shape);
  if (call.tokens == 0) return;
  WithHeadDim(call.shape.head_dim, [&](auto head_dim) {
    WithType("attention", call.keys.dtype, [&](auto type) {
      using T = decltype(type);
      const auto launch = [&](auto capped) {
        switch (HeadsPerBlock(call.shape)) {
          case 1: return LaunchSplit<T, head_dim(), 1, capped()>(stream, call);
          case 4: return LaunchSplit<T, head_dim(), 4, capped()>(stream, call);
          default: return LaunchSplit<T, head_dim(), kMostHeads, capped()>(stream, call);
        }
      };
      if (call.shape.soft_cap > 0) return launch(std::true_type());
      launch(std::false_type());
    });
  });
  if (call.splits > 1)
    Launch<CombineKernel>(stream, {.x = static_cast<int>(call.tokens), .y = call.shape.heads},
                          {call.scratch, call.out, call.log_sums, call.shape.heads, call.shape.head_dim, call.splits});
}

}  // namespace shiftrt::gpu
