// SPDX-License-Identifier: Apache-2.0
// The rule backwards, in the chunks of the forward pass (kernels/cuda/gated_delta.cuh). Let D be the gradient of the
// state after the last token of a chunk, y_t the outputs, dy_t their gradients, and G_ts = e^(b_t - b_s) k_t'k_s for
// s < t, and otherwise 0. The gradient of the state after token t, all that reads it counted, is
//   D_t = e^(b_C - b_t) D + sum over s >= t of e^(b_s - b_t) q_s dy_s' - sum over s > t of e^(b_s - b_t) k_s dv_s',
// so that dU, whose rows are D_t'k_t, solves
//   (1 + A') dU = R,  R = diag(e^(b_C - b)) K D + P' dY,  and dV = diag(beta) dU.
// The gradient of the state before the chunk needs no solution: it is e^(b_C) D + Q' diag(e^b) dY - W'R. So one launch
// goes from chunk to chunk and keeps D and R, and the next computes all else, for all chunks together:
//   dQ = diag(e^b) dY S_0' + M K,  dK = diag(e^(b_C - b)) U D' - diag(e^b) dV S_0' + M' Q - (N + N') K,
//   M_ts = e^(b_t - b_s) dy_t'u_s for s <= t,  N_ts = e^(b_t - b_s) dv_t'u_s for s < t,  and otherwise 0.
// The output is linear in the state and in v, so the gradient of a logarithm of g is what the states before it are
// worth: d log g_t = <D, S_C> + sum over s >= t of (y_s'dy_s - v_s'dv_s). The sum of C terms begins anew with each
// chunk.
#include "kernels/cuda/gated_delta.cuh"

