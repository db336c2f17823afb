// SPDX-License-Identifier: Apache-2.0
#include "kernels/cuda/rope.h"
#include "kernels/cuda/warp.cuh"

namespace shiftrt::gpu {

namespace {

// There is one block per position.
struct RopeTableKernel {
  static constexpr int kThreads = 32;
  struct Args {
    const float* inverse_frequency;
    float *cosine, *sine;
    int half;
    float scale;
  };
  static SHIFTRT_DEVICE void Run(const Args& args) {
    const int64_t position = Block().x;
    for (int i = Thread(); i < args.half; i += kThreads) {
      double sine, cosine;
      SinCos(static_cast<double>(position) * static_cast<double>(args.inverse_frequency[i]), &sine, &cosine);
      args.cosine[position * args.half + i] = static_cast<float>(cosine) * args.scale;
      args.sine[position * args.half + i] = static_cast<float>(sine) * args.scale;
    }
  }
};

// Each warp processes one head: first the query heads, then the key heads, then the value heads. The blocks along y
// divide the heads of a token. A lane holds elements lane, lane + 32, ... of both halves of the head, so that both
// elements of a pair to rotate are in one lane.
template <typename In, typename Cache>
struct RopeAndStoreKernel {
  static constexpr int kThreads = 128;
  static constexpr int kPairs = 4;  // per lane, enough for a head_dim of up to 256
  struct Args {
    const In* qkv;
    const float *bias, *q_norm, *k_norm;
    float eps;
    RopeTable table;
    const int32_t *positions, *cache_rows;
    int heads, kv_heads, head_dim;
    In* q;
    Cache *keys, *values;
  };

  static SHIFTRT_DEVICE void Normalize(const float* weight, const Args& args, float (&low)[kPairs],
                                       float (&high)[kPairs]) {
    const int half = args.head_dim / 2;
    float squares = 0;
    for (int p = 0; p < kPairs; ++p) squares += low[p] * low[p] + high[p] * high[p];
    const float scale = ReciprocalSqrt(WarpSum(squares) / static_cast<float>(args.head_dim) + args.eps);
    for (int p = 0; p < kPairs; ++p) {
      const int i = Lane() + p * kWarpSize;
      if (i >= half) continue;
      low[p] *= scale * weight[i];
      high[p] *= scale * weight[i + half];
    }
  }

  static SHIFTRT_DEVICE void Rotate(const Args& args, int64_t position, float (&low)[kPairs], float (&high)[kPairs]) {
    const int half = args.head_dim / 2;
    for (int p = 0; p < kPairs; ++p) {
      const int i = Lane() + p * kWarpSize;
      if (i >= half) continue;
      const float cosine = args.table.cosine[position * half + i], sine = args.table.sine[position * half + i];
      const float a = low[p], b = high[p];
      low[p] = a * cosine - b * sine;
      high[p] = b * cosine + a * sine;
    }
  }

  template <typename Out>
  static SHIFTRT_DEVICE void Write(Out* out, const Args& args, const float (&low)[kPairs],
                                   const float (&high)[kPairs]) {
    const int half = args.head_dim / 2;
    for (int p = 0; p < kPairs; ++p) {
      const int i = Lane() + p * kWarpSize;
      if (i >= half) continue;
      out[i] = Narrow<Out>(low[p]);
      out[i + half] = Narrow<Out>(high[p]);
    }
  }

  static SHIFTRT_DEVICE void Run(const Args& args) {
    const int head = Block().y * (kThreads / kWarpSize) + Warp(), all_heads = args.heads + 2 * args.kv_heads;
    if (head >= all_heads) return;
    const int64_t token = Block().x;
    const int first = head * args.head_dim, half = args.head_dim / 2;
    const In* const in = args.qkv + token * all_heads * args.head_dim + first;
    float low[kPairs] = {}, high[kPairs] = {};
    for (int p = 0; p < kPairs; ++p) {
      const int i = Lane() + p * kWarpSize;
      if (i >= half) continue;
      low[p] = Widen(in[i]);
      high[p] = Widen(in[i + half]);
      if (args.bias == nullptr) continue;
      low[p] += args.bias[first + i];
      high[p] += args.bias[first + i + half];
    }
    const int kv_head = (head - args.heads) % args.kv_heads;
    const int64_t cached = static_cast<int64_t>(args.cache_rows[token]) * args.kv_heads + kv_head;
    if (head >= args.heads + args.kv_heads) return Write(args.values + cached * args.head_dim, args, low, high);
    const bool is_query = head < args.heads;
    if (args.q_norm != nullptr) Normalize(is_query ? args.q_norm : args.k_norm, args, low, high);
    Rotate(args, args.positions[token], low, high);
    if (is_query) {
      Write(args.q + (token * args.heads + head) * args.head_dim, args, low, high);
    } else {
      Write(args.keys + cached * args.head_dim, args, low, high);
    }
  }
};

}  // namespace

void MakeRopeTable(Stream stream, int64_t positions, const float* inverse_frequency, int64_t half, float scale,
                   float* cosine, float* sine) {
  if (positions == 0) return;
  Launch<RopeTableKernel>(stream, {.x = static_cast<int>(positions)},
                          {inverse_frequency, cosine, sine, static_cast<int>(half), scale});
}

void RopeAndStore(Stream stream, const QueryKeyValue& step) {
  Require(step.head_dim % 2 == 0 && step.head_dim <= 256, "RoPE", "an even head dimension of at most 256",
          step.head_dim);
  if (step.tokens == 0) return;
  WithType("RoPE", step.qkv.dtype, [&](auto in) {
    WithType("RoPE", step.keys.dtype, [&](auto cache) {
      using In = decltype(in);
      using Cache = decltype(cache);
      using Kernel = RopeAndStoreKernel<In, Cache>;
      Launch<Kernel>(
          stream,
          {.x = static_cast<int>(step.tokens),
           .y = Blocks(step.heads + 2 * step.kv_heads, Kernel::kThreads / kWarpSize)},
          {static_cast<const In*>(step.qkv.data), step.bias, step.q_norm, step.k_norm, step.eps, step.table,
           step.positions, step.cache_rows, step.heads, step.kv_heads, step.head_dim, static_cast<In*>(step.q.data),
           static_cast<Cache*>(step.keys.data), static_cast<Cache*>(step.values.data)});
    });
  });
}

}  // namespace shiftrt::gpu
