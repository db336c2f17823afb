#include "kernels/cuda/matvec.h"
#include "kernels/cuda/warp.cuh"

namespace shiftrt::gpu {

namespace {

constexpr int kMatVecThreads = 256, kMatVecWarps = kMatVecThreads / kWarpSize;
constexpr int kBlocksPerMultiprocessor = 4;

// The vector as a block sees it: where it is, or normed (but for its scale) in shared memory.
struct PlainVector {
  const float* x;
  SHIFTRT_DEVICE void Get(int at, float (&out)[8]) const { Load8(x + at, out); }
};
struct SharedVector {
  Shared<float> x;
  SHIFTRT_DEVICE void Get(int at, float (&out)[8]) const {
    float low[4], high[4];
    LoadShared4(x + at, low);
    LoadShared4(x + at + 4, high);
    for (int j = 0; j < 4; ++j) {
      out[j] = low[j];
      out[j + 4] = high[j];
    }
  }
};

// A lane's part of the dot product of one row with the vector. Several loads of weights are under way at a time.
template <typename T, typename Vector>
SHIFTRT_DEVICE float LaneDot(const T* row, const Vector& vector, int cols) {
  constexpr int kUnroll = 4, kStep = 8 * kWarpSize;
  float sum = 0, x[8];
  int at = 8 * Lane();
  for (; at + (kUnroll - 1) * kStep < cols; at += kUnroll * kStep) {
    float w[kUnroll][8];
#pragma unroll
    for (int u = 0; u < kUnroll; ++u) LoadOnce8(row + at + u * kStep, w[u]);
#pragma unroll
    for (int u = 0; u < kUnroll; ++u) {
      vector.Get(at + u * kStep, x);
      for (int j = 0; j < 8; ++j) sum += w[u][j] * x[j];
    }
  }
  for (; at < cols; at += kStep) {
    float w[8];
    LoadOnce8(row + at, w);
    vector.Get(at, x);
    for (int j = 0; j < 8; ++j) sum += w[j] * x[j];
  }
  return sum;
}

enum class Finish { kStore, kAdd, kSwiGlu };

template <typename T, bool kNorm, Finish kFinish>
struct MatVecKernel {
  static constexpr int kThreads = kMatVecThreads;
  struct Args {
    const T* w;
    const float *x, *norm_weight, *bias, *addend;
    float* y;
    int rows, cols;
    float eps;
  };
  static constexpr int SharedFor(int cols) {
    return kNorm ? SharedBytes<float>(cols) + SharedBytes<float>(kMatVecWarps) : 0;
  }

  // A warp's first row of weights, which no launch writes: it comes while the launches that make x come to their end.
  static SHIFTRT_DEVICE void Ahead(const Args& args) {
    constexpr int kLine = 128 / sizeof(T);
    const int row = Block().x * kMatVecWarps + Warp();
    if (row >= args.rows) return;
    const T* const weights = args.w + static_cast<int64_t>(row) * args.cols;
    for (int at = Lane() * kLine; at < args.cols; at += kWarpSize * kLine) PrefetchLine(weights + at);
  }

  // Leaves x * norm_weight in shared memory; returns the norm's scale.
  static SHIFTRT_DEVICE float Prepare(const Args& args, Shared<float> normed, Shared<float> scratch) {
    float squares = 0;
    for (int i = 8 * Thread(); i < args.cols; i += 8 * kThreads) {
      float x[8], weight[8];
      Load8(args.x + i, x);
      Load8(args.norm_weight + i, weight);
      for (int j = 0; j < 8; ++j) {
        squares += x[j] * x[j];
        normed[i + j] = x[j] * weight[j];
      }
    }
    return ReciprocalSqrt(BlockSum<kThreads>(squares, scratch) / static_cast<float>(args.cols) + args.eps);
  }

  template <typename Vector>
  static SHIFTRT_DEVICE float Product(const Args& args, const Vector& vector, float scale, int row) {
    const float dot = WarpSum(LaneDot(args.w + static_cast<int64_t>(row) * args.cols, vector, args.cols)) * scale;
    return args.bias != nullptr ? dot + args.bias[row] : dot;
  }

  template <typename Vector>
  static SHIFTRT_DEVICE void Rows(const Args& args, const Vector& vector, float scale) {
    const int out_rows = kFinish == Finish::kSwiGlu ? args.rows / 2 : args.rows;
    for (int row = Block().x * kMatVecWarps + Warp(); row < out_rows; row += GridBlocks().x * kMatVecWarps) {
      float value = Product(args, vector, scale, row);
      if constexpr (kFinish == Finish::kSwiGlu) value = Silu(value) * Product(args, vector, scale, row + out_rows);
      if constexpr (kFinish == Finish::kAdd) value += args.addend[row];
      if (Lane() == 0) args.y[row] = value;
    }
  }

  static SHIFTRT_DEVICE void Run(const Args& args) {
    if constexpr (kNorm) {
      SharedArena arena;
      const Shared<float> normed = arena.Take<float>(args.cols), scratch = arena.Take<float>(kMatVecWarps);
      const float scale = Prepare(args, normed, scratch);
      Rows(args, SharedVector{normed}, scale);
    } else {
      Rows(args, PlainVector{args.x}, 1.0f);
    }
  }
};

template <Finish kFinish>
void LaunchMatVec(Stream stream, const MatVecProblem& problem, const float* addend, int multiprocessors) {
  Require(problem.cols % 8 == 0, "matrix-vector product", "a multiple of 8 columns", problem.cols);
  if (problem.rows == 0) return;
  WithType("matrix-vector product", problem.w.dtype, [&](auto type) {
    using T = decltype(type);
    const auto launch = [&](auto kernel) {
      using Kernel = decltype(kernel);
      const int64_t out_rows = kFinish == Finish::kSwiGlu ? problem.rows / 2 : problem.rows;
      Launch<Kernel>(stream,
                     {.x = MatVecBlocks(out_rows, multiprocessors),
                      .shared_bytes = Kernel::SharedFor(static_cast<int>(problem.cols))},
                     {static_cast<const T*>(problem.w.data), problem.x, problem.norm_weight, problem.bias, addend,
                      problem.y, static_cast<int>(problem.rows), static_cast<int>(problem.cols), problem.eps});
    };
    if (problem.norm_weight != nullptr) {
      launch(MatVecKernel<T, true, kFinish>());
    } else {
      launch(MatVecKernel<T, false, kFinish>());
    }
  });
}

}  // namespace

int MatVecBlocks(int64_t rows, int multiprocessors) {
  const int useful = Blocks(rows, kMatVecWarps), resident = kBlocksPerMultiprocessor * multiprocessors;
  return useful < resident ? useful : resident;
}

void MatVec(Stream stream, const MatVecProblem& problem, int multiprocessors) {
  LaunchMatVec<Finish::kStore>(stream, problem, nullptr, multiprocessors);
}

void MatVecAdd(Stream stream, const MatVecProblem& problem, const float* addend, int multiprocessors) {
  LaunchMatVec<Finish::kAdd>(stream, problem, addend, multiprocessors);
}

void MatVecSwiGlu(Stream stream, const MatVecProblem& problem, int multiprocessors) {
  Require(problem.rows % 2 == 0, "gate and up projection", "an even number of rows", problem.rows);
  LaunchMatVec<Finish::kSwiGlu>(stream, problem, nullptr, multiprocessors);
}

}  // namespace shiftrt::gpu