namespace shiftrt::gpu {

namespace {

// b_t; after the last token that of the last, so that no factor of zeros is infinite.
SHIFTRT_DEVICE float LogDecaySum(const Delta& d, const Chunk& chunk, int t, int head) {
  return *d.LogDecay(chunk.token + (t < chunk.count ? t : chunk.count - 1), head);
}

// A block has kColumns columns of the gradient of a head's state, and goes from the last chunk of a sequence to the
// first. It writes the gradients of the states after the chunks, and R.
struct BackChunksKernel : StateColumns {
  struct Args {
    Delta delta;
    const float* dout;
    float* rights;  // R, (tokens, values)
  };
  static constexpr int SharedSize(int key_dim) {
    return SharedBytes<float>(kChunk * kPitch) + SharedBytes<float>((Slices(key_dim) + 2) * kChunk * kColumns) +
           SharedBytes<float>(kChunk);
  }
  struct Memory {
    Shared<float> stage, state, dout, right, sums;
  };
  static SHIFTRT_DEVICE void Run(const Args& args) {
    const Delta& d = args.delta;
    const DeltaRange& sequence = d.Sequence();
    const int head = Block().x, first_column = Block().y * kColumns, slices = Slices(d.key_dim);
    SharedArena arena;
    Memory m;
    m.stage = arena.Take<float>(kChunk * kPitch);
    m.state = arena.Take<float>((slices + 2) * kChunk * kColumns);
    m.sums = arena.Take<float>(kChunk);
    m.dout = m.state + slices * kChunk * kColumns;
    m.right = m.dout + kChunk * kColumns;
    ForState(d, first_column, [&](int at, bool, int) { m.state[at] = 0; });
    const int chunks = (sequence.count + kChunk - 1) / kChunk;
    for (int chunk = chunks - 1; chunk >= 0; --chunk)
      RunChunk(args, ChunkOf(sequence, chunk * kChunk), head, first_column, m);
  }
  static SHIFTRT_DEVICE void RunChunk(const Args& args, const Chunk& chunk, int head, int first_column,
                                      const Memory& m) {
    const Delta& d = args.delta;
    if (const int t = Thread(); t < kChunk) m.sums[t] = LogDecaySum(d, chunk, t, head);
    const auto has = [&](int t, int column) { return t < chunk.count && first_column + column < d.value_dim; };
    const auto at = [&](int t, int column) {
      return (chunk.token + t) * d.values + head * d.value_dim + first_column + column;
    };
    const auto slice_of = [&](int slice) { return m.state + slice * kChunk * kColumns; };
    ForState(d, first_column, [&](int from, bool real, int to) {
      if (real) d.ends[d.AtChunk(chunk.token, head) + to] = m.state[from];
    });
    ForEach([&](int, int, int t, int column) {
      m.dout[t * kColumns + column] = has(t, column) ? args.dout[at(t, column)] : 0;
    });
    const auto query = [&](int64_t token) { return d.Query(token, head); };
    const auto key = [&](int64_t token) { return d.Key(token, head); };
    const auto from_state = [&](int64_t token) { return d.FromState(token, head); };
    Tile right = {};
    StageColumns(m.stage, [&](int s, int t) { return t < chunk.count ? d.Scores(chunk.token + t, head)[s] : 0; });
    Multiply(m.stage, m.dout, right);
    const float last = m.sums[chunk.count - 1], whole = Exp(last);
    const int slices = Slices(d.key_dim);
    for (int slice = 0; slice < slices; ++slice) {
      const int from = slice * kChunk;
      Stage(m.stage, [&](int t, int i) { return Exp(last - m.sums[t]) * Element(d, chunk, t, from + i, key); });
      Multiply(m.stage, slice_of(slice), right);
    }
    ForEach([&](int r, int c, int t, int column) {
      m.right[t * kColumns + column] = right[r][c];
      if (has(t, column)) args.rights[at(t, column)] = right[r][c];
    });
    for (int slice = 0; slice < slices; ++slice) {
      const int from = slice * kChunk;
      const Shared<float> of = slice_of(slice);
      Tile before;
      ForEach([&](int r, int c, int row, int column) { before[r][c] = whole * of[row * kColumns + column]; });
      StageColumns(m.stage, [&](int i, int t) { return Exp(m.sums[t]) * Element(d, chunk, t, from + i, query); });
      Multiply(m.stage, m.dout, before);
      StageColumns(m.stage, [&](int i, int t) { return -Element(d, chunk, t, from + i, from_state); });
      Multiply(m.stage, m.right, before);
      ForEach([&](int r, int c, int row, int column) { of[row * kColumns + column] = before[r][c]; });
    }
  }
};

// A block has a chunk of a head of the keys, and takes the value heads that share it in turn, so that it adds up their
// gradients of queries and keys in a fixed order.
struct ChunkGradientKernel {
  static constexpr int kThreads = kTileThreads, kWarps = kThreads / kWarpSize, kLeastBlocks = 2;
  static constexpr int kShared =
      4 * SharedBytes<float>(kChunk * kPitch) + 3 * SharedBytes<float>(kChunk) + SharedBytes<float>(kWarps);
  struct Args {
    Delta delta;
    const float *out, *dout;
    float* changes;  // R becomes dU
    const float *b, *a, *a_log, *dt_bias;
    int64_t gates_stride;
    float *dmixed, *da, *db, *da_log;
  };
  struct Memory {
    Shared<float> left, right, of_outputs, of_keys;  // (kChunk, kPitch); the last two have M and -(N + N')
    Shared<float> sums, betas, terms;                // (kChunk)
    Shared<float> scratch;                           // (kWarps)
  };
  using Tile = float[kPerSide][kPerSide];

  // tile += a b', of matrices (kChunk, kPitch).
  static SHIFTRT_DEVICE void MultiplyRows(Shared<float> a, Shared<float> b, Tile& tile) {
    for (int i = 0; i < kChunk; i += 4) {
      float left[kPerSide][4], right[kPerSide][4];
#pragma unroll
      for (int r = 0; r < kPerSide; ++r) {
        LoadShared4(a + (TileRow(r) * kPitch + i), left[r]);
        LoadShared4(b + (TileColumn(r) * kPitch + i), right[r]);
      }
#pragma unroll
      for (int r = 0; r < kPerSide; ++r)
#pragma unroll
        for (int c = 0; c < kPerSide; ++c)
#pragma unroll
          for (int e = 0; e < 4; ++e) tile[r][c] += left[r][e] * right[c][e];
    }
  }
  // tile += a b, or a'b.
  template <bool kTransposed>
  static SHIFTRT_DEVICE void Multiply(Shared<float> a, Shared<float> b, Tile& tile) {
#pragma unroll 4
    for (int i = 0; i < kChunk; ++i) {
      float left[kPerSide], right[kPerSide];
#pragma unroll
      for (int r = 0; r < kPerSide; ++r) {
        left[r] = kTransposed ? a[i * kPitch + TileRow(r)] : a[TileRow(r) * kPitch + i];
        right[r] = b[i * kPitch + TileColumn(r)];
      }
#pragma unroll
      for (int r = 0; r < kPerSide; ++r)
#pragma unroll
        for (int c = 0; c < kPerSide; ++c) tile[r][c] += left[r] * right[c];
    }
  }
  template <typename Visit>
  static SHIFTRT_DEVICE void ForEach(const Visit& visit) {
#pragma unroll
    for (int r = 0; r < kPerSide; ++r)
#pragma unroll
      for (int c = 0; c < kPerSide; ++c) visit(r, c, TileRow(r), TileColumn(c));
  }

