// SPDX-License-Identifier: Apache-2.0
// The matrix-vector product of matvec.h for any form of weights: matvec.cu has dense ones, matvec_blocks.cu quantised
// ones.
#pragma once

#include <type_traits>

#include "kernels/cuda/matvec.h"
#include "kernels/cuda/rope_pairs.cuh"
#include "kernels/cuda/warp.cuh"

namespace shiftrt::gpu {

inline constexpr int kMatVecThreads = 256, kMatVecWarps = kMatVecThreads / kWarpSize;

// The vector as a block reads it: in global memory, or multiplied by the norm's weight (without the scale) in shared
// memory.
struct PlainVector {
  static constexpr bool kFar = true;  // its elements are loaded together with the weights
  const float* x;
  SHIFTRT_DEVICE void Get(int at, float (&out)[8]) const { Load8(x + at, out); }
};

// The weights (rows, cols) as a kernel takes them. Dots(rows, vector, cols, ahead, sums) computes a lane's part of the
// dot products of some rows with the vector. LoadAhead(rows, cols, ahead) may load the first of these rows' weights
// before the vector is there: no launch writes weights, so a block does so while the launch in front still runs.
// SkipRows(rows, cols) makes row `rows` the first. Cache is the type of cached keys and values. LeastBlocks(norm) is
// the kernel's kLeastBlocks. SharedVector is the vector in shared memory: Take() finds its Bytes(cols), and a thread
// writes kRun elements with Set(at, x). Threads do so for whole spans of kSpan columns, with zeros after the last.
// Vectors without a norm are there, too, if kAlwaysShared.
template <typename T>
struct MatVecWeights;

enum class Finish { kStore, kAdd, kSwiGlu, kGeGlu, kRotate };
constexpr bool IsGlu(Finish finish) { return finish == Finish::kSwiGlu || finish == Finish::kGeGlu; }
// True if the two rows of a warp must be particular ones.
constexpr bool IsPaired(Finish finish) { return IsGlu(finish) || finish == Finish::kRotate; }

// RotatedHeads as a kernel reads it, and nothing for other kernels.
template <typename T>
struct RotatedOut {
  RopeTable table;
  RopePairs pairs;
  const int32_t *position, *cache_row;
  int heads, kv_heads, head_dim;
  float* q;
  T *keys, *values;
};
struct Nothing {};

// The data that the rows of a warp need besides their products. They are loaded before the product, so that their
// latency is hidden behind that of the weights.
template <int kRows>
struct RowOperands {
  float bias[kRows], addend[kRows];
  float cosine, sine;  // the rotation, with the factor on queries
};

// A warp computes kRows rows of the product at a time: adjacent rows; a row of the gate projection and the same row of
// the up projection; or two rows of a head that RoPE rotates.
template <typename T, bool kNorm, Finish kFinish, int kRows>
struct MatVecKernel {
  using W = MatVecWeights<T>;
  using SharedVector = typename W::SharedVector;
  using Cache = typename W::Cache;
  using Ahead = typename W::template Ahead<kRows>;
  static constexpr int kThreads = kMatVecThreads;
  static constexpr bool kWaits = true, kAllowsNext = true;
  static constexpr bool kGlu = IsGlu(kFinish), kRotated = kFinish == Finish::kRotate;
  static_assert(!IsPaired(kFinish) || kRows == 2);
  static constexpr bool kShared = kNorm || W::kAlwaysShared;
  static constexpr int kLeastBlocks = W::LeastBlocks(kNorm);
  struct Args {
    W w;
    const float *x, *norm_weight, *bias, *addend;
    float* y;
    int rows, cols;
    float eps;
    std::conditional_t<kRotated, RotatedOut<Cache>, Nothing> heads;
  };
  static constexpr int SharedFor(int cols) {
    return (kShared ? SharedVector::Bytes(cols) : 0) + (kNorm ? SharedBytes<float>(kMatVecWarps) : 0);
  }

