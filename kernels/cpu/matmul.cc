// SPDX-License-Identifier: Apache-2.0
#include "kernels/matmul.h"

#include <algorithm>

#include "kernels/cpu/simd_body.h"
#include "kernels/widen.h"
#include "runtime/parallel.h"

namespace shiftrt {

namespace {

// Up to this number of rows, one pass over the weights serves all rows. Beyond it, the register tile is faster in spite
// of the packing.
constexpr int64_t kFewRows = 4;
// A packed panel (kDepth x NR) stays in L1 while it is multiplied with every tile of a packed block of x (kBlockRows x
// kDepth).
constexpr int64_t kDepth = 256;
constexpr int64_t kBlockRows = 768;
constexpr int64_t kRowGrain = 32;  // the least number of output columns per thread if there are few rows

// Packs columns of x into panels of MR rows: packed[panel][k][i], zero after the last row.
void PackRows(const Context& context, const SimdBody& body, MatrixView<const float> x, float* packed) {
  const int64_t mr = body.tile_rows, panels = (x.rows + mr - 1) / mr;
  ParallelFor(context, panels, 1, [&](int64_t begin, int64_t end) {
    for (int64_t panel = begin; panel < end; ++panel)
      body.pack_rows(x.row(panel * mr), x.stride, std::min(mr, x.rows - panel * mr), x.cols,
                     packed + panel * mr * x.cols);
  });
}

// y += x B over blocks. pack(j, cols, k0, depth, out) packs NR columns of B from column j, in float32.
template <typename Pack>
void Blocked(const Context& context, MatrixView<const float> x, MatrixView<float> y, Pack&& pack) {
  const SimdBody& body = BodyFor(context.isa);
  const int64_t mr = body.tile_rows, nr = body.tile_cols, column_panels = (y.cols + nr - 1) / nr;
  const int64_t most_rows = std::min(kBlockRows, (x.rows + mr - 1) / mr * mr);
  Buffer<float> packed(most_rows * std::min(kDepth, x.cols));
  for (int64_t m0 = 0; m0 < x.rows; m0 += kBlockRows) {
    const int64_t rows = std::min(kBlockRows, x.rows - m0);
    for (int64_t k0 = 0; k0 < x.cols; k0 += kDepth) {
      const int64_t depth = std::min(kDepth, x.cols - k0);
      PackRows(context, body, x.Rows(m0, rows).Cols(k0, depth), packed.data());
      ParallelFor(context, column_panels, 1, [&](int64_t begin, int64_t end) {
        alignas(64) float panel[kDepth * 32], tile[12 * 32];
        for (int64_t p = begin; p < end; ++p) {
          const int64_t j = p * nr, cols = std::min(nr, y.cols - j);
          pack(j, cols, k0, depth, panel);
          for (int64_t i = 0; i < rows; i += mr) {
            const int64_t tile_rows = std::min(mr, rows - i);
            // The rows of y are far apart. They are prefetched here, so that they arrive while the tile is summed.
            for (int64_t r = 0; r < tile_rows; ++r) __builtin_prefetch(y.row(m0 + i + r) + j, 1);
            body.tile(packed.data() + i * depth, panel, depth, tile);
            for (int64_t r = 0; r < tile_rows; ++r) {
              float* out = y.row(m0 + i + r) + j;
              for (int64_t c = 0; c < cols; ++c) out[c] += tile[r * nr + c];
            }
          }
        }
      });
    }
  }
}

void Initialise(const Context& context, const std::vector<float>& bias, bool accumulate, MatrixView<float> y) {
  if (accumulate && bias.empty()) return;
  ParallelFor(context, y.rows, 16, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i)
      for (int64_t j = 0; j < y.cols; ++j) y(i, j) = (accumulate ? y(i, j) : 0.0f) + (bias.empty() ? 0.0f : bias[j]);
  });
}

}  // namespace

void MatMul(const Context& context, MatrixView<const float> x, const TensorView& w, const TensorView& bias,
            bool accumulate, MatrixView<float> y) {
  Check(w.shape.size() == 2 && w.cols() == x.cols && w.rows() == y.cols && x.rows == y.rows &&
            w.dtype != DType::kFloat64 && (bias.empty() || bias.elements() == y.cols),
        "product of x ({}, {}) with W [{}] into y ({}, {}) does not fit", x.rows, x.cols, fmt::join(w.shape, ", "),
        y.rows, y.cols);
  const SimdBody& body = BodyFor(context.isa);
  const std::vector<float> wide_bias = Widened(bias);
  if (x.rows <= kFewRows) {
    if (x.rows == 0) return;
    ParallelFor(context, y.cols, kRowGrain, [&](int64_t begin, int64_t end) {
      body.rows(x.data, x.stride, x.rows, w.data, w.dtype, x.cols, begin, end,
                wide_bias.empty() ? nullptr : wide_bias.data(), accumulate, y.data, y.stride);
    });
    return;
  }
  Initialise(context, wide_bias, accumulate, y);
  const auto* bytes = static_cast<const std::byte*>(w.data);
  const auto size = static_cast<int64_t>(SizeOf(w.dtype));
  Blocked(context, x, y, [&](int64_t j, int64_t cols, int64_t k0, int64_t depth, float* out) {
    body.pack_panel(bytes + (j * w.cols() + k0) * size, w.dtype, w.cols(), cols, depth, out);
  });
}

void MatMulRight(const Context& context, MatrixView<const float> x, MatrixView<const float> b, bool accumulate,
                 MatrixView<float> y) {
  Check(b.rows == x.cols && b.cols == y.cols && x.rows == y.rows,
        "product of x ({}, {}) with B ({}, {}) into y ({}, {}) does not fit", x.rows, x.cols, b.rows, b.cols, y.rows,
        y.cols);
  const SimdBody& body = BodyFor(context.isa);
  Initialise(context, {}, accumulate, y);
  if (x.rows <= kFewRows) {
    ParallelFor(context, y.cols, 256, [&](int64_t begin, int64_t end) {
      for (int64_t k = 0; k < x.cols; ++k)
        for (int64_t i = 0; i < x.rows; ++i) body.axpy(x(i, k), b.row(k) + begin, y.row(i) + begin, end - begin);
    });
    return;
  }
  const int64_t nr = body.tile_cols;
  Blocked(context, x, y, [&](int64_t j, int64_t cols, int64_t k0, int64_t depth, float* out) {
    for (int64_t k = 0; k < depth; ++k) {
      std::copy_n(b.row(k0 + k) + j, cols, out + k * nr);
      std::fill_n(out + k * nr + cols, nr - cols, 0.0f);
    }
  });
}

}  // namespace shiftrt