  // A value head of a chunk.
  struct Head {
    const Args& args;
    const Memory& m;
    Chunk chunk;
    int head;

    SHIFTRT_DEVICE int64_t At(int t) const {
      return (chunk.token + t) * args.delta.values + static_cast<int64_t>(head) * args.delta.value_dim;
    }
    SHIFTRT_DEVICE bool Has(int t, int column) const { return t < chunk.count && column < args.delta.value_dim; }
    // Element (t, column) of a matrix (tokens, values); 0 outside.
    SHIFTRT_DEVICE float Of(const float* rows, int t, int column) const {
      return Has(t, column) ? rows[At(t) + column] : 0;
    }
    // Element (key, column) of a state.
    SHIFTRT_DEVICE float OfState(const float* state, int key, int column) const {
      const Delta& d = args.delta;
      return key < d.key_dim && column < d.value_dim ? state[static_cast<int64_t>(key) * d.value_dim + column] : 0;
    }
    SHIFTRT_DEVICE float Decay(int later, int earlier) const { return Exp(m.sums[later] - m.sums[earlier]); }
  };

  // R becomes dU: backward substitution, a column per thread, in registers. `of_keys` has A' meanwhile.
  static SHIFTRT_DEVICE void Solve(const Head& of) {
    const Memory& m = of.m;
    const Delta& d = of.args.delta;
    const auto key = [&](int64_t token) { return d.Key(token, of.head); };
    Tile products = {};
    for (int from = 0; from < d.key_dim; from += kChunk) {
      Stage(m.left, [&](int t, int i) { return Element(d, of.chunk, t, from + i, key); });
      MultiplyRows(m.left, m.left, products);
    }
    ForEach([&](int r, int c, int t, int s) {
      m.of_keys[t * kPitch + s] = s > t ? m.betas[s] * of.Decay(s, t) * products[r][c] : 0;
    });
    SyncThreads();
    for (int column = Thread(); column < d.value_dim; column += kThreads) {
      float x[kChunk] = {};
#pragma unroll
      for (int t = kChunk - 1; t >= 0; --t) {
        float sum = of.Of(of.args.changes, t, column);
#pragma unroll
        for (int s = t / 4 * 4; s < kChunk; s += 4) {
          float a[4];
          LoadShared4(m.of_keys + (t * kPitch + s), a);
#pragma unroll
          for (int e = 0; e < 4; ++e) sum -= a[e] * x[s + e];  // A' is 0 up to t
        }
        x[t] = sum;
        if (t < of.chunk.count) of.args.changes[of.At(t) + column] = sum;
      }
    }
    SyncThreads();
  }

  // M and -(N + N').
  static SHIFTRT_DEVICE void MultiplyTokens(const Head& of) {
    const Memory& m = of.m;
    const Delta& d = of.args.delta;
    Tile of_outputs = {}, of_values = {};
    for (int from = 0; from < d.value_dim; from += kChunk) {
      Stage(m.right, [&](int t, int j) { return of.Of(d.out, t, from + j); });
      Stage(m.left, [&](int t, int j) { return of.Of(of.args.dout, t, from + j); });
      MultiplyRows(m.left, m.right, of_outputs);
      Stage(m.left, [&](int t, int j) { return m.betas[t] * of.Of(of.args.changes, t, from + j); });
      MultiplyRows(m.left, m.right, of_values);
    }
    ForEach([&](int r, int c, int t, int s) {
      m.of_outputs[t * kPitch + s] = s <= t ? of.Decay(t, s) * of_outputs[r][c] : 0;
      if (s > t) return;
      const float both = s < t ? -of.Decay(t, s) * of_values[r][c] : 0;
      m.of_keys[t * kPitch + s] = both;
      m.of_keys[s * kPitch + t] = both;
    });
  }

