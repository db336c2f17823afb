// SPDX-License-Identifier: Apache-2.0
#include "kernels/cuda/adamw.h"
#include "kernels/cuda/warp.cuh"

namespace shiftrt::gpu {

namespace {

// Each thread processes four elements, kThreads apart: arrays of parameters start anywhere.
struct AdamWKernel {
  static constexpr int kThreads = 256, kPerThread = 4, kElements = kThreads * kPerThread;
  struct Args {
    AdamWFactors factors;
    const float* gradient;
    float *values, *first, *second;
    int64_t n;
  };
  static SHIFTRT_DEVICE void Run(const Args& args) {
    const AdamWFactors& f = args.factors;
    const int64_t begin = static_cast<int64_t>(Block().x) * kElements + Thread();
    float gradient[kPerThread], value[kPerThread], first[kPerThread], second[kPerThread];
#pragma unroll
    for (int k = 0; k < kPerThread; ++k) {
      const int64_t i = begin + k * kThreads;
      if (i >= args.n) continue;
      gradient[k] = args.gradient[i];
      value[k] = args.values[i];
      first[k] = args.first[i];
      second[k] = args.second[i];
    }
#pragma unroll
    for (int k = 0; k < kPerThread; ++k) {
      const int64_t i = begin + k * kThreads;
      if (i >= args.n) continue;
      const float g = f.gradient_scale * gradient[k];
      const float m = f.beta1 * first[k] + (1 - f.beta1) * g, v = f.beta2 * second[k] + (1 - f.beta2) * (g * g);
      args.first[i] = m;
      args.second[i] = v;
      args.values[i] = f.keep * value[k] - f.rate * m / (SquareRoot(v) * f.root + f.epsilon);
    }
  }
};

struct Square {
  const float* values;
  SHIFTRT_DEVICE double At(int64_t row, int64_t col, int64_t cols) const {
    const auto value = static_cast<double>(values[row * cols + col]);
    return value * value;
  }
};

template <typename T>
struct AbsoluteProduct {
  const T* w;
  float offset;
  const float* gradient;
  int64_t stride;
  SHIFTRT_DEVICE double At(int64_t row, int64_t col, int64_t cols) const {
    const double weight = static_cast<double>(offset) + static_cast<double>(Widen(w[row * cols + col]));
    const double product = weight * static_cast<double>(gradient[row * stride + col]);
    return product < 0 ? -product : product;
  }
};

// partial[block] = the sum of term.At(row, col) over the block's rows. `count` ends the last row.
template <typename Term>
struct SumKernel {
  static constexpr int kThreads = 256;
  struct Args {
    Term term;
    int64_t rows, cols, count;
    double* partial;
  };
  static constexpr int kShared = SharedBytes<double>(kThreads / kWarpSize);
  static SHIFTRT_DEVICE void Run(const Args& args) {
    SharedArena arena;
    const Shared<double> scratch = arena.Take<double>(kThreads / kWarpSize);
    double sum = 0;
    for (int64_t row = Block().x; row < args.rows; row += GridBlocks().x) {
      const int64_t left = args.count - row * args.cols, cols = left < args.cols ? left : args.cols;
      for (int64_t col = Thread(); col < cols; col += kThreads) sum += args.term.At(row, col, args.cols);
    }
    sum = BlockSum<kThreads>(sum, scratch);
    if (Thread() == 0) args.partial[Block().x] = sum;
  }
};

struct TotalKernel {
  static constexpr int kThreads = 256;
  struct Args {
    const double* partial;
    int count;
    double* sum;
  };
  static constexpr int kShared = SharedBytes<double>(kThreads / kWarpSize);
  static SHIFTRT_DEVICE void Run(const Args& args) {
    SharedArena arena;
    const Shared<double> scratch = arena.Take<double>(kThreads / kWarpSize);
    double sum = 0;
    for (int i = Thread(); i < args.count; i += kThreads) sum += args.partial[i];
    sum = BlockSum<kThreads>(sum, scratch);
    if (Thread() == 0) args.sum[0] = sum;
  }
};

template <typename Term>
void Sum(Stream stream, const Term& term, int64_t rows, int64_t cols, int64_t count, double* scratch, double* sum) {
  const int blocks = static_cast<int>(rows < kSumScratch ? rows : kSumScratch);
  using Kernel = SumKernel<Term>;
  if (blocks > 0)
    Launch<Kernel>(stream, {.x = blocks, .shared_bytes = Kernel::kShared}, {term, rows, cols, count, scratch});
  Launch<TotalKernel>(stream, {.shared_bytes = TotalKernel::kShared}, {scratch, blocks, sum});
}

}  // namespace

void StepAdamW(Stream stream, const AdamWFactors& factors, const float* gradient, int64_t n, float* values,
               float* first, float* second) {
  if (n > 0)
    Launch<AdamWKernel>(stream, {.x = Blocks(n, AdamWKernel::kElements)},
                        {factors, gradient, values, first, second, n});
}

void SumSquares(Stream stream, const float* values, int64_t n, double* scratch, double* sum) {
  constexpr int64_t kRow = 4096;
  Sum(stream, Square{values}, Blocks(n, kRow), kRow, n, scratch, sum);
}

void SumAbsoluteProducts(Stream stream, ConstDeviceArray w, float offset, MatrixView<const float> gradient,
                         double* scratch, double* sum) {
  WithType("a sum of products", w.dtype, [&](auto type) {
    using T = decltype(type);
    Sum(stream, AbsoluteProduct<T>{static_cast<const T*>(w.data), offset, gradient.data, gradient.stride},
        gradient.rows, gradient.cols, gradient.rows * gradient.cols, scratch, sum);
  });
}

}  // namespace shiftrt::gpu
