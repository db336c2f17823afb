// SPDX-License-Identifier: Apache-2.0
#include "kernels/cuda/rmsnorm.h"
#include "kernels/cuda/warp.cuh"

namespace shiftrt::gpu {

namespace {

// Loads eight elements of the stream and adds the pending update. If there is one, writes the sums back.
SHIFTRT_DEVICE void AddTo8(const Pending& pending, int64_t row_start, int col, float* h, float (&values)[8]) {
  Load8(h + row_start + col, values);
  if (pending.update == nullptr && pending.bias == nullptr) return;
  float more[8];
  if (pending.update != nullptr) {
    Load8(pending.update + row_start + col, more);
    for (int j = 0; j < 8; ++j) values[j] += more[j];
  }
  if (pending.bias != nullptr) {
    Load8(pending.bias + col, more);
    for (int j = 0; j < 8; ++j) values[j] += more[j];
  }
  Store8(h + row_start + col, values);
}

// There is one block per row.
template <typename T, bool kCentred>
struct AddNormKernel {
  static constexpr int kThreads = 256;
  struct Args {
    float* h;
    Pending pending;
    const float *weight, *bias;
    T* out;
    int hidden;
    float eps;
  };
  static constexpr int kShared = (kCentred ? 2 : 1) * SharedBytes<float>(kThreads / kWarpSize);
  static SHIFTRT_DEVICE void Run(const Args& args) {
    SharedArena arena;
    const Shared<float> scratch = arena.Take<float>(kThreads / kWarpSize);
    const int64_t row = static_cast<int64_t>(Block().x) * args.hidden;
    float sum = 0, squares = 0, mean = 0, values[8];
    for (int i = 8 * Thread(); i < args.hidden; i += 8 * kThreads) {
      AddTo8(args.pending, row, i, args.h, values);
      for (int j = 0; j < 8; ++j) sum += kCentred ? values[j] : values[j] * values[j];
    }
    if constexpr (kCentred) {
      const Shared<float> more_scratch = arena.Take<float>(kThreads / kWarpSize);
      mean = BlockSum<kThreads>(sum, scratch) / static_cast<float>(args.hidden);
      for (int i = 8 * Thread(); i < args.hidden; i += 8 * kThreads) {
        Load8(args.h + row + i, values);  // written above by the same thread
        for (int j = 0; j < 8; ++j) squares += (values[j] - mean) * (values[j] - mean);
      }
      squares = BlockSum<kThreads>(squares, more_scratch);
    } else {
      squares = BlockSum<kThreads>(sum, scratch);
    }
    const float scale = ReciprocalSqrt(squares / static_cast<float>(args.hidden) + args.eps);
    for (int i = 8 * Thread(); i < args.hidden; i += 8 * kThreads) {
      float weight[8], bias[8] = {};
      Load8(args.h + row + i, values);
      if (args.weight != nullptr) {
        Load8(args.weight + i, weight);
        if (kCentred && args.bias != nullptr) Load8(args.bias + i, bias);
        for (int j = 0; j < 8; ++j) {
          if constexpr (kCentred) {
            values[j] = (values[j] - mean) * scale * weight[j] + bias[j];
          } else {
            values[j] = values[j] * scale * weight[j];
          }
        }
      }
      Store8(args.out + row + i, values);
    }
  }
};

// There is one block per row.
struct AddNormedUpdateKernel {
  static constexpr int kThreads = 256;
  struct Args {
    float *h, *update;
    const float *bias, *weight;
    int hidden;
    float eps, scale;
  };
  static constexpr int kShared = SharedBytes<float>(kThreads / kWarpSize);
  static SHIFTRT_DEVICE void Run(const Args& args) {
    SharedArena arena;
    const Shared<float> scratch = arena.Take<float>(kThreads / kWarpSize);
    const int64_t row = static_cast<int64_t>(Block().x) * args.hidden;
    float squares = 0, values[8], h[8];
    for (int i = 8 * Thread(); i < args.hidden; i += 8 * kThreads) {
      AddTo8({nullptr, args.bias}, row, i, args.update, values);
      for (int j = 0; j < 8; ++j) squares += values[j] * values[j];
    }
    const float mean = BlockSum<kThreads>(squares, scratch) / static_cast<float>(args.hidden);
    const float scale = (args.weight != nullptr ? ReciprocalSqrt(mean + args.eps) : 1) * args.scale;
    for (int i = 8 * Thread(); i < args.hidden; i += 8 * kThreads) {
      float weight[8] = {1, 1, 1, 1, 1, 1, 1, 1};
      Load8(args.update + row + i, values);  // written above by the same thread
      if (args.weight != nullptr) Load8(args.weight + i, weight);
      Load8(args.h + row + i, h);
      for (int j = 0; j < 8; ++j) {
        values[j] = values[j] * scale * weight[j];
        h[j] += values[j];
      }
      Store8(args.update + row + i, values);
      Store8(args.h + row + i, h);
    }
  }
};

// Each thread processes eight elements.
struct AddPendingKernel {
  static constexpr int kThreads = 256;
  struct Args {
    float* h;
    Pending pending;
    int64_t size;
    int hidden;
  };
  static SHIFTRT_DEVICE void Run(const Args& args) {
    const int64_t at = 8 * (static_cast<int64_t>(Block().x) * kThreads + Thread());
    if (at >= args.size) return;
    const int col = static_cast<int>(at % args.hidden);
    float values[8];
    AddTo8(args.pending, at - col, col, args.h, values);
  }
};

// out = a + kSign b.
template <int kSign>
struct SumKernel {
  static constexpr int kThreads = 256;
  struct Args {
    const float *a, *b;
    float* out;
    int64_t size;
  };
  static SHIFTRT_DEVICE void Run(const Args& args) {
    const int64_t at = 8 * (static_cast<int64_t>(Block().x) * kThreads + Thread());
    if (at >= args.size) return;
    float a[8], b[8];
    Load8(args.a + at, a);
    Load8(args.b + at, b);
    for (int j = 0; j < 8; ++j) a[j] += kSign * b[j];
    Store8(args.out + at, a);
  }
};

void RequireStream(const char* operation, const MatrixView<float>& h) {
  Require(h.cols % 8 == 0, operation, "a hidden size that is a multiple of 8", h.cols);
  Require(h.stride == h.cols, operation, "dense rows, a stride of the hidden size", h.stride);
}

}  // namespace

void AddNorm(Stream stream, MatrixView<float> h, const Pending& pending, const Norm& norm, DeviceArray out) {
  RequireStream("a norm", h);
  if (h.rows == 0) return;
  WithType("a norm", out.dtype, [&](auto type) {
    using T = decltype(type);
    const auto launch = [&](auto kernel) {
      using Kernel = decltype(kernel);
      Launch<Kernel>(
          stream, {.x = static_cast<int>(h.rows), .shared_bytes = Kernel::kShared},
          {h.data, pending, norm.weight, norm.bias, static_cast<T*>(out.data), static_cast<int>(h.cols), norm.eps});
    };
    if (norm.centred) {
      launch(AddNormKernel<T, true>());
    } else {
      launch(AddNormKernel<T, false>());
    }
  });
}

void AddNormedUpdate(Stream stream, MatrixView<float> h, float* update, const float* bias, const float* weight,
                     float eps, float scale) {
  RequireStream("RMSNorm of an update", h);
  if (h.rows == 0) return;
  using Kernel = AddNormedUpdateKernel;
  Launch<Kernel>(stream, {.x = static_cast<int>(h.rows), .shared_bytes = Kernel::kShared},
                 {h.data, update, bias, weight, static_cast<int>(h.cols), eps, scale});
}

void AddPending(Stream stream, MatrixView<float> h, const Pending& pending) {
  RequireStream("adding an update", h);
  const int64_t size = h.rows * h.cols;
  if (size == 0) return;
  Launch<AddPendingKernel>(stream, {.x = Blocks(size, 8 * AddPendingKernel::kThreads)},
                           {h.data, pending, size, static_cast<int>(h.cols)});
}

void Add(Stream stream, const float* a, const float* b, int64_t n, float* out) {
  Require(n % 8 == 0, "addition", "a multiple of 8 elements", n);
  if (n > 0) Launch<SumKernel<1>>(stream, {.x = Blocks(n, 8 * SumKernel<1>::kThreads)}, {a, b, out, n});
}

void Subtract(Stream stream, const float* a, const float* b, int64_t n, float* out) {
  Require(n % 8 == 0, "subtraction", "a multiple of 8 elements", n);
  if (n > 0) Launch<SumKernel<-1>>(stream, {.x = Blocks(n, 8 * SumKernel<-1>::kThreads)}, {a, b, out, n});
}

}  // namespace shiftrt::gpu