  // dV, and the gradients of the gates. A warp has a token.
  static SHIFTRT_DEVICE void ValuesAndGates(const Head& of) {
    const Memory& m = of.m;
    const Args& args = of.args;
    const Delta& d = args.delta;
    for (int t = Warp(); t < of.chunk.count; t += kWarps) {
      const int64_t token = of.chunk.token + t, at = of.At(t);
      const float* const value = d.Value(token, of.head);
      float* const dvalue = args.dmixed + token * d.channels + 2 * d.keys + of.head * d.value_dim;
      float term = 0, of_beta = 0;
      for (int j = Lane(); j < d.value_dim; j += kWarpSize) {
        const float change = args.changes[at + j], dv = m.betas[t] * change;
        term += args.out[at + j] * args.dout[at + j] - value[j] * dv;
        of_beta += d.out[at + j] * change;  // u = beta (v - ...)
        dvalue[j] = dv;
      }
      term = WarpSum(term);
      of_beta = WarpSum(of_beta);
      if (Lane() != 0) continue;
      m.terms[t] = term;
      args.db[token * d.value_heads + of.head] = of_beta * (1 - m.betas[t]);
    }
    float product = 0;  // <D, S_C>
    if (of.chunk.first + of.chunk.count < d.Sequence().count) {
      const float *const end = d.ends + d.AtChunk(of.chunk.token, of.head), *const next =
                                                                                d.starts +
                                                                                d.AtChunk(of.chunk.token + kChunk,
                                                                                          of.head);
      for (int i = Thread(); i < d.key_dim * d.value_dim; i += kThreads) product += end[i] * next[i];
    }
    product = BlockSum<kThreads>(product, m.scratch);
    SyncThreads();
    const int t = Thread();
    if (t >= of.chunk.count) return;
    for (int s = of.chunk.count - 1; s >= t; --s) product += m.terms[s];
    const int64_t token = of.chunk.token + t, to = token * d.value_heads + of.head;
    const double input = static_cast<double>(args.a[token * args.gates_stride + of.head]) + args.dt_bias[of.head],
                 rate = Exp(static_cast<double>(args.a_log[of.head]));
    args.da[to] = static_cast<float>(-product * rate / (1 + Exp(-input)));
    args.da_log[to] = static_cast<float>(-product * rate * Softplus(input));
  }

  static SHIFTRT_DEVICE void QueriesAndKeys(const Head& of, bool adds) {
    const Memory& m = of.m;
    const Args& args = of.args;
    const Delta& d = args.delta;
    const float *const start = d.starts + d.AtChunk(of.chunk.token, of.head), *const end =
                                                                                  d.ends +
                                                                                  d.AtChunk(of.chunk.token, of.head);
    const float last = m.sums[of.chunk.count - 1];
    const auto query = [&](int64_t token) { return d.Query(token, of.head); };
    const auto key = [&](int64_t token) { return d.Key(token, of.head); };
    for (int from = 0; from < d.key_dim; from += kChunk) {
      Tile dqueries = {}, dkeys = {};
      for (int column = 0; column < d.value_dim; column += kChunk) {
        Stage(m.right, [&](int i, int j) { return of.OfState(start, from + i, column + j); });
        Stage(m.left, [&](int t, int j) { return Exp(m.sums[t]) * of.Of(args.dout, t, column + j); });
        MultiplyRows(m.left, m.right, dqueries);
        Stage(m.left, [&](int t, int j) { return -Exp(m.sums[t]) * m.betas[t] * of.Of(args.changes, t, column + j); });
        MultiplyRows(m.left, m.right, dkeys);
        Stage(m.right, [&](int i, int j) { return of.OfState(end, from + i, column + j); });
        Stage(m.left, [&](int t, int j) { return Exp(last - m.sums[t]) * of.Of(d.out, t, column + j); });
        MultiplyRows(m.left, m.right, dkeys);
      }
      Stage(m.left, [&](int t, int i) { return Element(d, of.chunk, t, from + i, query); });
      Stage(m.right, [&](int t, int i) { return Element(d, of.chunk, t, from + i, key); });
      Multiply<false>(m.of_outputs, m.right, dqueries);
      Multiply<false>(m.of_keys, m.right, dkeys);
      Multiply<true>(m.of_outputs, m.left, dkeys);
      ForEach([&](int r, int c, int t, int i) {
        if (t >= of.chunk.count || from + i >= d.key_dim) return;
        float* const to = args.dmixed + (d.Query(of.chunk.token + t, of.head) - d.mixed) + from + i;
        to[0] = adds ? to[0] + dqueries[r][c] : dqueries[r][c];
        to[d.keys] = adds ? to[d.keys] + dkeys[r][c] : dkeys[r][c];
      });
    }
  }

