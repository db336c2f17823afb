// SPDX-License-Identifier: Apache-2.0
#include "kernels/cuda/attention_common.h"
#include "kernels/cuda/gated_delta.h"
#include "kernels/cuda/warp.cuh"

namespace shiftrt::gpu {

namespace {

constexpr const char* kOperation = "a gated delta network";
constexpr float kDeltaEps = 1e-6f;  // added to the squared norms of queries and keys, as transformers does

// GatedDeltaShape and the arrays, as the kernels take them.
struct Delta {
  int key_heads, value_heads, key_dim, value_dim, conv_width, keys, values, channels;
  int64_t state_floats, floats;  // a state of the rule takes the first, and with the convolution's rows the second
  const DeltaRange* sequences;
  float *states, *mixed, *decays, *out, *chunks;

  SHIFTRT_DEVICE const DeltaRange& Sequence() const { return sequences[Block().z]; }
  SHIFTRT_DEVICE float* State(int index, int head) const {
    return states + index * floats + static_cast<int64_t>(head) * key_dim * value_dim;
  }
  SHIFTRT_DEVICE float* Rows(int index) const { return states + index * floats + state_floats; }
  SHIFTRT_DEVICE const float* Query(int64_t token, int head) const {
    return mixed + token * channels + head / (value_heads / key_heads) * key_dim;
  }
  SHIFTRT_DEVICE const float* Key(int64_t token, int head) const { return Query(token, head) + keys; }
  SHIFTRT_DEVICE const float* Value(int64_t token, int head) const {
    return mixed + token * channels + 2 * keys + head * value_dim;
  }
  SHIFTRT_DEVICE float* Out(int64_t token, int head) const { return out + token * values + head * value_dim; }
  SHIFTRT_DEVICE float* LogDecay(int64_t token, int head) const { return decays + token * 2 * value_heads + head; }
  SHIFTRT_DEVICE float Beta(int64_t token, int head) const { return *LogDecay(token, value_heads + head); }
  // The two launches of chunks share W (tokens, key_dim) and the scores (tokens, kChunk) of each head.
  SHIFTRT_DEVICE float* FromState(int64_t token, int head) const {
    return chunks + (token * value_heads + head) * (key_dim + GatedDeltaShape::kChunk);
  }
  SHIFTRT_DEVICE float* Scores(int64_t token, int head) const { return FromState(token, head) + key_dim; }
};
Delta Of(const DeltaCall& call) {
  const GatedDeltaShape& s = call.shape;
  return {static_cast<int>(s.key_heads),
          static_cast<int>(s.value_heads),
          static_cast<int>(s.key_dim),
          static_cast<int>(s.value_dim),
          static_cast<int>(s.conv_width),
          static_cast<int>(s.keys()),
          static_cast<int>(s.values()),
          static_cast<int>(s.channels()),
          s.state_floats(),
          s.sequence_floats(),
          call.sequences,
          call.states,
          call.mixed,
          call.decays,
          call.out,
          call.chunks};
}

// A warp has a token of a sequence, and of it a head of the queries, the keys or the values, or all gates.
template <typename T>
struct ConvolveKernel {
  static constexpr int kThreads = 128, kWarps = kThreads / kWarpSize, kPerLane = kMostDeltaDim / kWarpSize;
  struct Args {
    Delta delta;
    const T* x;
    const float *gates, *conv, *rates, *dt_bias;
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
        x = Widen(args.x[static_cast<int64_t>(sequence.begin + at) * (d.channels + d.values) + channel]);
      } else if (sequence.before >= 0) {
        x = d.Rows(sequence.before)[static_cast<int64_t>(d.conv_width - 1 + at) * d.channels + channel];
      }
      if (last && j > 0) d.Rows(sequence.after)[static_cast<int64_t>(j - 1) * d.channels + channel] = x;
      sum += args.conv[j * d.channels + channel] * x;
    }
    return Silu(sum);
  }
  static SHIFTRT_DEVICE void Gates(const Args& args, int64_t token) {
    const Delta& d = args.delta;
    for (int head = Lane(); head < d.value_heads; head += kWarpSize) {
      const float* const of = args.gates + token * 2 * d.value_heads + head;
      const double b = of[0], a = static_cast<double>(of[d.value_heads]) + args.dt_bias[head];
      const double softplus = a > 20 ? a : Log(1 + Exp(a));
      *d.LogDecay(token, head) = static_cast<float>(-args.rates[head] * softplus);
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

// Chunks of C = 64 tokens. With b_t the sum of the logarithms of g from the beginning of a chunk to token t, a token's
// state is S_t = e^(b_t) S_0 + sum over s <= t of e^(b_t - b_s) k_s u_s', where
//   (1 + A) U = diag(beta) (V - diag(e^b) K S_0),  A_ts = beta_t e^(b_t - b_s) k_t'k_s for s < t, and otherwise 0.
// So U = U_0 - W S_0, with two matrices that do not depend on S_0 and solve (1 + A) U_0 = diag(beta) V and
// (1 + A) W = diag(beta e^b) K: the WY representation. One launch computes them for all chunks together; the next goes
// from chunk to chunk, with out = diag(e^b) Q S_0 + P U, P_ts = e^(b_t - b_s) q_t'k_s for s <= t, and otherwise 0.
//
// Both multiply matrices of 64 columns of shared memory, whose rows lie kPitch apart: so far that eight threads that
// read 16 bytes each of eight rows, which are served together, find them in different banks.
constexpr int kChunk = GatedDeltaShape::kChunk, kPitch = kChunk + 4, kTileThreads = 256, kSide = 16,
              kPerSide = kChunk / kSide;

SHIFTRT_DEVICE int TileRow(int i) { return Thread() / kSide + kSide * i; }
SHIFTRT_DEVICE int TileColumn(int j) { return Thread() % kSide + kSide * j; }

// Fills a matrix of kChunk rows and columns: element (row, column) with value(row, column). Before and after it, all
// threads of the block may use shared memory.
template <typename Value>
SHIFTRT_DEVICE void Stage(Shared<float> to, const Value& value) {
  SyncThreads();
  for (int at = Thread(); at < kChunk * kChunk; at += kTileThreads)
    to[at / kChunk * kPitch + at % kChunk] = value(at / kChunk, at % kChunk);
  SyncThreads();
}

struct Chunk {
  int first, count;  // tokens of the sequence
  int64_t token;     // the first one's row
};
SHIFTRT_DEVICE Chunk ChunkOf(const DeltaRange& sequence, int first) {
  return {first, sequence.count - first < kChunk ? sequence.count - first : kChunk,
          static_cast<int64_t>(sequence.begin) + first};
}

// Element i of row(token), which has key_dim elements, for token t of a chunk; 0 outside.
template <typename Row>
SHIFTRT_DEVICE float Element(const Delta& d, const Chunk& chunk, int t, int i, const Row& row) {
  return t < chunk.count && i < d.key_dim ? row(chunk.token + t)[i] : 0;
}

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

// A block has kColumns columns of a head's state, in shared memory, and goes from chunk to chunk of a sequence.
struct PassChunksKernel {
  static constexpr int kThreads = kTileThreads, kColumns = 32, kPerRow = kColumns / kSide;
  struct Args {
    Delta delta;
  };
  static constexpr int Slices(int key_dim) { return (key_dim + kChunk - 1) / kChunk; }
  static constexpr int SharedSize(int key_dim) {
    return SharedBytes<float>(kChunk * kPitch) + SharedBytes<float>((Slices(key_dim) + 1) * kChunk * kColumns) +
           SharedBytes<float>(kChunk);
  }
  using Tile = float[kPerSide][kPerRow];  // the rows and columns of a thread, of a matrix (kChunk, kColumns)

  // tile += a b, with a (kChunk, kChunk) as Stage() leaves it, and b (kChunk, kColumns).
  static SHIFTRT_DEVICE void Multiply(Shared<float> a, Shared<float> b, Tile& tile) {
    for (int i = 0; i < kChunk; i += 4) {
      float left[kPerSide][4];
#pragma unroll
      for (int r = 0; r < kPerSide; ++r) LoadShared4(a + (TileRow(r) * kPitch + i), left[r]);
#pragma unroll
      for (int e = 0; e < 4; ++e)
#pragma unroll
        for (int c = 0; c < kPerRow; ++c) {
          const float right = b[(i + e) * kColumns + TileColumn(c)];
#pragma unroll
          for (int r = 0; r < kPerSide; ++r) tile[r][c] += left[r][e] * right;
        }
    }
  }
  template <typename Visit>
  static SHIFTRT_DEVICE void ForEach(const Visit& visit) {
#pragma unroll
    for (int r = 0; r < kPerSide; ++r)
#pragma unroll
      for (int c = 0; c < kPerRow; ++c) visit(r, c, TileRow(r), TileColumn(c));
  }

  static SHIFTRT_DEVICE void Run(const Args& args) {
    const Delta& d = args.delta;
    const DeltaRange& sequence = d.Sequence();
    const int head = Block().x, first_column = Block().y * kColumns, slices = Slices(d.key_dim);
    SharedArena arena;
    const Shared<float> stage = arena.Take<float>(kChunk * kPitch),
                        state = arena.Take<float>((slices + 1) * kChunk * kColumns), sums = arena.Take<float>(kChunk),
                        updates = state + slices * kChunk * kColumns;
    // Calls visit(element in shared memory, element of the head's state) for those of the thread that exist.
    const auto for_state = [&](auto visit) {
      for (int slice = 0; slice < slices; ++slice)
        ForEach([&](int, int, int row, int column) {
          const int key = slice * kChunk + row;
          const bool real = key < d.key_dim && first_column + column < d.value_dim;
          visit(key * kColumns + column, real, key * d.value_dim + first_column + column);
        });
    };
    for_state([&](int at, bool real, int from) {
      state[at] = real && sequence.before >= 0 ? d.State(sequence.before, head)[from] : 0;
    });
    for (int first = 0; first < sequence.count; first += kChunk)
      RunChunk(d, ChunkOf(sequence, first), head, first_column, {stage, state, updates, sums});
    if (sequence.after < 0 || sequence.count == 0) return;
    for_state([&](int at, bool real, int to) {
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
    Tile update = {}, out = {};
    ForEach([&](int r, int c, int t, int column) {
      if (has(t, column)) update[r][c] = d.Out(chunk.token + t, head)[first_column + column];
    });
    for (int slice = 0; slice < slices; ++slice) {
      const int from = slice * kChunk;
      Stage(m.stage, [&](int t, int i) { return -Element(d, chunk, t, from + i, from_state); });
      Multiply(m.stage, slice_of(slice), update);
      Stage(m.stage, [&](int t, int i) { return Exp(m.sums[t]) * Element(d, chunk, t, from + i, query); });
      Multiply(m.stage, slice_of(slice), out);
    }
    ForEach([&](int r, int c, int t, int column) { m.updates[t * kColumns + column] = update[r][c]; });
    Stage(m.stage, [&](int t, int s) { return t < chunk.count ? d.Scores(chunk.token + t, head)[s] : 0; });
    Multiply(m.stage, m.updates, out);
    ForEach([&](int r, int c, int t, int column) {
      if (has(t, column)) d.Out(chunk.token + t, head)[first_column + column] = out[r][c];
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
    int heads, dim, z_stride;
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

void RequireDelta(const GatedDeltaShape& shape) {
  Require(shape.key_heads > 0 && shape.value_heads % shape.key_heads == 0, kOperation,
          "a number of heads that is a multiple of those of keys", shape.value_heads);
  Require(shape.key_dim <= kMostDeltaDim && shape.value_dim <= kMostDeltaDim, kOperation, "heads of at most 256",
          shape.key_dim > shape.value_dim ? shape.key_dim : shape.value_dim);
}

// Calls launch(arguments, blocks along z) for as many sequences at a time as a grid can have.
template <typename Body>
void ForDeltaSequences(const DeltaCall& call, const Body& launch) {
  if (call.longest == 0) return;
  ForSequences(call.sequence_count, [&](int64_t first, int blocks) {
    Delta delta = Of(call);
    delta.sequences += first;
    launch(delta, blocks);
  });
}

}  // namespace

void ConvolveDelta(Stream stream, const DeltaCall& call) {
  RequireDelta(call.shape);
  WithType(kOperation, call.x.dtype, [&](auto type) {
    using T = decltype(type);
    using Kernel = ConvolveKernel<T>;
    ForDeltaSequences(call, [&](const Delta& delta, int sequences) {
      Launch<Kernel>(
          stream,
          {.x = static_cast<int>(call.longest), .y = Blocks(Kernel::Items(call.shape), Kernel::kWarps), .z = sequences},
          {delta, static_cast<const T*>(call.x.data), call.gates, call.conv, call.rates, call.dt_bias});
    });
  });
}

void ApplyDeltaRule(Stream stream, const DeltaCall& call) {
  RequireDelta(call.shape);
  const int heads = static_cast<int>(call.shape.value_heads), key_dim = static_cast<int>(call.shape.key_dim);
  ForDeltaSequences(call, [&](const Delta& delta, int sequences) {
    if (call.longest > kFewDeltaTokens) {
      Launch<SolveChunksKernel>(
          stream,
          {.x = heads, .y = Blocks(call.longest, kChunk), .z = sequences, .shared_bytes = SolveChunksKernel::kShared},
          {delta});
      using Pass = PassChunksKernel;
      return Launch<Pass>(stream,
                          {.x = heads,
                           .y = Blocks(call.shape.value_dim, Pass::kColumns),
                           .z = sequences,
                           .shared_bytes = Pass::SharedSize(key_dim)},
                          {delta});
    }
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

void NormDelta(Stream stream, const DeltaCall& call, int64_t tokens, const float* weight, float eps, DeviceArray to) {
  const int64_t groups = tokens * call.shape.value_heads;
  Require(to.dtype == call.x.dtype, kOperation, "one type for z and the result, not bytes",
          static_cast<int64_t>(SizeOf(to.dtype)));
  if (groups == 0) return;
  WithType(kOperation, to.dtype, [&](auto type) {
    using T = decltype(type);
    using Kernel = NormKernel<T>;
    Launch<Kernel>(stream, {.x = Blocks(groups, Kernel::kWarps)},
                   {call.out, weight, static_cast<const T*>(call.x.data) + call.shape.channels(),
                    static_cast<T*>(to.data), groups, static_cast<int>(call.shape.value_heads),
                    static_cast<int>(call.shape.value_dim), static_cast<int>(call.width()), eps});
  });
}

}  // namespace shiftrt::gpu
