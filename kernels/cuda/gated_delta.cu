// SPDX-License-Identifier: Apache-2.0
#include "kernels/cuda/gated_delta.cuh"

namespace shiftrt::gpu {

namespace {

// A warp has a token of a sequence, and of it a head of the queries, the keys or the values, or all gates.
template <typename T>
struct ConvolveKernel {
  static constexpr int kThreads = 128, kWarps = kThreads / kWarpSize, kPerLane = kMostDeltaDim / kWarpSize;
  struct Args {
    Delta delta;
    const T* x;
    int64_t x_stride;
    const float *b, *a;
    int64_t gates_stride;
    const float *conv, *a_log, *dt_bias;
  };
  static int Items(const GatedDeltaShape& shape) {
    return static_cast<int>(2 * shape.key_heads + shape.value_heads + 1);
  }
  static SHIFTRT_DEVICE float Convolve(const Args& args, int t, int channel) {
    const Delta& d = args.delta;
    const DeltaRange& sequence = d.Sequence();
    const bool last = t == sequence.count - 1 && sequence.after >= 0;
    float sum = 0;
    for (int j = 0; j < d.conv_width; ++j) {
      const int at = t - d.conv_width + 1 + j;
      float x = 0;
      if (at >= 0) {
        x = Widen(args.x[(sequence.begin + at) * args.x_stride + channel]);
      } else if (sequence.before >= 0) {
        x = d.Rows(sequence.before)[static_cast<int64_t>(d.conv_width - 1 + at) * d.channels + channel];
      }
      if (last && j > 0) d.Rows(sequence.after)[static_cast<int64_t>(j - 1) * d.channels + channel] = x;
      sum += args.conv[channel * d.conv_width + j] * x;
    }
    return Silu(sum);
  }
  static SHIFTRT_DEVICE void Gates(const Args& args, int64_t token) {
    const Delta& d = args.delta;
    for (int head = Lane(); head < d.value_heads; head += kWarpSize) {
      const int64_t at = token * args.gates_stride + head;
      const double b = args.b[at], a = static_cast<double>(args.a[at]) + args.dt_bias[head];
      const auto rate = static_cast<float>(Exp(static_cast<double>(args.a_log[head])));
      *d.LogDecay(token, head) = static_cast<float>(-rate * Softplus(a));
      *d.LogDecay(token, d.value_heads + head) = static_cast<float>(1 / (1 + Exp(-b)));
    }
  }
  static SHIFTRT_DEVICE void Run(const Args& args) {
    const Delta& d = args.delta;
    const int t = Block().x, item = Block().y * kWarps + Warp(), normed = 2 * d.key_heads;
    if (t >= d.Sequence().count || item > normed + d.value_heads) return;
    const int64_t token = d.Sequence().begin + t;
    if (item == normed + d.value_heads) return Gates(args, token);
    const int dim = item < normed ? d.key_dim : d.value_dim;
    const int first = item < normed ? item * d.key_dim : 2 * d.keys + (item - normed) * d.value_dim;
    float values[kPerLane], squares = 0;
#pragma unroll
    for (int r = 0; r < kPerLane; ++r) {
      const int i = Lane() + r * kWarpSize;
      values[r] = i < dim ? Convolve(args, t, first + i) : 0;
      squares += values[r] * values[r];
    }
    float scale = 1;
    if (item < normed) scale = ReciprocalSqrt(WarpSum(squares) + kDeltaEps);
    if (item < d.key_heads) scale *= ReciprocalSqrt(static_cast<float>(d.key_dim));
    float* const to = d.mixed + token * d.channels + first;
#pragma unroll
    for (int r = 0; r < kPerLane; ++r)
      if (const int i = Lane() + r * kWarpSize; i < dim) to[i] = values[r] * scale;
  }
};

// A block has 32 columns of a head's state, one per lane, and its warps divide the rows, kRows each, which stay in
// registers. With S' = g S + k u', a token needs one pass over S: S' k and S' q both come from it, as
// u = beta (v - g S'k) and out = g S'q + (q'k) u.
template <int kRows>
struct TokenKernel {
  static constexpr int kThreads = 128, kWarps = kThreads / kWarpSize, kSums = 3;
  static constexpr int kShared = SharedBytes<float>(2 * kSums * kThreads);
  struct Args {
    Delta delta;
  };
  static SHIFTRT_DEVICE void Run(const Args& args) {
    const Delta& d = args.delta;
    const DeltaRange& sequence = d.Sequence();
    SharedArena arena;
    const Shared<float> parts = arena.Take<float>(2 * kSums * kThreads);
    const int head = Block().x, column = Block().y * kWarpSize + Lane(), first = Warp() * kRows;
    const bool real = column < d.value_dim;
    float state[kRows];
#pragma unroll
    for (int r = 0; r < kRows; ++r) {
      const bool stored = real && first + r < d.key_dim && sequence.before >= 0;
      state[r] = stored ? d.State(sequence.before, head)[(first + r) * d.value_dim + column] : 0;
    }
    for (int t = 0; t < sequence.count; ++t) {
      const int64_t token = sequence.begin + t;
      const float *const q = d.Query(token, head), *const k = d.Key(token, head);
      float sums[kSums] = {};
#pragma unroll
      for (int r = 0; r < kRows; ++r) {
        if (first + r >= d.key_dim) break;
        sums[0] += k[first + r] * state[r];
        sums[1] += q[first + r] * state[r];
        sums[2] += q[first + r] * k[first + r];
      }
      // The next token has the other half of the memory, so that one barrier is enough.
      const Shared<float> of = parts + t % 2 * kSums * kThreads;
      for (int i = 0; i < kSums; ++i) of[i * kThreads + Thread()] = sums[i];
      SyncThreads();
      for (int i = 0; i < kSums; ++i) {
        sums[i] = of[i * kThreads + Lane()];
        for (int warp = 1; warp < kWarps; ++warp) sums[i] += of[i * kThreads + warp * kWarpSize + Lane()];
      }
      const float decay = Exp(*d.LogDecay(token, head)), value = real ? d.Value(token, head)[column] : 0;
      const float update = d.Beta(token, head) * (value - decay * sums[0]);
#pragma unroll
      for (int r = 0; r < kRows; ++r) {
        if (first + r >= d.key_dim) break;
        state[r] = decay * state[r] + k[first + r] * update;
      }
      if (Warp() == 0 && real) d.Out(token, head)[column] = decay * sums[1] + sums[2] * update;
    }
    if (sequence.after < 0 || sequence.count == 0) return;
#pragma unroll
    for (int r = 0; r < kRows; ++r)
      if (real && first + r < d.key_dim) d.State(sequence.after, head)[(first + r) * d.value_dim + column] = state[r];
  }
};

// A block has a chunk of a head.
struct SolveChunksKernel {
  static constexpr int kThreads = kTileThreads;
  static constexpr int kShared = 3 * SharedBytes<float>(kChunk * kPitch) + 3 * SharedBytes<float>(kChunk);
  struct Args {
    Delta delta;
  };
  struct Memory {
    Shared<float> queries, keys, system;  // (kChunk, kPitch); `system` is A
    Shared<float> logs, sums, betas;      // (kChunk)
  };
  using Products = float[kPerSide][kPerSide];

