// SPDX-License-Identifier: Apache-2.0
// The kernels of gated delta networks and those of their gradients share what is declared here.
#pragma once

#include "kernels/cuda/attention_common.h"
#include "kernels/cuda/gated_delta.h"
#include "kernels/cuda/warp.cuh"

namespace shiftrt::gpu {
namespace {

constexpr const char* kDeltaOperation = "a gated delta network";
constexpr float kDeltaEps = 1e-6f;  // added to the squared norms of queries and keys, as transformers does

// GatedDeltaShape and the arrays, as the kernels take them.
struct Delta {
  int key_heads, value_heads, key_dim, value_dim, conv_width, keys, values, channels;
  int64_t state_floats, floats;  // a state of the rule takes the first, and with the convolution's rows the second
  const DeltaRange* sequences;
  float *states, *mixed, *decays, *out, *chunks;
  float *starts, *ends;  // DeltaGradientCall has them; null in other calls
  int first_sequence;    // the number of the launch's first sequence in the call

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
  // The place in `starts` and `ends` of the head's state before the chunk that begins at this token, or its gradient. A
  // sequence of n tokens after m others has at most (m + n) / kChunk - m / kChunk + 1 chunks.
  SHIFTRT_DEVICE int64_t AtChunk(int64_t token, int head) const {
    const int64_t chunk = token / GatedDeltaShape::kChunk + first_sequence + Block().z;
    return (chunk * value_heads + head) * key_dim * value_dim;
  }
};
inline Delta Of(const DeltaCall& call) {
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
          call.chunks,
          nullptr,
          nullptr,
          0};
}

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

// The rows and columns of a thread in a matrix (kChunk, kChunk).
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

// The same with neighbouring threads in a column, for values whose rows lie in memory as columns.
template <typename Value>
SHIFTRT_DEVICE void StageColumns(Shared<float> to, const Value& value) {
  SyncThreads();
  for (int at = Thread(); at < kChunk * kChunk; at += kTileThreads)
    to[at % kChunk * kPitch + at / kChunk] = value(at % kChunk, at / kChunk);
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

// The columns of a head's state that a block has in shared memory, (key_dim, kColumns), in slices of kChunk rows.
struct StateColumns {
  static constexpr int kThreads = kTileThreads, kColumns = 32, kPerRow = kColumns / kSide;
  static constexpr int Slices(int key_dim) { return (key_dim + kChunk - 1) / kChunk; }
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
  // Calls visit(element in shared memory, whether it exists, element of the head's state) for those of the thread.
  template <typename Visit>
  static SHIFTRT_DEVICE void ForState(const Delta& d, int first_column, const Visit& visit) {
    for (int slice = 0; slice < Slices(d.key_dim); ++slice)
      ForEach([&](int, int, int row, int column) {
        const int key = slice * kChunk + row;
        const bool real = key < d.key_dim && first_column + column < d.value_dim;
        visit(key * kColumns + column, real, key * d.value_dim + first_column + column);
      });
  }
};

inline void RequireDelta(const GatedDeltaShape& shape) {
  Require(shape.key_heads > 0 && shape.value_heads % shape.key_heads == 0, kDeltaOperation,
          "a number of heads that is a multiple of those of keys", shape.value_heads);
  Require(shape.key_dim <= kMostDeltaDim && shape.value_dim <= kMostDeltaDim, kDeltaOperation, "heads of at most 256",
          shape.key_dim > shape.value_dim ? shape.key_dim : shape.value_dim);
}

// Calls launch(arguments, blocks along z) for as many sequences at a time as a grid can have.
template <typename Body>
void ForDeltaSequences(const DeltaCall& call, const Body& launch) {
  if (call.longest == 0) return;
  ForSequences(call.sequence_count, [&](int64_t first, int blocks) {
    Delta delta = Of(call);
    delta.sequences += first;
    delta.first_sequence = static_cast<int>(first);
    launch(delta, blocks);
  });
}

SHIFTRT_DEVICE double Softplus(double x) { return x > 20 ? x : Log(1 + Exp(x)); }

}  // namespace
}  // namespace shiftrt::gpu
