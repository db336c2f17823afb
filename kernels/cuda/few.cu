// SPDX-License-Identifier: Apache-2.0
// Products of a few tokens, for which reading the weights takes longest.
#include <type_traits>

#include "kernels/cuda/blocks.cuh"
#include "kernels/cuda/warp.cuh"

namespace shiftrt::gpu {

namespace {

constexpr const char* kFew = "product of a few tokens";
constexpr int kTileRows = 16, kTileTokens = 8;

// A lane's piece of a row of W, whose runs become four pairs of 16-bit weights. Has() tells whether the row has a run.
template <DType kType>
struct FewWeights {
  using T = BFloat16;
  using Format = BlockFormat<kType>;
  using Raw = typename Format::Raw;
  static SHIFTRT_DEVICE BlockRow Row(const StoredPart& w, int row, int cols) { return w.Row<kType>(row, cols); }
  static SHIFTRT_DEVICE Raw Load(const BlockRow& row, int piece, int cols) {
    Raw raw = {};
    if (Has(piece, 0, cols)) raw = Format::Load(row, piece);
    return raw;
  }
  static SHIFTRT_DEVICE bool Has(int piece, int, int cols) { return kPieceColumns * piece < cols; }
  static SHIFTRT_DEVICE int Column(int piece, int run) { return Format::Column(piece, run); }
  static SHIFTRT_DEVICE void Pairs(const Raw& raw, int piece, int run, uint32_t (&pairs)[4]) {
    float weights[8];
    WeightsOf<Format>(raw, piece, run, weights);
#pragma unroll
    for (int j = 0; j < 4; ++j) pairs[j] = Pack2<T>(weights[2 * j], weights[2 * j + 1]);
  }
};

// Dense rows of 16-bit elements. The four lanes that share a row load 64 adjacent bytes of it at a time.
template <typename Element>
struct DenseFewWeights {
  using T = Element;
  struct Raw {
    uint32_t runs[4][4];
  };
  static SHIFTRT_DEVICE BlockRow Row(const StoredPart& w, int row, int cols) {
    return w.Row<DType::kBFloat16>(row, cols);  // two bytes per element
  }
  static SHIFTRT_DEVICE Raw Load(const BlockRow& row, int piece, int cols) {
    Raw raw = {};
#pragma unroll
    for (int run = 0; run < 4; ++run)
      if (Has(piece, run, cols)) LoadOnceWords<16>(row.planes[0] + 2 * Column(piece, run), raw.runs[run]);
    return raw;
  }
  static SHIFTRT_DEVICE bool Has(int piece, int run, int cols) { return Column(piece, run) < cols; }
  static SHIFTRT_DEVICE int Column(int piece, int run) { return 128 * (piece / 4) + 8 * (piece % 4) + 32 * run; }
  static SHIFTRT_DEVICE void Pairs(const Raw& raw, int, int run, uint32_t (&pairs)[4]) {
#pragma unroll
    for (int j = 0; j < 4; ++j) pairs[j] = raw.runs[run][j];
  }
};
template <>
struct FewWeights<DType::kBFloat16> : DenseFewWeights<BFloat16> {};
template <>
struct FewWeights<DType::kFloat16> : DenseFewWeights<Float16> {};

// A block computes kTiles tiles of 16 rows, for up to 8 kTokenTiles tokens. Its warps divide the columns: each takes
// four pieces of 32 columns per step, one per lane of a quarter, and adds up its part of the products with mma. In what
// order a sum takes its columns is free, so a lane multiplies the columns that it has, four of each row at a time. The
// warps' parts are added up in shared memory, in the order of the warps. No sum depends on the number of tokens.
template <DType kType, int kTiles, int kTokenTiles>
struct FewKernel {
  static constexpr int kThreads = 256, kWarps = kThreads / kWarpSize;
  static constexpr int kLeastBlocks = kTokenTiles > 2 ? 1 : 2;
  static constexpr int kOutputs = kTiles * kTileRows * kTokenTiles * kTileTokens;
  using W = FewWeights<kType>;
  using T = typename W::T;
  struct Args {
    StoredPart w;
    const T* x;
    T* y;  // null: `wide` instead
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
        rows[tile][half] = W::Row(args.w, row < args.rows ? row : args.rows - 1, args.cols);
      }
    }
    float sums[kTiles][kTokenTiles][4] = {};
    // All lanes of a warp multiply together; one behind the last column multiplies zeros.
    const int pieces = (args.cols + kPieceColumns - 1) / kPieceColumns;
    for (int first = 4 * Warp(); first < pieces; first += 4 * kWarps) {
      const int piece = first + quarter;
      typename W::Raw raw[kTiles][2];
#pragma unroll
      for (int tile = 0; tile < kTiles; ++tile)
#pragma unroll
        for (int half = 0; half < 2; ++half) raw[tile][half] = W::Load(rows[tile][half], piece, args.cols);
#pragma unroll
      for (int run = 0; run < 4; ++run) {
        const bool real = W::Has(piece, run, args.cols);
        uint32_t x[kTokenTiles][4] = {};
#pragma unroll
        for (int t = 0; t < kTokenTiles; ++t) {
          const int token = t * kTileTokens + group;
          if (real && token < args.tokens)
            LoadPairs(args.x + static_cast<int64_t>(token) * args.cols + W::Column(piece, run), x[t]);
        }
#pragma unroll
        for (int tile = 0; tile < kTiles; ++tile) {
          uint32_t w[2][4];
#pragma unroll
          for (int half = 0; half < 2; ++half) {
            W::Pairs(raw[tile][half], piece, run, w[half]);
#pragma unroll
            for (int j = 0; j < 4; ++j) w[half][j] = real ? w[half][j] : 0;
          }
#pragma unroll
          for (int j = 0; j < 4; j += 2) {
            const uint32_t a[4] = {w[0][j], w[1][j], w[0][j + 1], w[1][j + 1]};
#pragma unroll
            for (int t = 0; t < kTokenTiles; ++t) MultiplyAccumulate<T>(sums[tile][t], a, x[t][j], x[t][j + 1]);
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
        args.y[to] = Narrow<T>(args.accumulate ? sum + Widen(args.y[to]) : sum);
      } else {
        args.wide[to] = args.accumulate ? sum + args.wide[to] : sum;
      }
    }
  }
};

// Calls body(std::integral_constant<DType, type>()).
template <typename Body>
void WithFewWeights(DType type, Body&& body) {
  switch (type) {
    case DType::kBFloat16: return body(std::integral_constant<DType, DType::kBFloat16>());
    case DType::kFloat16: return body(std::integral_constant<DType, DType::kFloat16>());
    case DType::kQ4_0: return body(std::integral_constant<DType, DType::kQ4_0>());
    case DType::kQ8_0: return body(std::integral_constant<DType, DType::kQ8_0>());
    case DType::kQ4_K: return body(std::integral_constant<DType, DType::kQ4_K>());
    case DType::kQ6_K: return body(std::integral_constant<DType, DType::kQ6_K>());
    default:
      Refuse(kFew, "weights in bfloat16, float16, Q4_0, Q8_0, Q4_K or Q6_K, not elements or blocks of bytes",
             static_cast<int64_t>(SizeOf(type)));
  }
}

}  // namespace

int ChooseFewTiles(int64_t rows, int multiprocessors) { return Blocks(rows, 2 * kTileRows) >= multiprocessors ? 2 : 1; }

void MultiplyFew(Stream stream, const FewProblem& problem, int multiprocessors) {
  Require(problem.m >= 0 && problem.m <= kFewTokens, kFew, "up to 32 tokens", problem.m);
  if (problem.m == 0 || problem.w.rows == 0) return;
  const int tiles = ChooseFewTiles(problem.w.rows, multiprocessors);
  WithFewWeights(problem.w.array.dtype, [&](auto type) {
    using T = typename FewWeights<type()>::T;
    const bool wide = problem.y.dtype == DType::kFloat32;
    Require(problem.x.dtype == DTypeOf<T>::value, kFew,
            "x in the type that belongs to the weights, not elements of bytes",
            static_cast<int64_t>(SizeOf(problem.x.dtype)));
    Require(wide || problem.y.dtype == DTypeOf<T>::value, kFew,
            "results in float32 or in the type of x, not elements of bytes",
            static_cast<int64_t>(SizeOf(problem.y.dtype)));
    constexpr int64_t kMultiple = TakesBlocks(type()) ? LayoutOf(type()).elements : 8;
    Require(problem.k % kMultiple == 0, kFew, "columns that are whole blocks, or a multiple of 8", problem.k);
    const auto launch = [&](auto kernel) {
      using Kernel = decltype(kernel);
      Launch<Kernel>(stream, {.x = Blocks(problem.w.rows, tiles * kTileRows), .shared_bytes = Kernel::SharedSize()},
                     {.w = Stored(problem.w, problem.k),
                      .x = static_cast<const T*>(problem.x.data),
                      .y = wide ? nullptr : static_cast<T*>(problem.y.data),
                      .wide = wide ? static_cast<float*>(problem.y.data) : nullptr,
                      .y_stride = problem.y_stride > 0 ? problem.y_stride : problem.w.rows,
                      .rows = static_cast<int>(problem.w.rows),
                      .cols = static_cast<int>(problem.k),
                      .tokens = static_cast<int>(problem.m),
                      .accumulate = problem.accumulate});
    };
    const auto with_tokens = [&](auto of) {
      if (problem.m <= kTileTokens) return launch(FewKernel<type(), of(), 1>());
      if (problem.m <= 2 * kTileTokens) return launch(FewKernel<type(), of(), 2>());
      launch(FewKernel<type(), of(), 4>());
    };
    if (tiles == 1) return with_tokens(std::integral_constant<int, 1>());
    with_tokens(std::integral_constant<int, 2>());
  });
}

}  // namespace shiftrt::gpu
