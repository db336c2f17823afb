// SPDX-License-Identifier: Apache-2.0
#include "kernels/cuda/rope_pairs.cuh"
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
      const float scale = args.inverse_frequency[i] == 0 ? 1 : args.scale;
      double sine, cosine;
      SinCos(static_cast<double>(position) * static_cast<double>(args.inverse_frequency[i]), &sine, &cosine);
      args.cosine[position * args.half + i] = static_cast<float>(cosine) * scale;
      args.sine[position * args.half + i] = static_cast<float>(sine) * scale;
    }
  }
};

// Each warp processes one head: first the query heads, then the key heads, then the value heads. The blocks along y
// divide the heads of a token. A lane holds the pairs lane, lane + 32, ... of elements that are rotated together.
template <typename In, typename Cache>
struct RopeAndStoreKernel {
  static constexpr int kThreads = 128;
  static constexpr int kPairs = 4;  // per lane, enough for a head_dim of up to 256
  struct Args {
    const In* qkv;
    const float *bias, *q_norm, *k_norm;
    float eps;
    RopeTable table;
    RopePairs pairs;
    float sign;  // 1, or -1 to rotate back
    const int32_t *positions, *cache_rows;
    int heads, kv_heads, head_dim;
    In* q;
    BFloat16* rounded;
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
      low[p] *= scale * weight[args.pairs.First(i)];
      high[p] *= scale * weight[args.pairs.Second(i)];
    }
  }

  static SHIFTRT_DEVICE void Rotate(const Args& args, int64_t position, float (&low)[kPairs], float (&high)[kPairs]) {
    if (args.table.cosine == nullptr) return;
    const int half = args.head_dim / 2;
    for (int p = 0; p < kPairs; ++p) {
      const int i = Lane() + p * kWarpSize;
      if (i >= half) continue;
      const float cosine = args.table.cosine[position * half + i],
                  sine = args.sign * args.table.sine[position * half + i];
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
      out[args.pairs.First(i)] = Narrow<Out>(low[p]);
      out[args.pairs.Second(i)] = Narrow<Out>(high[p]);
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
      const int low_at = args.pairs.First(i), high_at = args.pairs.Second(i);
      low[p] = Widen(in[low_at]);
      high[p] = Widen(in[high_at]);
      if (args.bias == nullptr) continue;
      low[p] += args.bias[first + low_at];
      high[p] += args.bias[first + high_at];
    }
    const bool is_query = head < args.heads;
    const int64_t row = args.cache_rows != nullptr ? args.cache_rows[token] : token;
    const int64_t cached = is_query ? 0 : (row * args.kv_heads + (head - args.heads) % args.kv_heads) * args.head_dim;
    if (head >= args.heads + args.kv_heads) return Write(args.values + cached, args, low, high);
    if (args.q_norm != nullptr) Normalize(is_query ? args.q_norm : args.k_norm, args, low, high);
    Rotate(args, args.positions[token], low, high);
    if (is_query && args.table.query_scale != nullptr) {
      const float scale = args.table.query_scale[args.positions[token]];
      for (int p = 0; p < kPairs; ++p) low[p] *= scale, high[p] *= scale;
    }
    if (!is_query) return Write(args.keys + cached, args, low, high);
    const int64_t at = (token * args.heads + head) * args.head_dim;
    Write(args.q + at, args, low, high);
    if (args.rounded != nullptr) Write(args.rounded + at, args, low, high);
  }
};

// There is one block per token and part: along y, the queries, the keys, and with a bias the values, which have no
// norm.
template <typename T>
struct NormQueriesKeysKernel {
  static constexpr int kThreads = 256;
  struct Args {
    T* qkv;
    const float *bias, *q_norm, *k_norm;
    int q_dim, kv_dim;
    float eps;
  };
  static constexpr int kShared = SharedBytes<float>(kThreads / kWarpSize);
  static SHIFTRT_DEVICE float At(const Args& args, const T* row, int first, int i) {
    return Widen(row[i]) + (args.bias != nullptr ? args.bias[first + i] : 0);
  }
  static SHIFTRT_DEVICE void Run(const Args& args) {
    SharedArena arena;
    const Shared<float> scratch = arena.Take<float>(kThreads / kWarpSize);
    const int part = Block().y, size = part == 0 ? args.q_dim : args.kv_dim;
    const int first = part == 0 ? 0 : args.q_dim + (part - 1) * args.kv_dim;
    const float* const weight = part == 0 ? args.q_norm : args.k_norm;
    T* const row = args.qkv + static_cast<int64_t>(Block().x) * (args.q_dim + 2 * args.kv_dim) + first;
    if (part == 2) {
      for (int i = Thread(); i < size; i += kThreads) row[i] = Narrow<T>(At(args, row, first, i));
      return;
    }
    float squares = 0;
    for (int i = Thread(); i < size; i += kThreads) {
      const float x = At(args, row, first, i);
      squares += x * x;
    }
    const float scale = ReciprocalSqrt(BlockSum<kThreads>(squares, scratch) / static_cast<float>(size) + args.eps);
    for (int i = Thread(); i < size; i += kThreads) row[i] = Narrow<T>(At(args, row, first, i) * scale * weight[i]);
  }
};

}  // namespace

void NormQueriesKeys(Stream stream, const WholeNorms& norms) {
  if (norms.tokens == 0) return;
  WithType("norms of queries and keys", norms.qkv.dtype, [&](auto type) {
    using T = decltype(type);
    using Kernel = NormQueriesKeysKernel<T>;
    Launch<Kernel>(
        stream,
        {.x = static_cast<int>(norms.tokens), .y = norms.bias != nullptr ? 3 : 2, .shared_bytes = Kernel::kShared},
        {static_cast<T*>(norms.qkv.data), norms.bias, norms.q_norm, norms.k_norm, static_cast<int>(norms.q_dim),
         static_cast<int>(norms.kv_dim), norms.eps});
  });
}

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
      Launch<Kernel>(stream,
                     {.x = static_cast<int>(step.tokens),
                      .y = Blocks(step.heads + 2 * step.kv_heads, Kernel::kThreads / kWarpSize)},
                     {static_cast<const In*>(step.qkv.data), step.bias, step.q_norm, step.k_norm, step.eps, step.table,
                      RopePairs::Of(step.table, step.head_dim), step.back ? -1.0f : 1.0f, step.positions,
                      step.cache_rows, step.heads, step.kv_heads, step.head_dim, static_cast<In*>(step.q.data),
                      step.rounded, static_cast<Cache*>(step.keys.data), static_cast<Cache*>(step.values.data)});
    });
  });
}

}  // namespace shiftrt::gpu
