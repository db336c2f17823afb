// SPDX-License-Identifier: Apache-2.0
// Follows FlashAttention-2's backward pass (Dao 2023), in two kernels of one form, so that no sum is made by atomics:
// one gives the gradient of the queries, the other those of keys and values. A block keeps some rows (queries, or keys)
// of one head and loops over tiles of columns (keys, or queries). A warp computes the scores of its rows again and
// turns them into weights and into gradients of scores, which stay in its registers as operands of the next products.
#include "kernels/cuda/attention_common.h"
#include "kernels/cuda/warp.cuh"

namespace shiftrt::gpu {

namespace {

// deltas[t][h] = <dout, out>, by which the softmax's gradient differs from the product. Each warp processes one head of
// a token.
template <typename T>
struct DeltaKernel {
  static constexpr int kThreads = 128;
  struct Args {
    const T *out, *dout;
    float* deltas;
    int64_t count;  // tokens * heads
    int head_dim;
  };
  static SHIFTRT_DEVICE void Run(const Args& args) {
    const int64_t head = static_cast<int64_t>(Block().x) * (kThreads / kWarpSize) + Warp();
    if (head >= args.count) return;
    float sum = 0;
    for (int i = Lane(); i < args.head_dim; i += kWarpSize)
      sum += Widen(args.out[head * args.head_dim + i]) * Widen(args.dout[head * args.head_dim + i]);
    sum = WarpSum(sum);
    if (Lane() == 0) args.deltas[head] = sum;
  }
};

// A lane has a head; the warps divide the tokens.
struct SinkGradientKernel {
  static constexpr int kThreads = 256, kWarps = kThreads / kWarpSize;
  static constexpr int kShared = SharedBytes<float>(kThreads);
  struct Args {
    const float *sinks, *log_sums, *deltas;
    float* dsinks;
    int64_t tokens;
    int heads;
  };
  static SHIFTRT_DEVICE void Run(const Args& args) {
    SharedArena arena;
    const Shared<float> sums = arena.Take<float>(kThreads);
    const int head = Block().x * kWarpSize + Lane();
    float sum = 0;
    for (int64_t t = Warp(); t < args.tokens && head < args.heads; t += kWarps) {
      const int64_t at = t * args.heads + head;
      sum += Exp(args.sinks[head] - args.log_sums[at]) * args.deltas[at];
    }
    sum = LaneSum<kThreads>(sum, sums);
    if (Warp() == 0 && head < args.heads) args.dsinks[head] -= sum;
  }
};

// With kKeysStay, rows are keys and columns are queries; otherwise the other way round. `first` stands for queries and
// keys, `second` for dout and values, which meet in the products
//   scores = first of rows x first of columns, dweights = second of rows x second of columns,
//   gradient of the rows' first += dscores x first of columns, and of values += weights x second of columns.
template <typename T, int kHeadDim, bool kKeysStay>
struct GradientKernel {
  static constexpr bool kMatrixUnit = sizeof(T) == 2;  // float32 is multiplied as such, lane by lane
  static constexpr int kRowBytes = kHeadDim * static_cast<int>(sizeof(T));
  static constexpr int kWarps = kRowBytes <= 512 ? 4 : 2, kThreads = kWarps * kWarpSize, kRows = 16 * kWarps;
  static constexpr int kColumns = kRowBytes <= 256 ? 32 : 16;
  static constexpr int kStages =
      kMatrixUnit && kHeadDim <= 128 ? 2 : 1;  // tiles of columns that are there or on the way
  static constexpr int kPiece = 16 / static_cast<int>(sizeof(T));
  static constexpr int kStride = kHeadDim + kPiece;  // 16 bytes of padding avoid bank conflicts
  // Gradients of 16 x 256 do not fit into a warp's registers twice, so the columns of keys' and values' are two
  // blocks'.
  static constexpr int kSlices = kKeysStay && kHeadDim > 128 ? 2 : 1, kOut = kHeadDim / kSlices;
  static constexpr int kColumnTiles = kColumns / 8, kOutTiles = kOut / 8;
  struct Args {
    const T *q, *keys, *values, *dout;
    const float *log_sums, *deltas;  // (tokens, heads)
    const PackedSequence* sequences;
    float *dfirst, *dvalues;  // gradients of queries and nothing, or of keys and values
    int heads, kv_heads;
    int window;  // 0: none
    bool capped;
    float scale;
    ScoreScales scales;
  };
  static constexpr int kShared = 2 * SharedBytes<T>(kRows * kStride) +
                                 2 * SharedBytes<T>(kStages * kColumns * kStride) +
                                 2 * SharedBytes<float>(kStages * kColumns);
  static_assert(kShared <= kMaxSharedBytes);