  static SHIFTRT_DEVICE void LoadGates(const Delta& d, const Chunk& chunk, int head, const Memory& m) {
    const int t = Thread();
    if (t < kChunk) {
      m.logs[t] = t < chunk.count ? *d.LogDecay(chunk.token + t, head) : 0;
      m.betas[t] = t < chunk.count ? d.Beta(chunk.token + t, head) : 0;
    }
    SyncThreads();
    if (t >= kChunk) return;
    float sum = 0;
    for (int s = 0; s <= t; ++s) sum += m.logs[s];
    m.sums[t] = sum;
    if (t < chunk.count) *d.LogDecay(chunk.token + t, head) = sum;
  }

  // Adds the products of the rows of queries, and of keys, with those of keys.
  static SHIFTRT_DEVICE void Multiply(const Memory& m, Products& of_queries, Products& of_keys) {
    for (int i = 0; i < kChunk; i += 4) {
      float queries[kPerSide][4], keys[kPerSide][4], others[kPerSide][4];
#pragma unroll
      for (int r = 0; r < kPerSide; ++r) {
        LoadShared4(m.queries + (TileRow(r) * kPitch + i), queries[r]);
        LoadShared4(m.keys + (TileRow(r) * kPitch + i), keys[r]);
        LoadShared4(m.keys + (TileColumn(r) * kPitch + i), others[r]);
      }
#pragma unroll
      for (int r = 0; r < kPerSide; ++r)
#pragma unroll
        for (int c = 0; c < kPerSide; ++c)
#pragma unroll
          for (int e = 0; e < 4; ++e) {
            of_queries[r][c] += queries[r][e] * others[c][e];
            of_keys[r][c] += keys[r][e] * others[c][e];
          }
    }
  }

