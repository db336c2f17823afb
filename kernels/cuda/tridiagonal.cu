// SPDX-License-Identifier: Apache-2.0
#include "kernels/cuda/tridiagonal.h"
#include "kernels/cuda/warp.cuh"

namespace shiftrt::gpu {

namespace {

// Rows whose elements a thread loads before it uses the first: their latency is paid once.
constexpr int kRows = 16;

// b (n, columns), of which a thread sweeps one column.
struct Sweep {
  int64_t n, columns, column;

  // y = B^-1 b, from the first row down.
  SHIFTRT_DEVICE void Down(const DeviceBidiagonal& s, const double* b, double* y) const {
    double last = 0;
    for (int64_t first = 0; first < n; first += kRows) {
      double values[kRows], off_diagonal[kRows];
#pragma unroll
      for (int r = 0; r < kRows; ++r) {
        if (first + r >= n) continue;
        values[r] = b[(first + r) * columns + column];
        off_diagonal[r] = s.off_diagonal[first + r];
      }
#pragma unroll
      for (int r = 0; r < kRows; ++r) {
        if (first + r >= n) continue;
        last = values[r] - off_diagonal[r] * last;
        y[(first + r) * columns + column] = last;
      }
    }
  }

  // x = B'^-1 D^-1 y, from the last row up; take(row, x of that row).
  template <typename Take>
  SHIFTRT_DEVICE void Up(const DeviceBidiagonal& s, const double* y, const Take& take) const {
    double x = 0, below = 0;
    for (int64_t end = n; end > 0; end -= kRows) {
      double values[kRows], off_diagonal[kRows];
#pragma unroll
      for (int r = 0; r < kRows; ++r) {
        const int64_t row = end - 1 - r;
        if (row < 0) continue;
        values[r] = y[row * columns + column] * s.inverse[row];
        off_diagonal[r] = s.off_diagonal[row];
      }
#pragma unroll
      for (int r = 0; r < kRows; ++r) {
        if (end - 1 - r < 0) continue;
        x = values[r] - below * x;
        take(end - 1 - r, x);
        below = off_diagonal[r];
      }
    }
  }
};

// One block per 32 columns and factorization.
struct ShrunkSquaresKernel {
  static constexpr int kThreads = kColumnsPerBlock;
  struct Args {
    ShrunkSquaresCall call;
  };
  static SHIFTRT_DEVICE void Run(const Args& args) {
    const ShrunkSquaresCall& call = args.call;
    const int64_t which = Block().y;
    const DeviceBidiagonal s = {call.shrinkages.off_diagonal + which * call.n,
                                call.shrinkages.inverse + which * call.n};
    const Sweep sweep = {call.n, call.columns, static_cast<int64_t>(Block().x) * kThreads + Thread()};
    double sum = 0;
    if (sweep.column < call.columns) {
      double* const y = call.scratch + which * call.n * call.columns;
      sweep.Down(s, call.b, y);
      double last = 0;
      sweep.Up(s, y, [&](int64_t row, double x) {
        last = x - call.root.off_diagonal[row] * last;
        sum += last * last * call.root.inverse[row];
      });
    }
    sum = WarpSum(sum);
    if (Thread() == 0) call.sums[which * GridBlocks().x + Block().x] = sum;
  }
};

struct DiagonalKernel {
  static constexpr int kThreads = 256;
  struct Args {
    double value;
    int64_t n;
    double* a;
  };
  static SHIFTRT_DEVICE void Run(const Args& args) {
    const int64_t i = static_cast<int64_t>(Block().x) * kThreads + Thread();
    if (i < args.n) args.a[i * args.n + i] += args.value;
  }
};

}  // namespace

void ComputeShrunkSquares(Stream stream, const ShrunkSquaresCall& call) {
  Require(call.count <= kMostBlocksAlongZ, "shrinkage", "at most 65535 factorizations", call.count);
  if (call.count == 0 || call.columns == 0) return;
  Launch<ShrunkSquaresKernel>(stream, {.x = Blocks(call.columns, kColumnsPerBlock), .y = static_cast<int>(call.count)},
                              {call});
}

void AddToDiagonal(Stream stream, double value, int64_t n, double* a) {
  if (n == 0) return;
  Launch<DiagonalKernel>(stream, {.x = Blocks(n, DiagonalKernel::kThreads)}, {value, n, a});
}

}  // namespace shiftrt::gpu