  struct Tiles {
    Shared<T> row_first, row_second, first, second;
    Shared<float> log_sums, deltas;  // one per column, if the columns are queries
  };
  using Products = float[kColumnTiles][4];
  using Gradient = float[kOutTiles][4];

  // The columns that the rows of this block meet: `tiles` tiles from column `begin` on, of each of the `heads` query
  // heads from `head` on.
  struct TileRange {
    int begin, tiles, head, heads;
  };

  // Copies rows begin .. begin + count - 1 of one head of a (tokens, heads, head_dim) array; zeros from `limit` on.
  static SHIFTRT_DEVICE void Copy(Shared<T> to, const T* from, int row_stride, int begin, int count, int limit) {
    constexpr int kPieces = kHeadDim / kPiece;
#pragma unroll 1  // unrolling would take registers that the products need
    for (int i = Thread(); i < count * kPieces; i += kThreads) {
      const int row = i / kPieces, at = kPiece * (i % kPieces);
      CopyAsync16(to + row * kStride + at, from + static_cast<int64_t>(begin + row) * row_stride + at,
                  begin + row < limit);
    }
  }

  // Starts the copies of a tile of columns.
  static SHIFTRT_DEVICE void Fetch(const Args& args, const PackedSequence& sequence, const TileRange& range, int step,
                                   const Tiles& tiles) {
    const int column = range.begin + step % range.tiles * kColumns, head = range.head + step / range.tiles;
    const int stage = step % kStages, kv_head = head / (args.heads / args.kv_heads);
    const int q_stride = args.heads * kHeadDim, kv_stride = args.kv_heads * kHeadDim;
    const int stride = kKeysStay ? q_stride : kv_stride;
    const int64_t from = static_cast<int64_t>(sequence.begin) * stride + (kKeysStay ? head : kv_head) * kHeadDim;
    Copy(tiles.first + stage * kColumns * kStride, (kKeysStay ? args.q : args.keys) + from, stride, column, kColumns,
         sequence.count);
    Copy(tiles.second + stage * kColumns * kStride, (kKeysStay ? args.dout : args.values) + from, stride, column,
         kColumns, sequence.count);
    CopyAsyncCommit();
    if (!kKeysStay || Thread() >= kColumns) return;
    const bool valid = column + Thread() < sequence.count;
    const int64_t at = static_cast<int64_t>(sequence.begin + column + Thread()) * args.heads + head;
    tiles.log_sums[stage * kColumns + Thread()] = valid ? args.log_sums[at] : 0;
    tiles.deltas[stage * kColumns + Thread()] = valid ? args.deltas[at] : 0;
  }

  // out = the products of this warp's 16 rows and the tile's columns, over the whole head.
  static SHIFTRT_DEVICE void Multiply(Shared<T> rows, Shared<T> columns, Products& out) {
#pragma unroll
    for (int n = 0; n < kColumnTiles; ++n)
      for (int r = 0; r < 4; ++r) out[n][r] = 0;
    if constexpr (kMatrixUnit) {
#pragma unroll
      for (int k = 0; k < kHeadDim; k += 16) {
        uint32_t a[4];
        LoadMatrices(a, rows + (16 * Warp() + Lane() % 16) * kStride + k + Lane() / 16 * 8);
#pragma unroll
        for (int n = 0; n < kColumnTiles; n += 2) {
          uint32_t b[4];
          LoadMatrices(b, columns + (8 * n + Lane() / 16 * 8 + Lane() % 8) * kStride + k + Lane() / 8 % 2 * 8);
          MultiplyAccumulate<T>(out[n], a, b[0], b[1]);
          MultiplyAccumulate<T>(out[n + 1], a, b[2], b[3]);
        }
      }
    } else {
#pragma unroll 1
      for (int k = 0; k < kHeadDim; k += 4) {
        float a[2][4];
        for (int half = 0; half < 2; ++half)
          LoadShared4(rows + (16 * Warp() + Lane() / 4 + 8 * half) * kStride + k, a[half]);
#pragma unroll
        for (int n = 0; n < kColumnTiles; ++n) {
          for (int c = 0; c < 2; ++c) {
            float b[4];
            LoadShared4(columns + (8 * n + 2 * (Lane() % 4) + c) * kStride + k, b);
            for (int half = 0; half < 2; ++half)
              for (int j = 0; j < 4; ++j) out[n][2 * half + c] += a[half][j] * b[j];
          }
        }
      }
    }
  }

