// SPDX-License-Identifier: Apache-2.0
#include <type_traits>

#include "kernels/cuda/matvec.h"
#include "kernels/cuda/rope_pairs.cuh"
#include "kernels/cuda/warp.cuh"

namespace shiftrt::gpu {

namespace {

constexpr int kMatVecThreads = 256, kMatVecWarps = kMatVecThreads / kWarpSize;
// Blocks per multiprocessor. A kernel takes so many registers that no more fit. With room for twice as many, products
// with a norm took a fifth longer on an H200 where launches overlap, presumably because a multiprocessor that finishes
// the launch in front early takes more than its share of the blocks.
constexpr int BlocksPerMultiprocessor(bool norm) { return norm ? 3 : 2; }
// Each lane has 128 bytes of weights in flight, so two blocks have 64 KiB. With the bandwidth of 4.8 TB/s and the
// latency of 800 ns of an H200, 29 KB per multiprocessor are needed.
constexpr int kBytesUnderWay = 128;

// The vector as a block reads it: in global memory, or multiplied by the norm's weight (without the scale) in shared
// memory. There, the two halves of every eight elements are stored in separate arrays, which avoids bank conflicts of
// 16-byte reads.
struct PlainVector {
  static constexpr bool kFar = true;  // its elements are loaded together with the weights
  const float* x;
  SHIFTRT_DEVICE void Get(int at, float (&out)[8]) const { Load8(x + at, out); }
};
struct SharedVector {
  static constexpr bool kFar = false;
  Shared<float> low, high;
  SHIFTRT_DEVICE void Get(int at, float (&out)[8]) const {
    float a[4], b[4];
    LoadShared4(low + at / 2, a);
    LoadShared4(high + at / 2, b);
    for (int j = 0; j < 4; ++j) {
      out[j] = a[j];
      out[j + 4] = b[j];
    }
  }
  SHIFTRT_DEVICE void Set(int at, const float (&in)[8]) const {
    StoreShared4(low + at / 2, in[0], in[1], in[2], in[3]);
    StoreShared4(high + at / 2, in[4], in[5], in[6], in[7]);
  }
};

// One lane's part of the dot products of kRows rows with the vector. Each element of the vector is read once for all
// rows, and together with the weights if it is in global memory.
template <int kRows, typename T, typename Vector>
SHIFTRT_DEVICE void LaneDots(const T* const (&rows)[kRows], const Vector& vector, int cols, float (&sums)[kRows]) {
  constexpr int kStep = 8 * kWarpSize, kUnroll = kBytesUnderWay / (kRows * 8 * static_cast<int>(sizeof(T)));
  for (int r = 0; r < kRows; ++r) sums[r] = 0;
  for (int first = 0; first < cols; first += kUnroll * kStep) {
    const int at = first + 8 * Lane();
    Raw8<T> raw[kUnroll][kRows];
#pragma unroll
    for (int u = 0; u < kUnroll; ++u)
#pragma unroll
      for (int r = 0; r < kRows; ++r)
        if (at + u * kStep < cols) raw[u][r] = LoadOnce8(rows[r] + at + u * kStep);
    float x[Vector::kFar ? kUnroll : 1][8];
#pragma unroll
    for (int u = 0; Vector::kFar && u < kUnroll; ++u)
      if (at + u * kStep < cols) vector.Get(at + u * kStep, x[u]);
    SyncWarp();  // otherwise the compiler delays loads to save registers
#pragma unroll
    for (int u = 0; u < kUnroll; ++u) {
      if (at + u * kStep >= cols) continue;
      float(&piece)[8] = x[Vector::kFar ? u : 0];
      if constexpr (!Vector::kFar) vector.Get(at + u * kStep, piece);
      float w[8];
#pragma unroll
      for (int r = 0; r < kRows; ++r) {
        Widen8(raw[u][r], w);
        for (int j = 0; j < 8; ++j) sums[r] += w[j] * piece[j];
      }
    }
  }
}

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
  static constexpr int kThreads = kMatVecThreads;
  static constexpr bool kAllowsNext = true;
  static constexpr bool kGlu = IsGlu(kFinish), kRotated = kFinish == Finish::kRotate;
  static_assert(!IsPaired(kFinish) || kRows == 2);
  // Without a number, the compiler would delay loads of float32.
  static constexpr int kLeastBlocks = kNorm || sizeof(T) == 4 ? BlocksPerMultiprocessor(kNorm) : 0;
  struct Args {
    const T* w;
    const float *x, *norm_weight, *bias, *addend;
    float* y;
    int rows, cols;
    float eps;
    std::conditional_t<kRotated, RotatedOut<T>, Nothing> heads;
  };
  static constexpr int SharedFor(int cols) {
    return kNorm ? 2 * SharedBytes<float>(cols / 2) + SharedBytes<float>(kMatVecWarps) : 0;
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
  // The start of a row of weights; of the last row if there is no such row.
  static SHIFTRT_DEVICE const T* Weights(const Args& args, int row) {
    return args.w + static_cast<int64_t>(row < args.rows ? row : args.rows - 1) * args.cols;
  }

  // Writes x * norm_weight to shared memory and returns the scale of the norm.
  static SHIFTRT_DEVICE float Prepare(const Args& args, const SharedVector& normed, Shared<float> scratch) {
    float squares = 0;
    for (int i = 8 * Thread(); i < args.cols; i += 8 * kThreads) {
      float x[8], weight[8];
      Load8(args.x + i, x);
      Load8(args.norm_weight + i, weight);
      for (int j = 0; j < 8; ++j) {
        squares += x[j] * x[j];
        x[j] *= weight[j];
      }
      normed.Set(i, x);
    }
    return ReciprocalSqrt(BlockSum<kThreads>(squares, scratch) / static_cast<float>(args.cols) + args.eps);
  }

  template <typename Vector>
  static SHIFTRT_DEVICE void Rows(const Args& args, const Vector& vector, float scale) {
    const int items = Items(args), step = GridBlocks().x * kMatVecWarps;
    int64_t position = 0, cache_row = 0;
    if constexpr (kRotated) position = *args.heads.position, cache_row = *args.heads.cache_row;
    for (int item = Block().x * kMatVecWarps + Warp(); item < items; item += step) {
      // The block begins its last rows: warp 0, which has the most of them, has no more.
      if (item - Warp() + step >= items) AllowNext();
      const T* weights[kRows];
      float sums[kRows];
      for (int r = 0; r < kRows; ++r) weights[r] = Weights(args, RowOf(args, item, r));
      const RowOperands<kRows> operands = LoadRowOperands(args, item, position);
      LaneDots<kRows>(weights, vector, args.cols, sums);
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
      T* const value = to.values + (cached - to.kv_heads) * to.head_dim;
      value[first] = Narrow<T>(low);
      value[second] = Narrow<T>(high);
      return;
    }
    const float a = low * operands.cosine - high * operands.sine, b = high * operands.cosine + low * operands.sine;
    if (head < to.heads) {
      float* const query = to.q + static_cast<int64_t>(head) * to.head_dim;
      query[first] = a;
      query[second] = b;
    } else {
      T* const key = to.keys + cached * to.head_dim;
      key[first] = Narrow<T>(a);
      key[second] = Narrow<T>(b);
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
    if constexpr (kNorm) {
      SharedArena arena;
      const Shared<float> low = arena.Take<float>(args.cols / 2), high = arena.Take<float>(args.cols / 2),
                          scratch = arena.Take<float>(kMatVecWarps);
      const SharedVector normed{low, high};
      const float scale = Prepare(args, normed, scratch);
      Rows(args, normed, scale);
    } else {
      Rows(args, PlainVector{args.x}, 1.0f);
    }
  }
};

template <Finish kFinish>
void LaunchMatVec(Stream stream, const MatVecProblem& problem, const float* addend, int multiprocessors,
                  const RotatedHeads& heads = {}) {
  Require(problem.cols % 8 == 0, "matrix-vector product", "a multiple of 8 columns", problem.cols);
  if (problem.rows == 0) return;
  const MatVecTile tile =
      ChooseMatVecTile(problem.rows, IsPaired(kFinish), problem.norm_weight != nullptr, multiprocessors);
  WithType("matrix-vector product", problem.w.dtype, [&](auto type) {
    using T = decltype(type);
    const auto launch = [&](auto kernel) {
      using Kernel = decltype(kernel);
      typename Kernel::Args args{static_cast<const T*>(problem.w.data),
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
                      static_cast<T*>(heads.keys.data),
                      static_cast<T*>(heads.values.data)};
      Launch<Kernel>(stream, {.x = tile.blocks, .shared_bytes = Kernel::SharedFor(static_cast<int>(problem.cols))},
                     args);
    };
    const auto with_rows = [&](auto norm) {
      if constexpr (!IsPaired(kFinish))
        if (tile.rows_per_warp == 1) return launch(MatVecKernel<T, norm(), kFinish, 1>());
      launch(MatVecKernel<T, norm(), kFinish, 2>());
    };
    if (problem.norm_weight != nullptr) {
      with_rows(std::true_type());
    } else {
      with_rows(std::false_type());
    }
  });
}

}  // namespace

MatVecTile ChooseMatVecTile(int64_t rows, bool paired, bool norm, int multiprocessors) {
  const int pairs = Blocks(rows, 2 * kMatVecWarps), resident = BlocksPerMultiprocessor(norm) * multiprocessors;
  const bool two = paired || pairs >= multiprocessors;
  const int useful = two ? pairs : Blocks(rows, kMatVecWarps);
  return {two ? 2 : 1, useful < resident ? useful : resident};
}

void MatVec(Stream stream, const MatVecProblem& problem, int multiprocessors) {
  LaunchMatVec<Finish::kStore>(stream, problem, nullptr, multiprocessors);
}

void MatVecAdd(Stream stream, const MatVecProblem& problem, const float* addend, int multiprocessors) {
  LaunchMatVec<Finish::kAdd>(stream, problem, addend, multiprocessors);
}

void MatVecGated(Stream stream, Activation activation, const MatVecProblem& problem, int multiprocessors) {
  Require(problem.rows % 2 == 0, "gate and up projection", "an even number of rows", problem.rows);
  const auto launch = activation == Activation::kSilu ? LaunchMatVec<Finish::kSwiGlu> : LaunchMatVec<Finish::kGeGlu>;
  launch(stream, problem, nullptr, multiprocessors, {});
}

void MatVecRotate(Stream stream, const MatVecProblem& problem, const RotatedHeads& heads, int multiprocessors) {
  Require(heads.head_dim > 0 && heads.head_dim % 2 == 0, "rotated product", "an even head dimension", heads.head_dim);
  Require(problem.rows == static_cast<int64_t>(heads.heads + 2 * heads.kv_heads) * heads.head_dim, "rotated product",
          "as many rows as all heads have", problem.rows);
  Require(heads.keys.dtype == problem.w.dtype && heads.values.dtype == problem.w.dtype, "rotated product",
          "a cache in the type of the weights, not one of bytes", static_cast<int64_t>(SizeOf(heads.keys.dtype)));
  LaunchMatVec<Finish::kRotate>(stream, problem, nullptr, multiprocessors, heads);
}

}  // namespace shiftrt::gpu
