// SPDX-License-Identifier: Apache-2.0
#include "kernels/cuda/activation.cuh"
#include "kernels/cuda/elementwise.h"

namespace shiftrt::gpu {

namespace {

// There is one block per row.
template <typename T, typename Out>
struct GatherKernel {
  static constexpr int kThreads = 128;
  struct Args {
    const int32_t* rows;
    const T* table;
    Out* out;
    int width;
    float scale;
  };
  static SHIFTRT_DEVICE void Run(const Args& args) {
    const int64_t row = args.rows[Block().x];
    for (int i = 8 * Thread(); i < args.width; i += 8 * kThreads) {
      float values[8];
      Load8(args.table + row * args.width + i, values);
      for (int j = 0; j < 8; ++j) values[j] *= args.scale;
      Store8(args.out + static_cast<int64_t>(Block().x) * args.width + i, values);
    }
  }
};

// There is one block per row.
template <typename T>
struct WidenKernel {
  static constexpr int kThreads = 128;
  struct Args {
    const T* from;
    float* out;
    int width, stride;
  };
  static SHIFTRT_DEVICE void Run(const Args& args) {
    const int64_t row = Block().x;
    for (int i = 8 * Thread(); i < args.width; i += 8 * kThreads) {
      float values[8];
      Load8(args.from + row * args.width + i, values);
      Store8(args.out + row * args.stride + i, values);
    }
  }
};

// Each thread processes eight columns of a token. The blocks along y divide the columns of a token.
template <typename T, Activation kActivation>
struct GatedUnitKernel {
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
    for (int j = 0; j < 8; ++j) gate[j] = Activate<kActivation>(gate[j]) * up[j];
    Store8(args.out + token * args.n + i, gate);
  }
};

// Each thread processes eight columns of a token. The blocks along y divide the columns of a token.
template <typename T, Activation kActivation>
struct ActivateKernel {
  static constexpr int kThreads = 128;
  struct Args {
    const T* x;
    const float* bias;
    T* out;
    int n;
  };
  static SHIFTRT_DEVICE void Run(const Args& args) {
    const int i = 8 * (Block().y * kThreads + Thread());
    if (i >= args.n) return;
    const int64_t at = static_cast<int64_t>(Block().x) * args.n + i;
    float values[8], bias[8] = {};
    Load8(args.x + at, values);
    if (args.bias != nullptr) Load8(args.bias + i, bias);
    for (int j = 0; j < 8; ++j) values[j] = Activate<kActivation>(values[j] + bias[j]);
    Store8(args.out + at, values);
  }
};

struct SoftCapKernel {
  static constexpr int kThreads = 256;
  struct Args {
    float* x;
    int64_t n;
    float cap;
  };
  static SHIFTRT_DEVICE void Run(const Args& args) {
    const int64_t i = static_cast<int64_t>(Block().x) * kThreads + Thread();
    if (i < args.n) args.x[i] = args.cap * Tanh(args.x[i] / args.cap);
  }
};

template <Activation kActivation>
void GatedUnit(Stream stream, const char* name, ConstDeviceArray gate_up, const float* bias, int64_t tokens, int64_t n,
               DeviceArray out) {
  Require(n % 8 == 0, name, "an intermediate size that is a multiple of 8", n);
  Require(gate_up.dtype == out.dtype, name, "one type for input and output, not bytes",
          static_cast<int64_t>(SizeOf(out.dtype)));
  if (tokens == 0) return;
  WithType(name, out.dtype, [&](auto type) {
    using T = decltype(type);
    using Kernel = GatedUnitKernel<T, kActivation>;
    Launch<Kernel>(stream, {.x = static_cast<int>(tokens), .y = Blocks(n, 8 * Kernel::kThreads)},
                   {static_cast<const T*>(gate_up.data), bias, static_cast<T*>(out.data), static_cast<int>(n)});
  });
}

}  // namespace

void Embed(Stream stream, const int32_t* tokens, int64_t count, ConstDeviceArray table, int64_t hidden, float* out,
           float scale) {
  Require(hidden % 8 == 0, "embedding", "a hidden size that is a multiple of 8", hidden);
  if (count == 0) return;
  WithType("embedding", table.dtype, [&](auto type) {
    using T = decltype(type);
    Launch<GatherKernel<T, float>>(stream, {.x = static_cast<int>(count)},
                                   {tokens, static_cast<const T*>(table.data), out, static_cast<int>(hidden), scale});
  });
}

void Gather(Stream stream, const int32_t* rows, int64_t count, ConstDeviceArray from, int64_t width, DeviceArray out) {
  Require(width % 8 == 0, "gathering rows", "a width that is a multiple of 8", width);
  Require(from.dtype == out.dtype, "gathering rows", "one type for input and output, not bytes",
          static_cast<int64_t>(SizeOf(out.dtype)));
  if (count == 0) return;
  WithType("gathering rows", out.dtype, [&](auto type) {
    using T = decltype(type);
    Launch<GatherKernel<T, T>>(
        stream, {.x = static_cast<int>(count)},
        {rows, static_cast<const T*>(from.data), static_cast<T*>(out.data), static_cast<int>(width), 1.0f});
  });
}

void Widen(Stream stream, ConstDeviceArray from, int64_t count, int64_t width, float* out, int64_t stride) {
  for (const int64_t length : {width, stride})
    Require(length % 8 == 0, "widening rows", "a row length that is a multiple of 8", length);
  if (count == 0) return;
  WithType("widening rows", from.dtype, [&](auto type) {
    using T = decltype(type);
    Launch<WidenKernel<T>>(stream, {.x = static_cast<int>(count)},
                           {static_cast<const T*>(from.data), out, static_cast<int>(width), static_cast<int>(stride)});
  });
}

void SwiGlu(Stream stream, ConstDeviceArray gate_up, const float* bias, int64_t tokens, int64_t n, DeviceArray out) {
  GatedUnit<Activation::kSilu>(stream, "SwiGLU", gate_up, bias, tokens, n, out);
}

void GeGlu(Stream stream, ConstDeviceArray gate_up, const float* bias, int64_t tokens, int64_t n, DeviceArray out) {
  GatedUnit<Activation::kGeluTanh>(stream, "GeGLU", gate_up, bias, tokens, n, out);
}

void Activate(Stream stream, Activation activation, ConstDeviceArray x, const float* bias, int64_t tokens, int64_t n,
              DeviceArray out) {
  Require(n % 8 == 0, "an activation", "an intermediate size that is a multiple of 8", n);
  Require(x.dtype == out.dtype, "an activation", "one type for input and output, not bytes",
          static_cast<int64_t>(SizeOf(out.dtype)));
  if (tokens == 0) return;
  WithType("an activation", out.dtype, [&](auto type) {
    using T = decltype(type);
    WithActivation(activation, [&](auto kind) {
      using Kernel = ActivateKernel<T, kind()>;
      Launch<Kernel>(stream, {.x = static_cast<int>(tokens), .y = Blocks(n, 8 * Kernel::kThreads)},
                     {static_cast<const T*>(x.data), bias, static_cast<T*>(out.data), static_cast<int>(n)});
    });
  });
}

void SoftCap(Stream stream, float cap, int64_t n, float* x) {
  Require(cap > 0, "soft cap", "a cap above 0", static_cast<int64_t>(cap));
  if (n > 0) Launch<SoftCapKernel>(stream, {.x = Blocks(n, SoftCapKernel::kThreads)}, {x, n, cap});
}

}  // namespace shiftrt::gpu