  static SHIFTRT_DEVICE int Items(const Args& args) { return (args.rows + kRows - 1) / kRows; }
  static SHIFTRT_DEVICE int RowOf(const Args& args, int item, int r) {
    if constexpr (kRotated) {
      const RopePairs& pairs = args.heads.pairs;
      const int pair = item % pairs.half;
      return (item - pair) * 2 + (r == 0 ? pairs.First(pair) : pairs.Second(pair));
    }
    return kGlu ? item + r * (args.rows / 2) : item * kRows + r;
  }
  // All of them, with the last row in the place of one that does not exist.
  static SHIFTRT_DEVICE void RowsOf(const Args& args, int item, int (&rows)[kRows]) {
    for (int r = 0; r < kRows; ++r) {
      const int row = RowOf(args, item, r);
      rows[r] = row < args.rows ? row : args.rows - 1;
    }
  }
  static SHIFTRT_DEVICE int FirstItem() { return Block().x * kMatVecWarps + Warp(); }

  // Writes x, times the weight of the norm if there is one, to shared memory. Returns the scale of the norm, or 1.
  static SHIFTRT_DEVICE float Prepare(const Args& args, const SharedVector& vector, SharedArena& arena) {
    // Runs that a thread loads together: 16 elements, or one run that is longer.
    constexpr int kRun = SharedVector::kRun, kRuns = kRun < 16 ? 16 / kRun : 1;
    float squares = 0;
    for (int begin = 0; begin < args.cols; begin += kRuns * kRun * kThreads) {
      const int first = begin + kRun * Thread();
      float x[kRuns][kRun] = {}, weight[kNorm ? kRuns : 1][kRun] = {};
#pragma unroll
      for (int run = 0; run < kRuns; ++run)
#pragma unroll
        for (int eight = 0; eight < kRun; eight += 8) {
          const int at = first + run * kRun * kThreads + eight;
          if (at >= args.cols) continue;
          LoadEight(args.x + at, x[run] + eight);
          if constexpr (kNorm) LoadEight(args.norm_weight + at, weight[run] + eight);
        }
      SyncWarp();  // otherwise the compiler delays loads to save registers
#pragma unroll
      for (int run = 0; run < kRuns; ++run) {
        const int at = first + run * kRun * kThreads;
        for (int j = 0; kNorm && j < kRun; ++j) {
          squares += x[run][j] * x[run][j];
          x[run][j] *= weight[run][j];
        }
        if (at - at % SharedVector::kSpan < args.cols) vector.Set(at, x[run]);
      }
    }
    if constexpr (kNorm) {
      const Shared<float> scratch = arena.Take<float>(kMatVecWarps);
      return ReciprocalSqrt(BlockSum<kThreads>(squares, scratch) / static_cast<float>(args.cols) + args.eps);
    }
    SyncThreads();
    return 1;
  }

  static SHIFTRT_DEVICE void LoadEight(const float* from, float* to) {
    float eight[8];
    Load8(from, eight);
    for (int j = 0; j < 8; ++j) to[j] = eight[j];
  }

  // `ahead`: of the first item of the warp.
  template <typename Vector>
  static SHIFTRT_DEVICE void Rows(const Args& args, const Vector& vector, float scale, Ahead& ahead) {
    const int items = Items(args), step = GridBlocks().x * kMatVecWarps;
    int64_t position = 0, cache_row = 0;
    if constexpr (kRotated) position = *args.heads.position, cache_row = *args.heads.cache_row;
    for (int item = FirstItem(); item < items; item += step) {
      // The block begins its last rows: warp 0, which has the most of them, has no more.
      if (item - Warp() + step >= items) AllowNext();
      int rows[kRows];
      float sums[kRows];
      RowsOf(args, item, rows);
      const RowOperands<kRows> operands = LoadRowOperands(args, item, position);
      args.w.Dots(rows, vector, args.cols, ahead, sums);
      for (int r = 0; r < kRows; ++r) sums[r] = WarpSum(sums[r]) * scale;
      if (Lane() != 0) continue;
      if (args.bias != nullptr)
        for (int r = 0; r < kRows; ++r) sums[r] += operands.bias[r];
      if constexpr (kRotated) {
        WriteRotated(args, item, sums, operands, cache_row);
      } else {
        Write(args, item, sums, operands);
      }
    }
  }

