// SPDX-License-Identifier: Apache-2.0
#include <type_traits>

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

// Heads are processed by groups of lanes: first the query heads, then the key heads, then the value heads. The blocks
// along y divide the heads of a token. A lane of a wide kernel holds eight consecutive pairs of elements that are
// rotated together, which it reads and writes 16 bytes at a time, and a group has 4, 8 or 16 lanes. Otherwise a group
// is a warp, and its lanes hold the pairs lane, lane + 32, ...
template <typename In, typename Cache, bool kWide>
struct RopeAndStoreKernel {
  static constexpr int kThreads = 128;
  static constexpr int kPairs = kWide ? 8 : 4;  // per lane, enough for a head_dim of up to 256
  using Pairs = float[kPairs];
  struct Args {
    const In* qkv;
    const float *bias, *q_norm, *k_norm;
    float eps;
    RopeTable table;
    RopePairs pairs;
    float sign;  // 1, or -1 to rotate back
    const int32_t *positions, *cache_rows;
    int heads, kv_heads, head_dim;
    int gates;  // for each query head: 0 or 1
    int lanes;  // a group has so many: a power of two
    In* q;
    BFloat16* rounded;
    Cache *keys, *values;
  };
  static int LanesFor(int head_dim) {
    int lanes = kWide ? 4 : kWarpSize;
    while (lanes * kPairs < head_dim / 2) lanes *= 2;
    return lanes < kWarpSize ? lanes : kWarpSize;
  }
  static int HeadsPerBlock(int head_dim) { return kThreads / LanesFor(head_dim); }

  static SHIFTRT_DEVICE int LaneOf(const Args& args) { return Lane() % args.lanes; }
  // Calls visit(place, pair) for each pair of the lane. Not for wide kernels.
  template <typename Visit>
  static SHIFTRT_DEVICE void ForPairs(const Args& args, const Visit& visit) {
#pragma unroll
    for (int p = 0; p < kPairs; ++p)
      if (const int pair = LaneOf(args) + p * kWarpSize; pair < args.pairs.half) visit(p, pair);
  }
  // The first pair of a lane of a wide kernel.
  static SHIFTRT_DEVICE int FirstPair(const Args& args) { return kPairs * LaneOf(args); }
  // True if the elements of the lane's pairs alternate in memory.
  static SHIFTRT_DEVICE bool Alternate(const Args& args) {
    return args.pairs.interleaved && FirstPair(args) < args.pairs.rotated;
  }

  // Reads the two elements of each pair from those of a head.
  template <typename T>
  static SHIFTRT_DEVICE void Read(const T* from, const Args& args, Pairs& low, Pairs& high) {
    if constexpr (kWide) {
      const int pair = FirstPair(args), first = args.pairs.First(pair);
      if (!Alternate(args)) {
        Load8(from + first, low);
        Load8(from + args.pairs.Second(pair), high);
        return;
      }
      Pairs front, back;
      Load8(from + first, front);
      Load8(from + first + kPairs, back);
#pragma unroll
      for (int p = 0; p < kPairs / 2; ++p) {
        low[p] = front[2 * p], high[p] = front[2 * p + 1];
        low[p + kPairs / 2] = back[2 * p], high[p + kPairs / 2] = back[2 * p + 1];
      }
    } else {
      ForPairs(args, [&](int p, int pair) {
        low[p] = Widen(from[args.pairs.First(pair)]);
        high[p] = Widen(from[args.pairs.Second(pair)]);
      });
    }
  }
  template <typename T>
  static SHIFTRT_DEVICE void Write(T* to, const Args& args, const Pairs& low, const Pairs& high) {
    if constexpr (kWide) {
      const int pair = FirstPair(args), first = args.pairs.First(pair);
      if (!Alternate(args)) {
        Store8(to + first, low);
        Store8(to + args.pairs.Second(pair), high);
        return;
      }
      Pairs front, back;
#pragma unroll
      for (int p = 0; p < kPairs / 2; ++p) {
        front[2 * p] = low[p], front[2 * p + 1] = high[p];
        back[2 * p] = low[p + kPairs / 2], back[2 * p + 1] = high[p + kPairs / 2];
      }
      Store8(to + first, front);
      Store8(to + first + kPairs, back);
    } else {
      ForPairs(args, [&](int p, int pair) {
        to[args.pairs.First(pair)] = Narrow<T>(low[p]);
        to[args.pairs.Second(pair)] = Narrow<T>(high[p]);
      });
    }
  }
  // Reads one number for each pair.
  static SHIFTRT_DEVICE void ReadOfPairs(const float* from, const Args& args, Pairs& out) {
    if constexpr (kWide) {
      Load8(from + FirstPair(args), out);
    } else {
      ForPairs(args, [&](int p, int pair) { out[p] = from[pair]; });
    }
  }

