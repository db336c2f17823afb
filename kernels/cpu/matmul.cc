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
constexpr int64_t kManyRows = 96;    // rows of a result from which on AMX multiplies float32 matrices faster
constexpr int64_t kFewColumns = 24;  // of a weight gradient, which as rows fill more of a register tile
constexpr int64_t kSumRows = 64;     // rows that are added up in float32
constexpr int64_t kRowGrain = 32;    // the least number of output columns per thread if there are few rows
// Packed bytes of x that a panel of W is multiplied with before the next panel is packed. They stay in the second-level
// cache.
constexpr int64_t kPackedBytes = 512 << 10;

int64_t RoundUp(int64_t n, int64_t to) { return (n + to - 1) / to * to; }

// The left operand of a product: the rows of x.
struct LeftRows {
  const BlockProduct& product;
  MatrixView<const float> x;

  void Pack(int64_t i, int64_t rows, int64_t k0, int64_t depth, void* packed) const {
    product.pack_rows(x.row(i) + k0, x.stride, rows, depth, packed);
  }
};

// The left operand if it is transposed: the columns of x.
struct LeftColumns {
  const BlockProduct& product;
  MatrixView<const float> x;

  void Pack(int64_t i, int64_t rows, int64_t k0, int64_t depth, void* packed) const {
    product.pack_columns(x.row(k0) + i, x.stride, rows, depth, packed);
  }
};

// The right operand: the rows of W, transposed.
struct RightRows {
  const BlockProduct& product;
  const TensorView& w;

  int64_t size() const { return static_cast<int64_t>(SizeOf(w.dtype)); }
  const std::byte* At(int64_t j, int64_t k0) const {
    return static_cast<const std::byte*>(w.data) + (j * w.cols() + k0) * size();
  }
  void Pack(int64_t j, int64_t cols, int64_t k0, int64_t depth, void* packed) const {
    product.pack_panel(At(j, k0), w.dtype, w.cols(), cols, depth, packed);
  }
  // Sets the operand that is packed next, for prefetching.
  void SetNext(int64_t j, int64_t cols, int64_t k0, PackedBlock& block) const {
    block.next = At(j, k0);
    block.next_stride = w.cols() * size();
    block.next_rows = cols;
    block.next_bytes = block.depth * size();
  }
};

// The right operand if it is not transposed: the columns of a matrix B, rows `stride` elements apart.
struct RightColumns {
  const BlockProduct& product;
  const void* data;
  DType dtype;
  int64_t stride;

  int64_t size() const { return static_cast<int64_t>(SizeOf(dtype)); }
  const std::byte* At(int64_t j, int64_t k0) const {
    return static_cast<const std::byte*>(data) + (k0 * stride + j) * size();
  }
  void Pack(int64_t j, int64_t cols, int64_t k0, int64_t depth, void* packed) const {
    product.pack_right(At(j, k0), dtype, stride, cols, depth, packed);
  }
  void SetNext(int64_t j, int64_t cols, int64_t k0, PackedBlock& block) const {
    block.next = At(j, k0);
    block.next_stride = stride * size();
    block.next_rows = block.depth;
    block.next_bytes = cols * size();
  }
};