  // out += weights (16 x kColumns) of this warp x columns (kColumns x kOut). What Multiply() leaves in a lane is what
  // it gives as an operand here.
  static SHIFTRT_DEVICE void AddProducts(const Products& weights, Shared<T> columns, Gradient& out) {
    if constexpr (kMatrixUnit) {
#pragma unroll
      for (int n = 0; n < kColumnTiles; n += 2) {
        uint32_t a[4];
        for (int r = 0; r < 4; ++r)
          a[r] = Pack2<T>(weights[n + r / 2][2 * (r % 2)], weights[n + r / 2][2 * (r % 2) + 1]);
#pragma unroll
        for (int d = 0; d < kOutTiles; d += 2) {
          uint32_t b[4];
          LoadMatricesTransposed(b, columns + (8 * n + Lane() % 16) * kStride + 8 * d + Lane() / 16 * 8);
          MultiplyAccumulate<T>(out[d], a, b[0], b[1]);
          MultiplyAccumulate<T>(out[d + 1], a, b[2], b[3]);
        }
      }
    } else {
#pragma unroll
      for (int n = 0; n < kColumnTiles; ++n) {
#pragma unroll
        for (int c = 0; c < 8; ++c) {
          float a[2];
          for (int half = 0; half < 2; ++half) a[half] = Shuffle(weights[n][2 * half + c % 2], Lane() / 4 * 4 + c / 2);
#pragma unroll
          for (int d = 0; d < kOutTiles; ++d)
            for (int r = 0; r < 4; ++r)
              out[d][r] += a[r / 2] * columns[(8 * n + c) * kStride + 8 * d + 2 * (Lane() % 4) + r % 2];
        }
      }
    }
  }

  static SHIFTRT_DEVICE bool Visible(int row, int column, int window, int count) {
    const int key = kKeysStay ? row : column, query = kKeysStay ? column : row;
    return key <= query && query < count && (window == 0 || key > query - window);
  }

  // Replaces scores by weights, and the weights' gradients by those of the unscaled scores. `rows` has the log sums and
  // the deltas of the lane's two rows, where these are queries.
  static SHIFTRT_DEVICE void Differentiate(const Args& args, const float (&rows)[2][2], Shared<float> log_sums,
                                           Shared<float> deltas, int first_row, int first_column, int count,
                                           Products& scores, Products& gradients) {
#pragma unroll
    for (int n = 0; n < kColumnTiles; ++n) {
#pragma unroll
      for (int r = 0; r < 4; ++r) {
        const int c = 8 * n + 2 * (Lane() % 4) + r % 2, row = first_row + Lane() / 4 + 8 * (r / 2);
        const float log_sum = kKeysStay ? log_sums[c] : rows[0][r / 2], delta = kKeysStay ? deltas[c] : rows[1][r / 2];
        float slope = 1, score = scores[n][r];
        if (args.capped) {
          score = Tanh(score * args.scales.inner);
          slope = 1 - score * score;
        }
        const bool visible = Visible(row, first_column + c, args.window, count);
        const float weight = visible ? Exp2(score * args.scales.outer - log_sum * kLog2E) : 0;
        scores[n][r] = weight;
        gradients[n][r] = visible ? weight * (gradients[n][r] - delta) * slope : 0;
      }
    }
  }

  static SHIFTRT_DEVICE void Store(float* to, int row_stride, int rows_left, float scale, const Gradient& gradient) {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const int row = Lane() / 4 + 8 * half;
      if (row >= rows_left) continue;
#pragma unroll
      for (int d = 0; d < kOutTiles; ++d)
        for (int c = 0; c < 2; ++c)
          to[static_cast<int64_t>(row) * row_stride + 8 * d + 2 * (Lane() % 4) + c] = gradient[d][2 * half + c] * scale;
    }
  }

