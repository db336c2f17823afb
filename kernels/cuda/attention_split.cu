// SPDX-License-Identifier: Apache-2.0
#include "kernels/cuda/attention_common.h"
#include "kernels/cuda/warp.cuh"

namespace shiftrt::gpu {

namespace {

constexpr int kMostHeads = 4;      // query heads per block
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
  static constexpr int kThreads = 256, kWarps = kThreads / kWarpSize;
  static constexpr int kUsedLanes = kHeadDim / 8;
  static constexpr int kLanes = kUsedLanes <= 8 ? 8 : kUsedLanes <= 16 ? 16 : 32;
  static constexpr int kGroups = kWarpSize / kLanes;
  static constexpr int kStep = kWarps * kGroups;         // keys that a block processes at a time
  static constexpr int kBatch = sizeof(T) == 2 ? 4 : 1;  // keys in flight per group; latency dominates for short texts
  struct Args {
    const float* q;
    const T *keys, *values;
    const int32_t *first_row, *visible;
    float* scratch;         // shares: (tokens, heads, most splits, StateSize)
    uint32_t* arrivals;     // (tokens, blocks along y)
    float *out, *log_sums;  // out: null if `narrow` is not; log_sums may be null
    T* narrow;
    int heads, kv_heads, chunks;  // chunks: groups of kHeads query heads per kv head
    int window;                   // 0: none
    ScoreScales scales;
    const float* sinks;
  };
  static constexpr int kStates = kWarps * kHeads * StateSize(kHeadDim);
  static constexpr int kShared = SharedBytes<float>(kStates) + SharedBytes<uint32_t>(1);
  static_assert(kHeads * (kMostSplits + 1) <= kStates);  // Combine() keeps its weights and sums there

  struct State {
    float maximum[kHeads], sum[kHeads], values[kHeads][8];
  };