  // A column of U_0 or of W: forward substitution, with the column in registers. right(t) is the right side's.
  template <typename Right, typename Write>
  static SHIFTRT_DEVICE void Solve(const Memory& m, const Chunk& chunk, const Right& right, const Write& write) {
    float x[kChunk] = {};
#pragma unroll
    for (int t = 0; t < kChunk; ++t) {
      float sum = t < chunk.count ? right(t) * m.betas[t] : 0;
#pragma unroll
      for (int s = 0; s < t; s += 4) {
        float a[4];
        LoadShared4(m.system + (t * kPitch + s), a);
#pragma unroll
        for (int e = 0; e < 4; ++e) sum -= a[e] * x[s + e];  // A is 0 from t on
      }
      x[t] = sum;
      if (t < chunk.count) write(t, sum);
    }
  }

  static SHIFTRT_DEVICE void Run(const Args& args) {
    const Delta& d = args.delta;
    const DeltaRange& sequence = d.Sequence();
    const int head = Block().x, first = Block().y * kChunk;
    if (first >= sequence.count) return;
    const Chunk chunk = ChunkOf(sequence, first);
    SharedArena arena;
    Memory m;
    for (Shared<float>* const matrix : {&m.queries, &m.keys, &m.system}) *matrix = arena.Take<float>(kChunk * kPitch);
    for (Shared<float>* const vector : {&m.logs, &m.sums, &m.betas}) *vector = arena.Take<float>(kChunk);
    LoadGates(d, chunk, head, m);
    const auto query = [&](int64_t token) { return d.Query(token, head); };
    const auto key = [&](int64_t token) { return d.Key(token, head); };
    Products of_queries = {}, of_keys = {};
    for (int from = 0; from < d.key_dim; from += kChunk) {
      Stage(m.queries, [&](int t, int i) { return Element(d, chunk, t, from + i, query); });
      Stage(m.keys, [&](int t, int i) { return Element(d, chunk, t, from + i, key); });
      Multiply(m, of_queries, of_keys);
    }
    for (int r = 0; r < kPerSide; ++r) {
      const int t = TileRow(r);
      for (int c = 0; c < kPerSide; ++c) {
        const int s = TileColumn(c);
        const float decay = s <= t ? Exp(m.sums[t] - m.sums[s]) : 0;
        m.system[t * kPitch + s] = s < t ? m.betas[t] * decay * of_keys[r][c] : 0;
        if (t < chunk.count) d.Scores(chunk.token + t, head)[s] = decay * of_queries[r][c];
      }
    }
    SyncThreads();
    for (int column = Thread(); column < d.value_dim + d.key_dim; column += kThreads) {
      const int of_key = column - d.value_dim;
      if (of_key < 0) {
        Solve(
            m, chunk, [&](int t) { return d.Value(chunk.token + t, head)[column]; },
            [&](int t, float x) { d.Out(chunk.token + t, head)[column] = x; });
      } else {
        Solve(
            m, chunk, [&](int t) { return Exp(m.sums[t]) * d.Key(chunk.token + t, head)[of_key]; },
            [&](int t, float x) { d.FromState(chunk.token + t, head)[of_key] = x; });
      }
    }
  }
};

// A block has kColumns columns of a head's state, in shared memory, and goes from chunk to chunk of a sequence. With
// kKeeps it writes the states before the chunks to `starts` and, in the place of the output, U, which gradients need.
template <bool kKeeps>
struct PassChunksKernel : StateColumns {
  struct Args {
    Delta delta;
  };
  static constexpr int SharedSize(int key_dim) {
    return SharedBytes<float>(kChunk * kPitch) + SharedBytes<float>((Slices(key_dim) + 1) * kChunk * kColumns) +
           SharedBytes<float>(kChunk);
  }
  static SHIFTRT_DEVICE void Run(const Args& args) {
    const Delta& d = args.delta;
    const DeltaRange& sequence = d.Sequence();
    const int head = Block().x, first_column = Block().y * kColumns, slices = Slices(d.key_dim);
    SharedArena arena;
    const Shared<float> stage = arena.Take<float>(kChunk * kPitch),
                        state = arena.Take<float>((slices + 1) * kChunk * kColumns), sums = arena.Take<float>(kChunk),
                        updates = state + slices * kChunk * kColumns;
    ForState(d, first_column, [&](int at, bool real, int from) {
      state[at] = real && sequence.before >= 0 ? d.State(sequence.before, head)[from] : 0;
    });
    for (int first = 0; first < sequence.count; first += kChunk)
      RunChunk(d, ChunkOf(sequence, first), head, first_column, {stage, state, updates, sums});
    if (sequence.after < 0 || sequence.count == 0) return;
    ForState(d, first_column, [&](int at, bool real, int to) {
      if (real) d.State(sequence.after, head)[to] = state[at];
    });
  }