  static SHIFTRT_DEVICE TileRange TileRangeOf(const Args& args, int first, int head, int count) {
    const int group = args.heads / args.kv_heads;
    const int last = first + kRows < count ? first + kRows : count;
    int begin = 0, end = last;
    if constexpr (kKeysStay) {
      begin = first;
      end = args.window > 0 && last - 1 + args.window < count ? last - 1 + args.window : count;
    } else if (args.window > 0 && first + 1 > args.window) {
      begin = first + 1 - args.window;
    }
    return {begin, (end - begin + kColumns - 1) / kColumns, kKeysStay ? head * group : head, kKeysStay ? group : 1};
  }

  static SHIFTRT_DEVICE void Run(const Args& args) {
    const PackedSequence sequence = args.sequences[Block().z];
    // The blocks with the most columns start first: keys are seen by the queries after them, and queries see the keys
    // before them.
    const int first = kKeysStay ? Block().y * kRows : FirstQuery(kRows);
    if (first >= sequence.count) return;
    SharedArena arena;
    Tiles tiles;
    tiles.row_first = arena.Take<T>(kRows * kStride);
    tiles.row_second = arena.Take<T>(kRows * kStride);
    tiles.first = arena.Take<T>(kStages * kColumns * kStride);
    tiles.second = arena.Take<T>(kStages * kColumns * kStride);
    tiles.log_sums = arena.Take<float>(kStages * kColumns);
    tiles.deltas = arena.Take<float>(kStages * kColumns);
    const int head = Block().x / kSlices, slice = Block().x % kSlices * kOut;
    const int row_stride = (kKeysStay ? args.kv_heads : args.heads) * kHeadDim;
    const int64_t rows_begin = static_cast<int64_t>(sequence.begin) * row_stride + head * kHeadDim;
    const TileRange range = TileRangeOf(args, first, head, sequence.count);
    const int steps = range.tiles * range.heads, first_row = first + 16 * Warp();

    float rows[2][2] = {};
    if constexpr (!kKeysStay) {
      for (int half = 0; half < 2; ++half) {
        const int query = first_row + Lane() / 4 + 8 * half;
        if (query >= sequence.count) continue;
        const int64_t at = static_cast<int64_t>(sequence.begin + query) * args.heads + head;
        rows[0][half] = args.log_sums[at];
        rows[1][half] = args.deltas[at];
      }
    }
    Gradient dfirst, dvalues;
#pragma unroll
    for (int d = 0; d < kOutTiles; ++d)
      for (int r = 0; r < 4; ++r) dfirst[d][r] = dvalues[d][r] = 0;

    Copy(tiles.row_first, (kKeysStay ? args.keys : args.q) + rows_begin, row_stride, first, kRows, sequence.count);
    Copy(tiles.row_second, (kKeysStay ? args.values : args.dout) + rows_begin, row_stride, first, kRows,
         sequence.count);
    Fetch(args, sequence, range, 0, tiles);
#pragma unroll 1
    for (int step = 0; step < steps; ++step) {
      CopyAsyncWait<0>();
      SyncThreads();  // the tile is there, and the one before is no longer needed
      if (kStages > 1 && step + 1 < steps) Fetch(args, sequence, range, step + 1, tiles);
      const int column = range.begin + step % range.tiles * kColumns, stage = step % kStages * kColumns;
      // True if any row of this warp sees any column of the tile.
      const bool meets =
          kKeysStay ? column + kColumns > first_row && (args.window == 0 || column < first_row + 15 + args.window)
                    : column < first_row + 16 && (args.window == 0 || column + kColumns > first_row + 1 - args.window);
      if (meets) {
        const Shared<T> columns_first = tiles.first + stage * kStride, columns_second = tiles.second + stage * kStride;
        Products scores, gradients;
        Multiply(tiles.row_first, columns_first, scores);
        Multiply(tiles.row_second, columns_second, gradients);
        Differentiate(args, rows, tiles.log_sums + stage, tiles.deltas + stage, first_row, column, sequence.count,
                      scores, gradients);
        if constexpr (kKeysStay) AddProducts(scores, columns_second + slice, dvalues);
        AddProducts(gradients, columns_first + slice, dfirst);
      }
      if (kStages > 1 || step + 1 == steps) continue;
      SyncThreads();  // the tile is no longer needed
      Fetch(args, sequence, range, step + 1, tiles);
    }
    const int64_t at = rows_begin + static_cast<int64_t>(first_row) * row_stride + slice;
    Store(args.dfirst + at, row_stride, sequence.count - first_row, args.scale, dfirst);
    if constexpr (kKeysStay) Store(args.dvalues + at, row_stride, sequence.count - first_row, 1, dvalues);
  }
};

template <typename T, int kHeadDim, bool kKeysStay>
void LaunchGradient(Stream stream, const AttentionGradientCall& call) {
  using Kernel = GradientKernel<T, kHeadDim, kKeysStay>;
  const AttentionShape& shape = call.shape;
  typename Kernel::Args args{.q = static_cast<const T*>(call.q.data),
                             .keys = static_cast<const T*>(call.keys.data),
                             .values = static_cast<const T*>(call.values.data),
                             .dout = static_cast<const T*>(call.dout.data),
                             .log_sums = call.log_sums,
                             .deltas = call.deltas,
                             .sequences = nullptr,
                             .dfirst = kKeysStay ? call.dkeys : call.dq,
                             .dvalues = kKeysStay ? call.dvalues : nullptr,
                             .heads = shape.heads,
                             .kv_heads = shape.kv_heads,
                             .window = shape.window,
                             .capped = shape.soft_cap > 0,
                             .scale = shape.scale,
                             .scales = ScalesOf(shape)};
  ForSequences(call.sequence_count, [&](int64_t first, int blocks) {
    args.sequences = call.sequences + first;
    Launch<Kernel>(stream,
                   {.x = (kKeysStay ? shape.kv_heads : shape.heads) * Kernel::kSlices,
                    .y = Blocks(call.longest, Kernel::kRows),
                    .z = blocks,
                    .shared_bytes = Kernel::kShared},
                   args);
  });
}

template <typename T>
void AttendGradientIn(Stream stream, const AttentionGradientCall& call) {
  const AttentionShape& shape = call.shape;
  using Deltas = DeltaKernel<T>;
  const int64_t heads = call.tokens * shape.heads;
  Launch<Deltas>(stream, {.x = Blocks(heads, Deltas::kThreads / kWarpSize)},
                 {static_cast<const T*>(call.out.data), static_cast<const T*>(call.dout.data), call.deltas, heads,
                  shape.head_dim});
  WithHeadDim(shape.head_dim, [&](auto head_dim) {
    LaunchGradient<T, head_dim(), false>(stream, call);
    LaunchGradient<T, head_dim(), true>(stream, call);
  });
}

}  // namespace

