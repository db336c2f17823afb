// SPDX-License-Identifier: Apache-2.0
// Products of a few tokens with quantised weights, and their conversion for everything else.
#include "kernels/cuda/blocks.cuh"
#include "kernels/cuda/warp.cuh"

namespace shiftrt::gpu {

namespace {

constexpr const char *kFew = "product of a few tokens with quantised weights",
                     *kExpand = "conversion of quantised rows";
constexpr int kTileRows = 16, kTileTokens = 8;

// A block computes kTiles tiles of 16 rows, for up to 8 kTokenTiles tokens. Its warps divide the columns: each takes
// four pieces of 32 columns per step, one per lane of a quarter, and adds up its part of the products with mma. In what
// order a sum takes its columns is free, so a lane multiplies the columns that it has, four of each row at a time. The
// warps' parts are added up in shared memory, in the order of the warps.
template <DType kType, int kTiles, int kTokenTiles>
struct FewKernel {
  static constexpr int kThreads = 256, kWarps = kThreads / kWarpSize;
  static constexpr int kLeastBlocks = 2;
  static constexpr int kOutputs = kTiles * kTileRows * kTokenTiles * kTileTokens;
  using Format = BlockFormat<kType>;
  struct Args {
    StoredPart w;
    const BFloat16* x;
    BFloat16* y;  // null: `wide` instead
    float* wide;
    int64_t y_stride;
    int rows, cols, tokens;
    bool accumulate;
  };
  static constexpr int SharedSize() { return SharedBytes<float>(kWarps * kOutputs); }

  static SHIFTRT_DEVICE void Run(const Args& args) {
    SharedArena arena;
    const Shared<float> parts = arena.Take<float>(kWarps * kOutputs);
    const int group = Lane() / 4, quarter = Lane() % 4, first_row = Block().x * kTiles * kTileRows;
    BlockRow rows[kTiles][2];
#pragma unroll
    for (int tile = 0; tile < kTiles; ++tile) {
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const int row = first_row + tile * kTileRows + half * 8 + group;
        rows[tile][half] = args.w.template Row<kType>(row < args.rows ? row : args.rows - 1, args.cols);
      }
    }
    float sums[kTiles][kTokenTiles][4] = {};
    const int pieces = args.cols / kPieceColumns;
    // All lanes of a warp multiply together; one behind the last piece multiplies zeros.
    for (int first = 4 * Warp(); first < pieces; first += 4 * kWarps) {
      const int piece = first + quarter;
      const bool real = piece < pieces;
      typename Format::Raw raw[kTiles][2] = {};
#pragma unroll
      for (int tile = 0; tile < kTiles; ++tile)
#pragma unroll
        for (int half = 0; half < 2; ++half)
          if (real) raw[tile][half] = Format::Load(rows[tile][half], piece);
#pragma unroll
      for (int run = 0; run < 4; ++run) {
        uint32_t x[kTokenTiles][4] = {};
#pragma unroll
        for (int t = 0; t < kTokenTiles; ++t) {
          const int token = t * kTileTokens + group;
          if (real && token < args.tokens)
            LoadPairs(args.x + static_cast<int64_t>(token) * args.cols + Format::Column(piece, run), x[t]);
        }
#pragma unroll
        for (int tile = 0; tile < kTiles; ++tile) {
          uint32_t w[2][4] = {};
#pragma unroll
          for (int half = 0; half < 2; ++half) {
            float weights[8];
            WeightsOf<Format>(raw[tile][half], piece, run, weights);
#pragma unroll
            for (int j = 0; j < 4; ++j) w[half][j] = real ? Pack2<BFloat16>(weights[2 * j], weights[2 * j + 1]) : 0;
          }
#pragma unroll
          for (int j = 0; j < 4; j += 2) {
            const uint32_t a[4] = {w[0][j], w[1][j], w[0][j + 1], w[1][j + 1]};
#pragma unroll
            for (int t = 0; t < kTokenTiles; ++t) MultiplyAccumulate<BFloat16>(sums[tile][t], a, x[t][j], x[t][j + 1]);
          }
        }
      }
    }
    // A lane has, of each tile, the rows `group` and 8 + group for the tokens 2 quarter and 2 quarter + 1.
#pragma unroll
    for (int tile = 0; tile < kTiles; ++tile)
#pragma unroll
      for (int t = 0; t < kTokenTiles; ++t)
#pragma unroll
        for (int i = 0; i < 4; ++i) {
          const int row = tile * kTileRows + i / 2 * 8 + group, token = t * kTileTokens + 2 * quarter + i % 2;
          parts[Warp() * kOutputs + token * kTiles * kTileRows + row] = sums[tile][t][i];
        }
    SyncThreads();
    for (int at = Thread(); at < kOutputs; at += kThreads) {
      const int row = first_row + at % (kTiles * kTileRows), token = at / (kTiles * kTileRows);
      if (row >= args.rows || token >= args.tokens) continue;
      float sum = 0;
      for (int warp = 0; warp < kWarps; ++warp) sum += parts[warp * kOutputs + at];
      const int64_t to = token * args.y_stride + row;
      if (args.y != nullptr) {
        args.y[to] = Narrow<BFloat16>(args.accumulate ? sum + Widen(args.y[to]) : sum);
      } else {
        args.wide[to] = args.accumulate ? sum + args.wide[to] : sum;
      }
    }
  }
};

// A thread converts a piece. The blocks along y divide the pieces of a row.
template <DType kType, typename To>
struct ExpandKernel {
  static constexpr int kThreads = 128;
  using Format = BlockFormat<kType>;
  struct Args {
    StoredPart w;
    const int32_t* rows;  // null: row by row
    To* to;
    int cols;
    float scale;
  };
  static SHIFTRT_DEVICE void Run(const Args& args) {
    const int piece = Block().y * kThreads + Thread();
    if (piece >= args.cols / kPieceColumns) return;
    const int row = args.rows != nullptr ? args.rows[Block().x] : Block().x;
    const typename Format::Raw raw = Format::Load(args.w.template Row<kType>(row, args.cols), piece);
    To* const to = args.to + static_cast<int64_t>(Block().x) * args.cols;
#pragma unroll
    for (int run = 0; run < 4; ++run) {
      float weights[8];
      WeightsOf<Format>(raw, piece, run, weights);
      for (int j = 0; j < 8; ++j) weights[j] *= args.scale;
      Store8(to + Format::Column(piece, run), weights);
    }
  }
};

// Calls body(std::integral_constant<DType, type>()). Throws Error for types whose blocks are not read.
template <typename Body>
void WithBlocks(const char* operation, DType type, Body&& body) {
  Require(TakesBlocks(type), operation, "Q4_0, Q8_0, Q4_K or Q6_K, not elements or blocks of bytes",
          static_cast<int64_t>(SizeOf(type)));
  switch (type) {
    case DType::kQ4_0: return body(std::integral_constant<DType, DType::kQ4_0>());
    case DType::kQ8_0: return body(std::integral_constant<DType, DType::kQ8_0>());
    case DType::kQ4_K: return body(std::integral_constant<DType, DType::kQ4_K>());
    default: return body(std::integral_constant<DType, DType::kQ6_K>());
  }
}

}  // namespace