  static SHIFTRT_DEVICE void Run(const Args& args) {
    const Delta& d = args.delta;
    const int first = Block().y * kChunk;
    if (first >= d.Sequence().count) return;
    const Chunk chunk = ChunkOf(d.Sequence(), first);
    SharedArena arena;
    Memory m;
    for (Shared<float>* const matrix : {&m.left, &m.right, &m.of_outputs, &m.of_keys})
      *matrix = arena.Take<float>(kChunk * kPitch);
    for (Shared<float>* const vector : {&m.sums, &m.betas, &m.terms}) *vector = arena.Take<float>(kChunk);
    m.scratch = arena.Take<float>(kWarps);
    const int together = d.value_heads / d.key_heads;
    for (int i = 0; i < together; ++i) {
      const Head of{args, m, chunk, Block().x * together + i};
      SyncThreads();
      if (const int t = Thread(); t < kChunk) {
        m.sums[t] = LogDecaySum(d, chunk, t, of.head);
        m.betas[t] = t < chunk.count ? d.Beta(chunk.token + t, of.head) : 0;
      }
      Solve(of);
      MultiplyTokens(of);
      ValuesAndGates(of);
      QueriesAndKeys(of, i > 0);
    }
  }
};

// The convolution, as the kernels of its gradient take it.
struct Convolution {
  Delta delta;
  const float* x;
  int64_t x_stride;
  const float* w;

