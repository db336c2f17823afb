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
constexpr int64_t kDepthGrain = 32;  // a multiple of every BlockProduct's step, and a divisor of its max_depth
constexpr int64_t kRowGrain = 32;    // the least number of output columns per thread if there are few rows

int64_t RoundUp(int64_t n, int64_t to) { return (n + to - 1) / to * to; }

// Where a matrix lies whose rows are the columns of B.
struct Rows {
  const std::byte* data;
  int64_t row_bytes, element_bytes;
};

// y = x B or y += x B over blocks of equal depth. pack(j, cols, k0, depth, out) packs a panel of B from column j on,
// which it takes from `source` (null: from elsewhere). The sum of one element depends neither on the other rows nor on
// the number of threads.
template <typename Pack>
void Blocked(const Context& context, const BlockProduct& product, MatrixView<const float> x, bool accumulate,
             MatrixView<float> y, const Rows* source, const Pack& pack) {
  if (x.cols == 0) return;
  const int64_t mr = product.tile_rows, nr = product.tile_cols, panels = RoundUp(y.cols, nr) / nr;
  const int64_t blocks = RoundUp(x.cols, product.max_depth) / product.max_depth;
  const int64_t most_depth = RoundUp(RoundUp(x.cols, blocks) / blocks, kDepthGrain);
  Buffer<std::byte> packed_x(RoundUp(std::min(product.max_rows, x.rows), mr) * most_depth * product.x_bytes);
  for (int64_t m0 = 0; m0 < x.rows; m0 += product.max_rows) {
    const int64_t rows = std::min(product.max_rows, x.rows - m0);
    for (int64_t k0 = 0; k0 < x.cols; k0 += most_depth) {
      const int64_t depth = std::min(most_depth, x.cols - k0);
      const int64_t panel_bytes = mr * RoundUp(depth, product.step) * product.x_bytes;
      ParallelFor(context, RoundUp(rows, mr) / mr, 1, [&](int64_t begin, int64_t end) {
        for (int64_t p = begin; p < end; ++p)
          product.pack_rows(x.row(m0 + p * mr) + k0, x.stride, std::min(mr, rows - p * mr), depth,
                            packed_x.data() + p * panel_bytes);
      });
      ParallelFor(context, panels, 1, [&](int64_t begin, int64_t end) {
        alignas(64) std::byte panel[kMostPanelBytes];
        for (int64_t p = begin; p < end; ++p) {
          const int64_t j = p * nr, cols = std::min(nr, y.cols - j);
          pack(j, cols, k0, depth, panel);
          PackedBlock block{packed_x.data(), rows, panel, cols, depth};
          if (source != nullptr && p + 1 < end) {
            block.next = source->data + (j + nr) * source->row_bytes + k0 * source->element_bytes;
            block.next_stride = source->row_bytes;
            block.next_cols = std::min(nr, y.cols - j - nr);
          }
          product.multiply(block, accumulate || k0 > 0, y.row(m0) + j, y.stride);
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
  if (x.rows == 0) return;
  if (x.rows <= kFewRows) {
    ParallelFor(context, y.cols, kRowGrain, [&](int64_t begin, int64_t end) {
      body.rows(x.data, x.stride, x.rows, w.data, w.dtype, x.cols, begin, end,
                wide_bias.empty() ? nullptr : wide_bias.data(), accumulate, y.data, y.stride);
    });
    return;
  }
  const bool add = accumulate || !wide_bias.empty() || x.cols == 0;
  if (add) Initialise(context, wide_bias, accumulate, y);
  const auto size = static_cast<int64_t>(SizeOf(w.dtype));
  const Rows rows{static_cast<const std::byte*>(w.data), w.cols() * size, size};
  const BlockProduct& product = ProductFor(context.isa, w.dtype);
  Blocked(context, product, x, add, y, &rows, [&](int64_t j, int64_t cols, int64_t k0, int64_t depth, void* out) {
    product.pack_panel(rows.data + j * rows.row_bytes + k0 * size, w.dtype, w.cols(), cols, depth, out);
  });
}

void MatMulRight(const Context& context, MatrixView<const float> x, MatrixView<const float> b, bool accumulate,
                 MatrixView<float> y) {
  Check(b.rows == x.cols && b.cols == y.cols && x.rows == y.rows,
        "product of x ({}, {}) with B ({}, {}) into y ({}, {}) does not fit", x.rows, x.cols, b.rows, b.cols, y.rows,
        y.cols);
  const SimdBody& body = BodyFor(context.isa);
  if (x.rows <= kFewRows || x.cols == 0) {
    Initialise(context, {}, accumulate, y);
    ParallelFor(context, y.cols, 256, [&](int64_t begin, int64_t end) {
      for (int64_t k = 0; k < x.cols; ++k)
        for (int64_t i = 0; i < x.rows; ++i) body.axpy(x(i, k), b.row(k) + begin, y.row(i) + begin, end - begin);
    });
    return;
  }
  const int64_t nr = body.product.tile_cols;
  Blocked(context, body.product, x, accumulate, y, nullptr,
          [&](int64_t j, int64_t cols, int64_t k0, int64_t depth, void* packed) {
            auto* out = static_cast<float*>(packed);
            for (int64_t k = 0; k < depth; ++k) {
              std::copy_n(b.row(k0 + k) + j, cols, out + k * nr);
              std::fill_n(out + k * nr + cols, nr - cols, 0.0f);
            }
          });
}

}  // namespace shiftrt