  struct Memory {
    Shared<float> stage, state, updates, sums;
  };
  static SHIFTRT_DEVICE void RunChunk(const Delta& d, const Chunk& chunk, int head, int first_column, const Memory& m) {
    if (Thread() < kChunk)  // after the last token, the factors of zeros
      m.sums[Thread()] = Thread() < chunk.count ? *d.LogDecay(chunk.token + Thread(), head) : 0;
    const auto from_state = [&](int64_t token) { return d.FromState(token, head); };
    const auto query = [&](int64_t token) { return d.Query(token, head); };
    const auto key = [&](int64_t token) { return d.Key(token, head); };
    const int slices = Slices(d.key_dim);
    const auto slice_of = [&](int slice) { return m.state + slice * kChunk * kColumns; };
    const auto has = [&](int row, int column) { return row < chunk.count && first_column + column < d.value_dim; };
    if constexpr (kKeeps)
      ForState(d, first_column, [&](int at, bool real, int to) {
        if (real) d.starts[d.AtChunk(chunk.token, head) + to] = m.state[at];
      });
    Tile update = {}, out = {};
    ForEach([&](int r, int c, int t, int column) {
      if (has(t, column)) update[r][c] = d.Out(chunk.token + t, head)[first_column + column];
    });
    for (int slice = 0; slice < slices; ++slice) {
      const int from = slice * kChunk;
      Stage(m.stage, [&](int t, int i) { return -Element(d, chunk, t, from + i, from_state); });
      Multiply(m.stage, slice_of(slice), update);
      if constexpr (kKeeps) continue;
      Stage(m.stage, [&](int t, int i) { return Exp(m.sums[t]) * Element(d, chunk, t, from + i, query); });
      Multiply(m.stage, slice_of(slice), out);
    }
    ForEach([&](int r, int c, int t, int column) { m.updates[t * kColumns + column] = update[r][c]; });
    if constexpr (!kKeeps) {
      Stage(m.stage, [&](int t, int s) { return t < chunk.count ? d.Scores(chunk.token + t, head)[s] : 0; });
      Multiply(m.stage, m.updates, out);
    }
    const Tile& written = kKeeps ? update : out;
    ForEach([&](int r, int c, int t, int column) {
      if (has(t, column)) d.Out(chunk.token + t, head)[first_column + column] = written[r][c];
    });
    const float last = m.sums[chunk.count - 1], whole = Exp(last);
    for (int slice = 0; slice < slices; ++slice) {
      const int from = slice * kChunk;
      Stage(m.stage, [&](int i, int t) { return Exp(last - m.sums[t]) * Element(d, chunk, t, from + i, key); });
      const Shared<float> of = slice_of(slice);
      Tile next;
      ForEach([&](int r, int c, int row, int column) { next[r][c] = whole * of[row * kColumns + column]; });
      Multiply(m.stage, m.updates, next);
      ForEach([&](int r, int c, int row, int column) { of[row * kColumns + column] = next[r][c]; });
    }
  }
};

// A warp has a head of a token.
template <typename T>
struct NormKernel {
  static constexpr int kThreads = 128, kWarps = kThreads / kWarpSize;
  struct Args {
    const float *out, *weight;
    const T* z;
    T* to;
    int64_t groups;
    int heads, dim;
    int64_t z_stride;
    float eps;
  };
  static SHIFTRT_DEVICE void Run(const Args& args) {
    const int64_t group = static_cast<int64_t>(Block().x) * kWarps + Warp();
    if (group >= args.groups) return;
    const float* const out = args.out + group * args.dim;
    const T* const z = args.z + group / args.heads * args.z_stride + group % args.heads * args.dim;
    float squares = 0;
    for (int i = Lane(); i < args.dim; i += kWarpSize) squares += out[i] * out[i];
    const float scale = ReciprocalSqrt(WarpSum(squares) / static_cast<float>(args.dim) + args.eps);
    for (int i = Lane(); i < args.dim; i += kWarpSize)
      args.to[group * args.dim + i] = Narrow<T>(Silu(Widen(z[i])) * (out[i] * scale * args.weight[i]));
  }
};

template <bool kKeeps>
void LaunchChunks(Stream stream, const DeltaCall& call, const Delta& delta, int sequences) {
  using Pass = PassChunksKernel<kKeeps>;
  Launch<SolveChunksKernel>(stream,
                            {.x = delta.value_heads,
                             .y = Blocks(call.longest, kChunk),
                             .z = sequences,
                             .shared_bytes = SolveChunksKernel::kShared},
                            {delta});
  Launch<Pass>(stream,
               {.x = delta.value_heads,
                .y = Blocks(delta.value_dim, Pass::kColumns),
                .z = sequences,
                .shared_bytes = Pass::SharedSize(delta.key_dim)},
               {delta});
}

}  // namespace

void ConvolveDelta(Stream stream, const DeltaCall& call) {
  RequireDelta(call.shape);
  WithType(kDeltaOperation, call.x.dtype, [&](auto type) {
    using T = decltype(type);
    using Kernel = ConvolveKernel<T>;
    ForDeltaSequences(call, [&](const Delta& delta, int sequences) {
      Launch<Kernel>(
          stream,
          {.x = static_cast<int>(call.longest), .y = Blocks(Kernel::Items(call.shape), Kernel::kWarps), .z = sequences},
          {delta, static_cast<const T*>(call.x.data), call.x_stride, call.b, call.a, call.gates_stride, call.conv,
           call.a_log, call.dt_bias});
    });
  });
}

void ApplyDeltaRule(Stream stream, const DeltaCall& call) {
  RequireDelta(call.shape);
  const int heads = static_cast<int>(call.shape.value_heads), key_dim = static_cast<int>(call.shape.key_dim);
  ForDeltaSequences(call, [&](const Delta& delta, int sequences) {
    if (call.longest > kFewDeltaTokens) return LaunchChunks<false>(stream, call, delta, sequences);
    const auto launch = [&](auto kernel) {
      using Kernel = decltype(kernel);
      Launch<Kernel>(
          stream,
          {.x = heads, .y = Blocks(call.shape.value_dim, kWarpSize), .z = sequences, .shared_bytes = Kernel::kShared},
          {delta});
    };
    if (key_dim <= 128) return launch(TokenKernel<32>());
    launch(TokenKernel<64>());
  });
}

void KeepDeltaStates(Stream stream, const DeltaCall& call, float* starts) {
  RequireDelta(call.shape);
  ForDeltaSequences(call, [&](Delta delta, int sequences) {
    delta.starts = starts;
    LaunchChunks<true>(stream, call, delta, sequences);
  });
}

void NormDelta(Stream stream, const DeltaCall& call, int64_t tokens, const float* weight, float eps, DeviceArray to) {
  const int64_t groups = tokens * call.shape.value_heads;
  Require(to.dtype == call.x.dtype, kDeltaOperation, "one type for z and the result, not bytes",
          static_cast<int64_t>(SizeOf(to.dtype)));
  if (groups == 0) return;
  WithType(kDeltaOperation, to.dtype, [&](auto type) {
    using T = decltype(type);
    using Kernel = NormKernel<T>;
    Launch<Kernel>(
        stream, {.x = Blocks(groups, Kernel::kWarps)},
        {call.out, weight, static_cast<const T*>(call.x.data) + call.shape.channels(), static_cast<T*>(to.data), groups,
         static_cast<int>(call.shape.value_heads), static_cast<int>(call.shape.value_dim), call.x_stride, eps});
  });
}

}  // namespace shiftrt::gpu
