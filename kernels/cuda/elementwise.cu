#include "kernels/cuda/elementwise.h"
#include "kernels/cuda/platform.cuh"

namespace shiftrt::gpu {

namespace {

// A block a token.
template <typename T>
struct EmbedKernel {
  static constexpr int kThreads = 128;
  struct Args {
    const int32_t* tokens;
    const T* table;
    float* out;
    int hidden;
  };
  static SHIFTRT_DEVICE void Run(const Args& args) {
    const int64_t token = args.tokens[Block().x];
    for (int i = 8 * Thread(); i < args.hidden; i += 8 * kThreads) {
      float values[8];
      Load8(args.table + token * args.hidden + i, values);
      Store8(args.out + static_cast<int64_t>(Block().x) * args.hidden + i, values);
    }
  }
};

// A thread eight columns of a token; a token's columns along y.
template <typename T>
struct SwiGluKernel {
  static constexpr int kThreads = 128;
  struct Args {
    const T* gate_up;
    const float* bias;
    T* out;
    int n;
  };
  static SHIFTRT_DEVICE void Run(const Args& args) {
    const int i = 8 * (Block().y * kThreads + Thread());
    if (i >= args.n) return;
    const int64_t token = Block().x;
    const T* const row = args.gate_up + token * 2 * args.n;
    float gate[8], up[8], bias[8];
    Load8(row + i, gate);
    Load8(row + args.n + i, up);
    if (args.bias != nullptr) {
      Load8(args.bias + i, bias);
      for (int j = 0; j < 8; ++j) gate[j] += bias[j];
      Load8(args.bias + args.n + i, bias);
      for (int j = 0; j < 8; ++j) up[j] += bias[j];
    }
    for (int j = 0; j < 8; ++j) gate[j] = Silu(gate[j]) * up[j];
    Store8(args.out + token * args.n + i, gate);
  }
};

}  // namespace

void Embed(Stream stream, const int32_t* tokens, int64_t count, ConstDeviceArray table, int64_t hidden, float* out) {
  Require(hidden % 8 == 0, "embedding", "a hidden size that is a multiple of 8", hidden);
  if (count == 0) return;
  WithType("embedding", table.dtype, [&](auto type) {
    using T = decltype(type);
    Launch<EmbedKernel<T>>(stream, {.x = static_cast<int>(count)},
                           {tokens, static_cast<const T*>(table.data), out, static_cast<int>(hidden)});
  });
}

void SwiGlu(Stream stream, ConstDeviceArray gate_up, const float* bias, int64_t tokens, int64_t n, DeviceArray out) {
  Require(n % 8 == 0, "SwiGLU", "an intermediate size that is a multiple of 8", n);
  Require(gate_up.dtype == out.dtype, "SwiGLU", "one type for input and output, not bytes",
          static_cast<int64_t>(SizeOf(out.dtype)));
  if (tokens == 0) return;
  WithType("SwiGLU", out.dtype, [&](auto type) {
    using T = decltype(type);
    using Kernel = SwiGluKernel<T>;
    Launch<Kernel>(stream, {.x = static_cast<int>(tokens), .y = Blocks(n, 8 * Kernel::kThreads)},
                   {static_cast<const T*>(gate_up.data), bias, static_cast<T*>(out.data), static_cast<int>(n)});
  });
}

}  // namespace shiftrt::gpu