  SHIFTRT_DEVICE float Sum(int t, int channel) const {
    const DeltaRange& sequence = delta.Sequence();
    float sum = 0;
    for (int j = 0; j < delta.conv_width; ++j)
      if (const int at = t - delta.conv_width + 1 + j; at >= 0)
        sum += w[channel * delta.conv_width + j] * x[(sequence.begin + at) * x_stride + channel];
    return sum;
  }
};

// From the gradients of normed queries and keys, and of values, those of the sums of the convolution, in their place. A
// warp has a token, and of it a head of the queries, the keys or the values.
struct MixedGradientKernel {
  static constexpr int kThreads = 128, kWarps = kThreads / kWarpSize, kPerLane = kMostDeltaDim / kWarpSize;
  struct Args {
    Convolution convolution;
    float* dmixed;
  };
  static SHIFTRT_DEVICE void Run(const Args& args) {
    const Delta& d = args.convolution.delta;
    const int t = Block().x, item = Block().y * kWarps + Warp(), normed = 2 * d.key_heads;
    if (t >= d.Sequence().count || item >= normed + d.value_heads) return;
    const int dim = item < normed ? d.key_dim : d.value_dim;
    const int first = item < normed ? item * d.key_dim : 2 * d.keys + (item - normed) * d.value_dim;
    float* const rows = args.dmixed + (static_cast<int64_t>(d.Sequence().begin) + t) * d.channels + first;
    float values[kPerLane], slopes[kPerLane], gradients[kPerLane], squares = 0;
#pragma unroll
    for (int r = 0; r < kPerLane; ++r) {
      const int i = Lane() + r * kWarpSize;
      const float sum = i < dim ? args.convolution.Sum(t, first + i) : 0, p = Quotient(1.0f, 1 + Exp(-sum));
      values[r] = sum * p;
      slopes[r] = p * (1 + sum * (1 - p));
      gradients[r] = i < dim ? rows[i] : 0;
      squares += values[r] * values[r];
    }
    if (item < normed) {
      const float inverse = ReciprocalSqrt(WarpSum(squares) + kDeltaEps);
      const float scale = item < d.key_heads ? ReciprocalSqrt(static_cast<float>(d.key_dim)) : 1;
      float along = 0;
      for (int r = 0; r < kPerLane; ++r) along += values[r] * inverse * gradients[r];
      along = WarpSum(along);
      for (int r = 0; r < kPerLane; ++r) gradients[r] = scale * inverse * (gradients[r] - values[r] * inverse * along);
    }
#pragma unroll
    for (int r = 0; r < kPerLane; ++r)
      if (const int i = Lane() + r * kWarpSize; i < dim) rows[i] = gradients[r] * slopes[r];
  }
};

// The gradient of the convolution's input from that of its sums. A thread has a channel of a token.
struct ConvolutionInputKernel {
  static constexpr int kThreads = 128;
  struct Args {
    Convolution convolution;
    const float* dsums;
    float* dx;
  };
  static SHIFTRT_DEVICE void Run(const Args& args) {
    const Delta& d = args.convolution.delta;
    const int t = Block().x, channel = Block().y * kThreads + Thread();
    if (t >= d.Sequence().count || channel >= d.channels) return;
    const int64_t at = (static_cast<int64_t>(d.Sequence().begin) + t) * d.channels + channel;
    float sum = 0;
    for (int later = 0; later < d.conv_width && t + later < d.Sequence().count; ++later)
      sum += args.convolution.w[channel * d.conv_width + d.conv_width - 1 - later] *
             args.dsums[at + static_cast<int64_t>(later) * d.channels];
    args.dx[at] = sum;
  }
};

// The gradient of the convolution's weights. A lane has a channel; the warps divide the tokens of each sequence.
struct ConvolutionWeightKernel {
  static constexpr int kThreads = 256, kWarps = kThreads / kWarpSize;
  static constexpr int kShared = SharedBytes<float>(kThreads);
  struct Args {
    Convolution convolution;
    int sequences;
    const float* dsums;
    float* dw;
  };
  static SHIFTRT_DEVICE void Run(const Args& args) {
    const Convolution& convolution = args.convolution;
    const Delta& d = convolution.delta;
    SharedArena arena;
    const Shared<float> scratch = arena.Take<float>(kThreads);
    const int channel = Block().x * kWarpSize + Lane(), place = Block().y, before = d.conv_width - 1 - place;
    float sum = 0;
    for (int s = 0; s < args.sequences && channel < d.channels; ++s) {
      const DeltaRange& sequence = d.sequences[s];
      for (int t = before + Warp(); t < sequence.count; t += kWarps) {
        const int64_t token = static_cast<int64_t>(sequence.begin) + t;
        sum +=
            convolution.x[(token - before) * convolution.x_stride + channel] * args.dsums[token * d.channels + channel];
      }
    }
    sum = LaneSum<kThreads>(sum, scratch);
    if (Warp() == 0 && channel < d.channels) args.dw[channel * d.conv_width + place] += sum;
  }
};

void RuleGradient(Stream stream, const DeltaGradientCall& of) {
  const DeltaCall& call = of.call;
  ForDeltaSequences(call, [&](Delta delta, int sequences) {
    delta.starts = of.starts;
    delta.ends = of.ends;
    Launch<BackChunksKernel>(stream,
                             {.x = delta.value_heads,
                              .y = Blocks(delta.value_dim, BackChunksKernel::kColumns),
                              .z = sequences,
                              .shared_bytes = BackChunksKernel::SharedSize(delta.key_dim)},
                             {delta, of.dout, of.changes});
    Launch<ChunkGradientKernel>(stream,
                                {.x = delta.key_heads,
                                 .y = Blocks(call.longest, kChunk),
                                 .z = sequences,
                                 .shared_bytes = ChunkGradientKernel::kShared},
                                {delta, of.out, of.dout, of.changes, call.b, call.a, call.a_log, call.dt_bias,
                                 call.gates_stride, of.dmixed, of.da, of.db, of.da_log});
  });
}

}  // namespace

void DeltaGradient(Stream stream, const DeltaGradientCall& of) {
  const DeltaCall& call = of.call;
  Require(call.x.dtype == DType::kFloat32, kDeltaOperation, "float32 in gradients, not elements of bytes",
          static_cast<int64_t>(SizeOf(call.x.dtype)));
  ConvolveDelta(stream, call);
  KeepDeltaStates(stream, call, of.starts);
  RuleGradient(stream, of);
  const auto* const x = static_cast<const float*>(call.x.data);
  ForDeltaSequences(call, [&](const Delta& delta, int sequences) {
    const Convolution convolution{delta, x, call.x_stride, call.conv};
    using Mixed = MixedGradientKernel;
    const int items = static_cast<int>(2 * call.shape.key_heads + call.shape.value_heads);
    const auto tokens = static_cast<int>(call.longest);
    Launch<Mixed>(stream, {.x = tokens, .y = Blocks(items, Mixed::kWarps), .z = sequences}, {convolution, of.dmixed});
    using Input = ConvolutionInputKernel;
    Launch<Input>(stream, {.x = tokens, .y = Blocks(delta.channels, Input::kThreads), .z = sequences},
                  {convolution, of.dmixed, of.dx});
  });
  if (of.dconv == nullptr || call.longest == 0) return;
  Launch<ConvolutionWeightKernel>(
      stream,
      {.x = Blocks(call.shape.channels(), kWarpSize),
       .y = static_cast<int>(call.shape.conv_width),
       .shared_bytes = ConvolutionWeightKernel::kShared},
      {{Of(call), x, call.x_stride, call.conv}, static_cast<int>(call.sequence_count), of.dmixed, of.dconv});
}

}  // namespace shiftrt::gpu