  static SHIFTRT_DEVICE RowOperands<kRows> LoadRowOperands(const Args& args, int item, int64_t position) {
    RowOperands<kRows> operands = {};
    for (int r = 0; r < kRows; ++r) {
      const int row = RowOf(args, item, r);
      if (row >= args.rows) continue;
      if (args.bias != nullptr) operands.bias[r] = args.bias[row];
      if constexpr (kFinish == Finish::kAdd) operands.addend[r] = args.addend[row];
    }
    if constexpr (kRotated) {
      const int half = args.heads.head_dim / 2;
      const int64_t at = position * half + item % half;
      const RopeTable& table = args.heads.table;
      operands.cosine = table.cosine != nullptr ? table.cosine[at] : 1;
      operands.sine = table.cosine != nullptr ? table.sine[at] : 0;
      if (table.query_scale != nullptr && item / half < args.heads.heads) {
        const float scale = table.query_scale[position];
        operands.cosine *= scale;
        operands.sine *= scale;
      }
    }
    return operands;
  }

  static SHIFTRT_DEVICE void WriteRotated(const Args& args, int item, const float (&sums)[kRows],
                                          const RowOperands<kRows>& operands, int64_t cache_row) {
    const auto& to = args.heads;
    const int half = to.head_dim / 2, head = item / half, pair = item % half;
    const int first = to.pairs.First(pair), second = to.pairs.Second(pair);
    const float low = sums[0], high = sums[1];
    const int64_t cached = cache_row * to.kv_heads + (head - to.heads);  // a key's; a value's is kv_heads smaller
    if (head >= to.heads + to.kv_heads) {
      Cache* const value = to.values + (cached - to.kv_heads) * to.head_dim;
      value[first] = Narrow<Cache>(low);
      value[second] = Narrow<Cache>(high);
      return;
    }
    const float a = low * operands.cosine - high * operands.sine, b = high * operands.cosine + low * operands.sine;
    if (head < to.heads) {
      float* const query = to.q + static_cast<int64_t>(head) * to.head_dim;
      query[first] = a;
      query[second] = b;
    } else {
      Cache* const key = to.keys + cached * to.head_dim;
      key[first] = Narrow<Cache>(a);
      key[second] = Narrow<Cache>(b);
    }
  }

  static SHIFTRT_DEVICE void Write(const Args& args, int item, float (&sums)[kRows],
                                   const RowOperands<kRows>& operands) {
    for (int r = 0; r < kRows; ++r) {
      const int row = RowOf(args, item, r);
      if (row >= args.rows) continue;
      if constexpr (kFinish == Finish::kAdd) sums[r] += operands.addend[r];
      if constexpr (!kGlu) args.y[row] = sums[r];
    }
    if constexpr (kFinish == Finish::kSwiGlu) args.y[item] = Silu(sums[0]) * sums[1];
    if constexpr (kFinish == Finish::kGeGlu) args.y[item] = GeluTanh(sums[0]) * sums[1];
  }