// y = (y if accumulate) + the product of two operands over `all` elements of depth, in blocks of equal depth. The sum
// of one element depends neither on the other rows nor on the number of threads. As many blocks are packed together as
// fit into the cache: with few rows all of them, so that the threads wait for each other only twice.
template <typename Left, typename Right>
void Blocked(const Context& context, const Left& left, const Right& right, int64_t all, bool accumulate,
             MatrixView<float> y) {
  if (all == 0 || y.rows == 0) return;
  const BlockProduct& product = right.product;
  const int64_t mr = product.tile_rows, nr = product.tile_cols, panels = RoundUp(y.cols, nr) / nr;
  const int64_t least_blocks = RoundUp(all, product.max_depth) / product.max_depth;
  const int64_t most_depth = RoundUp(RoundUp(all, least_blocks) / least_blocks, kDepthGrain);
  const int64_t blocks = RoundUp(all, most_depth) / most_depth;
  const int64_t block_bytes = RoundUp(std::min(product.max_rows, y.rows), mr) * most_depth * product.x_bytes;
  const int64_t together = std::clamp<int64_t>(kPackedBytes / block_bytes, 1, blocks);
  const auto depth_of = [&](int64_t block) { return std::min(most_depth, all - block * most_depth); };
  Buffer<std::byte> packed_x(together * block_bytes);
  for (int64_t m0 = 0; m0 < y.rows; m0 += product.max_rows) {
    const int64_t rows = std::min(product.max_rows, y.rows - m0), x_panels = RoundUp(rows, mr) / mr;
    for (int64_t first = 0; first < blocks; first += together) {
      const int64_t count = std::min(together, blocks - first);
      ParallelFor(context, count * x_panels, 1, [&](int64_t begin, int64_t end) {
        for (int64_t i = begin; i < end; ++i) {
          const int64_t b = i / x_panels, p = i % x_panels, depth = depth_of(first + b);
          const int64_t panel_bytes = mr * RoundUp(depth, product.step) * product.x_bytes;
          left.Pack(m0 + p * mr, std::min(mr, rows - p * mr), (first + b) * most_depth, depth,
                    packed_x.data() + b * block_bytes + p * panel_bytes);
        }
      });
      ParallelFor(context, panels, 1, [&](int64_t begin, int64_t end) {
        alignas(64) std::byte panel[kMostPanelBytes];
        const auto cols_of = [&](int64_t p) { return std::min(nr, y.cols - p * nr); };
        for (int64_t i = begin * count; i < end * count; ++i) {
          const int64_t p = i / count, b = i % count, j = p * nr, k0 = (first + b) * most_depth;
          right.Pack(j, cols_of(p), k0, depth_of(first + b), panel);
          PackedBlock block{packed_x.data() + b * block_bytes, rows, panel, cols_of(p), depth_of(first + b)};
          const int64_t next = (i + 1) / count;
          if (i + 1 < end * count)
            right.SetNext(next * nr, cols_of(next), (first + (i + 1) % count) * most_depth, block);
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
  const BlockProduct& product = ProductFor(context, w.dtype);
  Blocked(context, LeftRows{product, x}, RightRows{product, w}, x.cols, add, y);
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
  const BlockProduct& product = ProductFor(context, DType::kFloat32);
  Blocked(context, LeftRows{product, x}, RightColumns{product, b.data, DType::kFloat32, b.stride}, x.cols, accumulate,
          y);
}

void MatMulInputGradient(const Context& context, MatrixView<const float> dy, const TensorView& w, bool accumulate,
                         MatrixView<float> dx) {
  Check(w.shape.size() == 2 && w.rows() == dy.cols && w.cols() == dx.cols && dy.rows == dx.rows &&
            w.dtype != DType::kFloat64,
        "gradient of the input ({}, {}) from dy ({}, {}) and W [{}] does not fit", dx.rows, dx.cols, dy.rows, dy.cols,
        fmt::join(w.shape, ", "));
  if (dy.cols == 0) Initialise(context, {}, accumulate, dx);
  const BlockProduct& product = ProductFor(context, w.dtype);
  Blocked(context, LeftRows{product, dy}, RightColumns{product, w.data, w.dtype, w.cols()}, dy.cols, accumulate, dx);
}

void MatMulWeightGradient(const Context& context, MatrixView<const float> dy, MatrixView<const float> x,
                          MatrixView<float> dw) {
  Check(dy.rows == x.rows && dw.rows == dy.cols && dw.cols == x.cols,
        "gradient of W ({}, {}) from dy ({}, {}) and x ({}, {}) does not fit", dw.rows, dw.cols, dy.rows, dy.cols,
        x.rows, x.cols);
  if (dw.cols < dw.rows && dw.cols <= kFewColumns && x.rows > 0) {
    const Matrix<float> turned(dw.cols, dw.rows);
    const BlockProduct& product = ProductFor(context, DType::kFloat32);
    Blocked(context, LeftColumns{product, x}, RightColumns{product, dy.data, DType::kFloat32, dy.stride}, x.rows, false,
            turned.view());
    for (int64_t i = 0; i < dw.rows; ++i)
      for (int64_t j = 0; j < dw.cols; ++j) dw(i, j) += turned(j, i);
    return;
  }
  const bool three_parts = context.isa == Isa::kAmx && context.products == Products::kFloat32 && dw.rows >= kManyRows;
  const BlockProduct& product = three_parts ? kAmxFloat32Product : ProductFor(context, DType::kFloat32);
  Blocked(context, LeftColumns{product, dy}, RightColumns{product, x.data, DType::kFloat32, x.stride}, x.rows, true,
          dw);
}

void BiasGradient(const Context& context, MatrixView<const float> dy, MatrixView<float> db) {
  Check(db.rows == 1 && db.cols == dy.cols, "gradient of a bias ({}, {}) from dy ({}, {}) does not fit", db.rows,
        db.cols, dy.rows, dy.cols);
  const SimdBody& body = BodyFor(context.isa);
  ParallelFor(context, dy.cols, 64, [&](int64_t begin, int64_t end) {
    std::vector<float> sums(end - begin);
    std::vector<double> totals(end - begin);
    for (int64_t first = 0; first < dy.rows; first += kSumRows) {  // float32 sums stay short
      std::fill(sums.begin(), sums.end(), 0.0f);
      for (int64_t i = first; i < std::min(dy.rows, first + kSumRows); ++i)
        body.axpy(1, dy.row(i) + begin, sums.data(), end - begin);
      for (size_t j = 0; j < sums.size(); ++j) totals[j] += sums[j];
    }
    for (int64_t j = begin; j < end; ++j) db(0, j) += static_cast<float>(totals[j - begin]);
  });
}

}  // namespace shiftrt