  // Adds a batch of keys, of which the first `valid` count. All scores are computed before the state changes, so that
  // their shuffles do not wait for each other, and the state is scaled once for all of them.
  static SHIFTRT_DEVICE void TakeKeys(const Args& args, const float (&q)[kHeads][8], const Raw8<T> (&keys)[kBatch],
                                      const Raw8<T> (&values)[kBatch], int valid, State& state) {
    float scores[kBatch][kHeads];
#pragma unroll
    for (int i = 0; i < kBatch; ++i) {
      float key[8];
      Widen8(keys[i], key);
#pragma unroll
      for (int h = 0; h < kHeads; ++h) {
        float score = 0;
        for (int j = 0; j < 8; ++j) score += q[h][j] * key[j];
        score = WarpSum<kLanes>(score);
        scores[i][h] = kCapped ? Tanh(score) * args.scales.outer : score;
      }
    }
#pragma unroll
    for (int h = 0; h < kHeads; ++h) {
      float maximum = state.maximum[h];
#pragma unroll
      for (int i = 0; i < kBatch; ++i)
        if (i < valid) maximum = Larger(maximum, scores[i][h]);
      const float before = Weight(state.maximum[h], maximum);
      state.maximum[h] = maximum;
      state.sum[h] *= before;
      for (int j = 0; j < 8; ++j) state.values[h][j] *= before;
#pragma unroll
      for (int i = 0; i < kBatch; ++i) {
        scores[i][h] = i < valid ? Weight(scores[i][h], maximum) : 0;
        state.sum[h] += scores[i][h];
      }
    }
#pragma unroll
    for (int i = 0; i < kBatch; ++i) {
      float value[8];
      Widen8(values[i], value);
#pragma unroll
      for (int h = 0; h < kHeads; ++h)
        for (int j = 0; j < 8; ++j) state.values[h][j] += scores[i][h] * value[j];
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
    const Shared<float> states = arena.Take<float>(kStates);
    const Shared<uint32_t> flag = arena.Take<uint32_t>(1);
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
    // The grid is that of the largest number of keys. Blocks that so few keys do not need leave at once.
    const int visible = all - hidden, useful = Blocks(visible, kKeysPerSplit);
    const int splits = useful < GridBlocks().z ? useful : GridBlocks().z;
    if (Block().z >= splits) return;
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
      TakeKeys(args, q, keys, values, Blocks(end - first_key, kStep), state);
    }
    MergeGroups(state);
    if (Lane() < kUsedLanes) Leave(state, states, lane);
    SyncThreads();
    const int64_t first = token * args.heads + first_head;
    for (int i = Thread(); i < heads * kHeadDim; i += kThreads) Finish(args, states, splits, first, i);
    if (splits == 1) return;
    if (LastToArrive(args.arrivals + token * GridBlocks().y + Block().y, splits, flag))
      Combine(args, states, splits, first, heads);
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
  static SHIFTRT_DEVICE void Finish(const Args& args, Shared<float> states, int splits, int64_t first, int i) {
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
    const int64_t head = first + h;
    if (splits == 1) {
      sum += SinkTerm(args.sinks, static_cast<int>(head % args.heads), maximum);
      Write(args, head * kHeadDim + element, value / sum);
      if (args.log_sums != nullptr && element == 0) args.log_sums[head] = LogSum(maximum, sum);
      return;
    }
    float* const share = ShareOf(args, head, Block().z);
    share[element] = value;
    if (element == 0) {
      share[kHeadDim] = maximum;
      share[kHeadDim + 1] = sum;
    }
  }

  static SHIFTRT_DEVICE void Write(const Args& args, int64_t at, float value) {
    if (args.narrow != nullptr) {
      args.narrow[at] = Narrow<T>(value);
    } else {
      args.out[at] = value;
    }
  }

  static SHIFTRT_DEVICE float* ShareOf(const Args& args, int64_t head, int split) {
    return args.scratch + (head * GridBlocks().z + split) * StateSize(kHeadDim);
  }

  // Adds up the shares of these heads in the order of the splits, whichever block does it.
  static SHIFTRT_DEVICE void Combine(const Args& args, Shared<float> states, int splits, int64_t first, int heads) {
    const Shared<float> weights = states, sums = states + kHeads * kMostSplits;
    for (int h = Warp(); h < heads; h += kWarps) {
      float maximum = kNothingSeen, sum = 0;
      for (int s = Lane(); s < splits; s += kWarpSize) maximum = Larger(maximum, ShareOf(args, first + h, s)[kHeadDim]);
      maximum = WarpMax(maximum);
      for (int s = Lane(); s < splits; s += kWarpSize) {
        const float* const share = ShareOf(args, first + h, s);
        const float weight = Weight(share[kHeadDim], maximum);
        weights[h * kMostSplits + s] = weight;
        sum += weight * share[kHeadDim + 1];
      }
      sum = WarpSum(sum);
      if (Lane() != 0) continue;
      sum += SinkTerm(args.sinks, static_cast<int>((first + h) % args.heads), maximum);
      sums[h] = sum;
      if (args.log_sums != nullptr) args.log_sums[first + h] = LogSum(maximum, sum);
    }
    SyncThreads();
    for (int i = Thread(); i < heads * kHeadDim; i += kThreads) {
      const int h = i / kHeadDim, element = i % kHeadDim;
      float value = 0;
#pragma unroll 8
      for (int s = 0; s < splits; ++s) value += weights[h * kMostSplits + s] * ShareOf(args, first + h, s)[element];
      Write(args, (first + h) * kHeadDim + element, value / sums[h]);
    }
  }
};

int Group(const AttentionShape& shape) { return shape.heads / shape.kv_heads; }
// The query heads of a kv head are divided evenly among as few blocks as there can be: 6 of them among two blocks of 3.
int HeadsPerBlock(const AttentionShape& shape) { return Blocks(Group(shape), Blocks(Group(shape), kMostHeads)); }
int ChunksPerKvHead(const AttentionShape& shape) { return Blocks(Group(shape), HeadsPerBlock(shape)); }

template <typename T, int kHeadDim, int kHeads, bool kCapped>
void LaunchSplit(Stream stream, const SplitAttention& call) {
  using Kernel = SplitKernel<T, kHeadDim, kHeads, kCapped>;
  const AttentionShape& shape = call.shape;
  const int chunks = ChunksPerKvHead(shape), groups = shape.kv_heads * chunks;
  const bool wide = call.out.dtype == DType::kFloat32;
  float* shares = nullptr;
  uint32_t* arrivals = nullptr;
  if (call.splits > 1) {
    shares = call.scratch->Shares(stream, call.tokens * shape.heads * call.splits * StateSize(shape.head_dim));
    arrivals = call.scratch->Arrivals(stream, call.tokens * groups);
  }
  Launch<Kernel>(stream,
                 {.x = static_cast<int>(call.tokens), .y = groups, .z = call.splits, .shared_bytes = Kernel::kShared},
                 {call.q, static_cast<const T*>(call.keys.data), static_cast<const T*>(call.values.data),
                  call.first_row, call.visible, shares, arrivals, wide ? static_cast<float*>(call.out.data) : nullptr,
                  call.log_sums, wide ? nullptr : static_cast<T*>(call.out.data), shape.heads, shape.kv_heads, chunks,
                  shape.window, ScalesOf(shape), shape.sinks});
}

}  // namespace

int AttentionSplits(const AttentionShape& shape, int64_t tokens, int64_t longest, int multiprocessors) {
  const int64_t blocks = tokens * shape.kv_heads * ChunksPerKvHead(shape);
  const int64_t seen = shape.window > 0 && shape.window < longest ? shape.window : longest;
  const int64_t wanted = (2 * multiprocessors + blocks - 1) / blocks, useful = Blocks(seen, kKeysPerSplit);
  const int64_t splits = wanted < useful ? wanted : useful;
  return splits < 1 ? 1 : splits > kMostSplits ? kMostSplits : static_cast<int>(splits);
}

uint32_t* SplitScratch::Arrivals(Stream stream, int64_t count) {
  if (count <= arrivals_.size()) return arrivals_.data();
  arrivals_.Reserve(stream, count, kWhat);
  FillBytes(stream, arrivals_.data(), 0, count * static_cast<int64_t>(sizeof(uint32_t)));
  return arrivals_.data();
}

void AttendSplit(Stream stream, const SplitAttention& call) {
  RequireShape(call.shape);
  Require(call.splits >= 1 && call.splits <= kMostSplits, "attention", "1 to 64 splits", call.splits);
  Require(call.out.dtype == DType::kFloat32 || call.out.dtype == call.keys.dtype, "attention",
          "results in float32 or in the type of the keys, not elements of bytes",
          static_cast<int64_t>(SizeOf(call.out.dtype)));
  if (call.tokens == 0) return;
  WithHeadDim(call.shape.head_dim, [&](auto head_dim) {
    WithType("attention", call.keys.dtype, [&](auto type) {
      using T = decltype(type);
      const auto launch = [&](auto capped) {
        switch (HeadsPerBlock(call.shape)) {
          case 1: return LaunchSplit<T, head_dim(), 1, capped()>(stream, call);
          case 2: return LaunchSplit<T, head_dim(), 2, capped()>(stream, call);
          case 3: return LaunchSplit<T, head_dim(), 3, capped()>(stream, call);
          default: return LaunchSplit<T, head_dim(), kMostHeads, capped()>(stream, call);
        }
      };
      if (call.shape.soft_cap > 0) return launch(std::true_type());
      launch(std::false_type());
    });
  });
}

}  // namespace shiftrt::gpu