void AddSinkGradient(Stream stream, const float* sinks, MatrixView<const float> log_sums, const float* deltas,
                     float* dsinks) {
  using Kernel = SinkGradientKernel;
  if (log_sums.rows == 0) return;
  Launch<Kernel>(stream, {.x = Blocks(log_sums.cols, kWarpSize), .shared_bytes = Kernel::kShared},
                 {sinks, log_sums.data, deltas, dsinks, log_sums.rows, static_cast<int>(log_sums.cols)});
}

void AttendGradient(Stream stream, const AttentionGradientCall& call) {
  RequireShape(call.shape);
  const DType type = call.q.dtype;
  Require(type == call.keys.dtype && type == call.values.dtype && type == call.out.dtype && type == call.dout.dtype,
          "the gradient of attention", "one type throughout, not queries of bytes", static_cast<int64_t>(SizeOf(type)));
  if (call.longest == 0 || call.sequence_count == 0) return;
  switch (type) {
    case DType::kBFloat16: return AttendGradientIn<BFloat16>(stream, call);
    case DType::kFloat32: return AttendGradientIn<float>(stream, call);
    default:
      Refuse("the gradient of attention", "bfloat16 or float32, not elements of bits",
             8 * static_cast<int64_t>(SizeOf(type)));
  }
}

}  // namespace shiftrt::gpu