  static SHIFTRT_DEVICE void Run(const Args& args) {
    Ahead ahead;
    LoadAhead(args, ahead);
    WaitForEarlier();
    Multiply(args, ahead);
  }
  // For the first item of the warp.
  static SHIFTRT_DEVICE void LoadAhead(const Args& args, Ahead& ahead) {
    if (FirstItem() >= Items(args)) return;
    int rows[kRows];
    RowsOf(args, FirstItem(), rows);
    args.w.LoadAhead(rows, args.cols, ahead);
  }
  static SHIFTRT_DEVICE void Multiply(const Args& args, Ahead& ahead) {
    if constexpr (kShared) {
      SharedArena arena;
      const SharedVector vector = SharedVector::Take(arena, args.cols);
      Rows(args, vector, Prepare(args, vector, arena), ahead);
    } else {
      Rows(args, PlainVector{args.x}, 1.0f, ahead);
    }
  }
};

// The launch for quantised weights. Dense ones have theirs in matvec.cu.
template <Finish kFinish>
void LaunchBlockMatVec(Stream stream, const MatVecProblem& problem, const float* addend, int multiprocessors,
                       const RotatedHeads& heads);

// The arguments of a kernel but for its weights.
template <typename Kernel, Finish kFinish>
typename Kernel::Args MatVecArgs(const typename Kernel::W& w, const MatVecProblem& problem, const float* addend,
                                 const RotatedHeads& heads) {
  typename Kernel::Args args{w,
                             problem.x,
                             problem.norm_weight,
                             problem.bias,
                             addend,
                             problem.y,
                             static_cast<int>(problem.rows),
                             static_cast<int>(problem.cols),
                             problem.eps,
                             {}};
  if constexpr (kFinish == Finish::kRotate)
    args.heads = {heads.table,
                  RopePairs::Of(heads.table, heads.head_dim),
                  heads.position,
                  heads.cache_row,
                  heads.heads,
                  heads.kv_heads,
                  heads.head_dim,
                  heads.q,
                  static_cast<typename Kernel::Cache*>(heads.keys.data),
                  static_cast<typename Kernel::Cache*>(heads.values.data)};
  return args;
}

// The product of each slot: that of MatVecKernel, by the blocks with its number along y.
template <typename T, Finish kFinish>
struct ExpertMatVecKernel {
  using Product = MatVecKernel<T, false, kFinish, 2>;
  static constexpr int kThreads = Product::kThreads, kLeastBlocks = Product::kLeastBlocks;
  static constexpr bool kAllowsNext = Product::kAllowsNext;
  struct Args {
    typename Product::Args of;
    const int32_t* experts;
    int slots_per_vector;
  };
  static SHIFTRT_DEVICE void Run(const Args& args) {
    typename Product::Args of = args.of;
    const int slot = Block().y;
    of.w.SkipRows(args.experts[slot] * of.rows, of.cols);
    of.x += static_cast<int64_t>(slot / args.slots_per_vector) * of.cols;
    of.y += static_cast<int64_t>(slot) * (Product::kGlu ? of.rows / 2 : of.rows);
    typename Product::Ahead ahead;  // it was not known before the wait which rows come first
    Product::LoadAhead(of, ahead);
    Product::Multiply(of, ahead);
  }
};

// `w` are the rows of the first expert. All slots together have the blocks of a product whose rows suffice for all
// multiprocessors, or one each. A warp has two rows: the slots make enough blocks.
template <typename T, Finish kFinish>
void LaunchOfExperts(Stream stream, const MatVecWeights<T>& w, const MatVecProblem& problem, const ExpertSlots& slots,
                     int multiprocessors) {
  using Kernel = ExpertMatVecKernel<T, kFinish>;
  using Product = typename Kernel::Product;
  const MatVecTile tile = ChooseMatVecTile(problem.rows, /*paired=*/true, false, multiprocessors);
  const int most = Blocks(2 * multiprocessors, slots.count);
  Launch<Kernel>(
      stream,
      {.x = tile.blocks < most ? tile.blocks : most,
       .y = static_cast<int>(slots.count),
       .shared_bytes = Product::SharedFor(static_cast<int>(problem.cols))},
      {MatVecArgs<Product, kFinish>(w, problem, nullptr, {}), slots.experts, static_cast<int>(slots.slots_per_vector)});
}
template <Finish kFinish>
void LaunchBlocksOfExperts(Stream stream, const MatVecProblem& problem, const ExpertSlots& slots, int multiprocessors);

}  // namespace shiftrt::gpu