int ChooseFewTiles(int64_t rows, int multiprocessors) { return Blocks(rows, 2 * kTileRows) >= multiprocessors ? 2 : 1; }

void MultiplyFew(Stream stream, const FewProblem& problem, int multiprocessors) {
  const bool wide = problem.y.dtype == DType::kFloat32;
  Require(problem.m >= 0 && problem.m <= kFewTokens, kFew, "up to 16 tokens", problem.m);
  Require(wide || problem.y.dtype == DType::kBFloat16, kFew, "results in bfloat16 or float32, not elements of bytes",
          static_cast<int64_t>(SizeOf(problem.y.dtype)));
  if (problem.m == 0 || problem.w.rows == 0) return;
  const int tiles = ChooseFewTiles(problem.w.rows, multiprocessors);
  WithBlocks(kFew, problem.w.array.dtype, [&](auto type) {
    Require(problem.k % LayoutOf(type()).elements == 0, kFew, "columns that are whole blocks", problem.k);
    const auto launch = [&](auto kernel) {
      using Kernel = decltype(kernel);
      Launch<Kernel>(stream, {.x = Blocks(problem.w.rows, tiles * kTileRows), .shared_bytes = Kernel::SharedSize()},
                     {.w = Stored(problem.w, problem.k),
                      .x = problem.x,
                      .y = wide ? nullptr : static_cast<BFloat16*>(problem.y.data),
                      .wide = wide ? static_cast<float*>(problem.y.data) : nullptr,
                      .y_stride = problem.y_stride > 0 ? problem.y_stride : problem.w.rows,
                      .rows = static_cast<int>(problem.w.rows),
                      .cols = static_cast<int>(problem.k),
                      .tokens = static_cast<int>(problem.m),
                      .accumulate = problem.accumulate});
    };
    const auto with_tokens = [&](auto of) {
      if (problem.m <= kTileTokens) return launch(FewKernel<type(), of(), 1>());
      launch(FewKernel<type(), of(), 2>());
    };
    if (tiles == 1) return with_tokens(std::integral_constant<int, 1>());
    with_tokens(std::integral_constant<int, 2>());
  });
}

void ExpandRows(Stream stream, const WeightPart& part, int64_t cols, const DeviceArray& to, const int32_t* rows,
                int64_t to_rows, float scale) {
  const int64_t count = rows != nullptr ? to_rows : part.rows;
  WithBlocks(kExpand, part.array.dtype, [&](auto type) {
    Require(cols % LayoutOf(type()).elements == 0, kExpand, "columns that are whole blocks", cols);
    if (count == 0) return;
    const auto launch = [&](auto as) {
      using To = decltype(as);
      using Kernel = ExpandKernel<type(), To>;
      Launch<Kernel>(stream, {.x = static_cast<int>(count), .y = Blocks(cols / kPieceColumns, Kernel::kThreads)},
                     {Stored(part, cols), rows, static_cast<To*>(to.data), static_cast<int>(cols), scale});
    };
    if (to.dtype == DType::kFloat32) return launch(float());
    Require(to.dtype == DType::kBFloat16, kExpand, "results in bfloat16 or float32, not elements of bytes",
            static_cast<int64_t>(SizeOf(to.dtype)));
    launch(BFloat16());
  });
}

}  // namespace shiftrt::gpu
