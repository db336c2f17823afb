// SPDX-License-Identifier: Apache-2.0
// The conversion of quantised weights, for products of many tokens and for rows of the embedding table.
#include "kernels/cuda/blocks.cuh"
#include "kernels/cuda/warp.cuh"

namespace shiftrt::gpu {

namespace {

constexpr const char* kExpand = "conversion of quantised rows";

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