  // The factor that norms the head of the lane's group. Every lane of a warp calls it.
  static SHIFTRT_DEVICE float NormOf(const Args& args, const Pairs& low, const Pairs& high) {
    float squares = 0;
    for (int p = 0; p < kPairs; ++p) squares += low[p] * low[p] + high[p] * high[p];
    for (int step = args.lanes / 2; step > 0; step /= 2) squares += ShuffleXor(squares, step);
    return ReciprocalSqrt(squares / static_cast<float>(args.head_dim) + args.eps);
  }
  static SHIFTRT_DEVICE void Scale(const float* weight, float norm, const Args& args, Pairs& low, Pairs& high) {
    Pairs of_low = {}, of_high = {};
    Read(weight, args, of_low, of_high);
    for (int p = 0; p < kPairs; ++p) low[p] *= norm * of_low[p], high[p] *= norm * of_high[p];
  }

  static SHIFTRT_DEVICE void Rotate(const Args& args, int64_t position, Pairs& low, Pairs& high) {
    if (args.table.cosine == nullptr) return;
    Pairs cosine = {}, sine = {};
    ReadOfPairs(args.table.cosine + position * args.pairs.half, args, cosine);
    ReadOfPairs(args.table.sine + position * args.pairs.half, args, sine);
    for (int p = 0; p < kPairs; ++p) {
      const float a = low[p], b = high[p], turned = args.sign * sine[p];
      low[p] = a * cosine[p] - b * turned;
      high[p] = b * cosine[p] + a * turned;
    }
  }

  static SHIFTRT_DEVICE void Run(const Args& args) {
    const int groups = kThreads / args.lanes, head = Block().y * groups + Thread() / args.lanes;
    const int all_heads = args.heads + 2 * args.kv_heads;
    // Lanes without a head or a pair take part in the sums of the norms.
    const bool used = head < all_heads && (!kWide || FirstPair(args) < args.pairs.half);
    const int64_t token = Block().x;
    Pairs low = {}, high = {};
    if (used) {
      const int gates_before = args.gates * (head < args.heads ? head : args.heads);
      const int64_t at = token * (all_heads + args.gates * args.heads) * args.head_dim;
      const int within = (head + gates_before) * args.head_dim;
      Read(args.qkv + at + within, args, low, high);
      if (args.bias != nullptr) {
        Pairs of_low = {}, of_high = {};
        Read(args.bias + within, args, of_low, of_high);
        for (int p = 0; p < kPairs; ++p) low[p] += of_low[p], high[p] += of_high[p];
      }
    }
    const float norm = args.q_norm != nullptr ? NormOf(args, low, high) : 1;
    if (!used) return;
    const bool is_query = head < args.heads;
    const int64_t row = args.cache_rows != nullptr ? args.cache_rows[token] : token;
    const int64_t cached = is_query ? 0 : (row * args.kv_heads + (head - args.heads) % args.kv_heads) * args.head_dim;
    if (head >= args.heads + args.kv_heads) return Write(args.values + cached, args, low, high);
    if (args.q_norm != nullptr) Scale(is_query ? args.q_norm : args.k_norm, norm, args, low, high);
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

// True if lanes can read eight pairs at once: their elements are neighbours, and every array begins at a multiple of 16
// bytes.
bool ReadsEightPairs(const QueryKeyValue& step, const RopePairs& pairs) {
  if (pairs.half % 8 != 0 || pairs.rotated % 8 != 0) return false;
  const void* const arrays[] = {step.qkv.data, step.bias,    step.q_norm,    step.k_norm,      step.table.cosine,
                                step.q.data,   step.rounded, step.keys.data, step.values.data, step.table.sine};
  for (const void* const array : arrays)
    if (reinterpret_cast<uintptr_t>(array) % 16 != 0) return false;
  return true;
}

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
      const RopePairs pairs = RopePairs::Of(step.table, step.head_dim);
      const auto launch = [&](auto wide) {
        using Kernel = RopeAndStoreKernel<In, Cache, wide()>;
        Launch<Kernel>(
            stream,
            {.x = static_cast<int>(step.tokens),
             .y = Blocks(step.heads + 2 * step.kv_heads, Kernel::HeadsPerBlock(step.head_dim))},
            {static_cast<const In*>(step.qkv.data), step.bias, step.q_norm, step.k_norm, step.eps, step.table, pairs,
             step.back ? -1.0f : 1.0f, step.positions, step.cache_rows, step.heads, step.kv_heads, step.head_dim,
             step.gated ? 1 : 0, Kernel::LanesFor(step.head_dim), static_cast<In*>(step.q.data), step.rounded,
             static_cast<Cache*>(step.keys.data), static_cast<Cache*>(step.values.data)});
      };
      if (ReadsEightPairs(step, pairs)) return launch(std::true_type());
      launch(std::false_type());
    });
  });
}

}  // namespace shiftrt::gpu
