// SPDX-License-Identifier: Apache-2.0
#include "kernels/matmul.h"

#include <algorithm>

#include "kernels/cpu/simd_body.h"
#include "kernels/widen.h"
#include "runtime/check.h"
#include "runtime/parallel.h"

namespace shiftrt {

namespace {

// Up to this number of rows, one pass over the weights serves all rows. Beyond it, the register tile is faster in spite
// of the packing.
constexpr int64_t kFewRows = 4;
constexpr int64_t kFewQuantisedRows = 8;    // up to this number, prepared rows of x meet rows of blocks one by one
constexpr int64_t kFewIntegerRows = 6;      // the same if there is a blocked product of integers
constexpr int64_t kMostPreparedRows = 768;  // rows of x that are prepared together
constexpr int64_t kDepthGrain = 32;         // a multiple of every BlockProduct's step, and a divisor of its max_depth
constexpr int64_t kManyRows = 96;           // rows of a result from which on AMX multiplies float32 matrices faster
constexpr int64_t kFewColumns = 24;         // of a weight gradient, which as rows fill more of a register tile
constexpr int64_t kSumRows = 64;            // rows that are added up in float32
constexpr int64_t kGroupElements = 32;      // of a quantised row that are converted together
constexpr int64_t kMostWideElements = int64_t{32} * 576;  // of a panel of W: the widest times the deepest
constexpr int64_t kRowGrain = 32;  // the least number of output columns per thread if there are few rows
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

// The right operand: the rows of W, transposed. Quantised rows are converted to float32 before they are packed.
struct RightRows {
  const Context& context;
  const BlockProduct& product;
  const TensorView& w;

  // The address of element k0 of row j, or of the block that has it.
  const std::byte* At(int64_t j, int64_t k0) const {
    return static_cast<const std::byte*>(w.data) + j * BytesOf(w.dtype, w.cols()) + BytesOf(w.dtype, k0);
  }
  void Pack(int64_t j, int64_t cols, int64_t k0, int64_t depth, void* packed) const {
    if (!IsQuantised(w.dtype)) return product.pack_panel(At(j, k0), w.dtype, w.cols(), cols, depth, packed);
    alignas(64) float wide[kMostWideElements];
    const SimdBody& body = BodyFor(context.isa);
    for (int64_t i = 0; i < cols; ++i) body.dequantise(At(j + i, 0), w.dtype, k0, depth, wide + i * depth);
    product.pack_panel(wide, DType::kFloat32, depth, cols, depth, packed);
  }
  // Sets the operand that is packed next, for prefetching.
  void SetNext(int64_t j, int64_t cols, int64_t k0, PackedBlock& block) const {
    block.next = At(j, k0);
    block.next_stride = BytesOf(w.dtype, w.cols());
    block.next_rows = cols;
    block.next_bytes = BytesOf(w.dtype, block.depth);
  }
};

// The right operand if it is not transposed: the columns of a matrix B, rows `stride` elements apart. Quantised rows
// are converted as those of RightRows.
struct RightColumns {
  const Context& context;
  const BlockProduct& product;
  const void* data;
  DType dtype;
  int64_t stride;

  // The address of element j of row k0, or of the block that has it.
  const std::byte* At(int64_t j, int64_t k0) const {
    return static_cast<const std::byte*>(data) + k0 * BytesOf(dtype, stride) + BytesOf(dtype, j);
  }
  void Pack(int64_t j, int64_t cols, int64_t k0, int64_t depth, void* packed) const {
    if (!IsQuantised(dtype)) return product.pack_right(At(j, k0), dtype, stride, cols, depth, packed);
    alignas(64) float wide[kMostWideElements], groups[2 * kGroupElements];
    const SimdBody& body = BodyFor(context.isa);
    const int64_t first = j / kGroupElements * kGroupElements, count = RoundUp(j + cols, kGroupElements) - first;
    for (int64_t k = 0; k < depth; ++k) {
      body.dequantise(At(0, k0 + k), dtype, first, count, groups);
      std::copy_n(groups + (j - first), cols, wide + k * cols);
    }
    product.pack_right(wide, DType::kFloat32, cols, cols, depth, packed);
  }
  void SetNext(int64_t j, int64_t cols, int64_t k0, PackedBlock& block) const {
    block.next = At(j, k0);
    block.next_stride = BytesOf(dtype, stride);
    block.next_rows = block.depth;
    block.next_bytes = BytesOf(dtype, RoundUp(cols, LayoutOf(dtype).elements));
  }
};

// A low-rank term of a product: inner (m, rank) = scale times the product of the left operand with `down`, and the
// result gains the product of `inner` with `up`.
template <typename Right>
struct LowRankTerm {
  Right down, up;
  float scale;
  MatrixView<float> inner;
};

// Rows of a left operand as panels of tile_rows rows, one after the other: `depth` elements of k, and after those of
// the last block the `tail` elements of a low-rank term.
struct LeftPanels {
  const BlockProduct& product;
  std::byte* data;
  int64_t depth, tail;

  int64_t elements() const { return tail == 0 ? depth : RoundUp(depth, product.step) + tail; }
  std::byte* panel(int64_t p) const { return data + p * PackedBytes(product, product.tile_rows, elements()); }
  std::byte* tail_of(int64_t p) const { return panel(p) + PackedBytes(product, product.tile_rows, depth); }
};

// Adds the product of packed rows (first panel to last) with the elements from k0 on of `down` to the rows of `inner`.
// If they are the last, the rows are scaled and packed after the others.
template <typename Right>
void AddInner(const LowRankTerm<Right>& low, const LeftPanels& panels, int64_t first, int64_t last, int64_t k0,
              MatrixView<float> inner) {
  const BlockProduct& product = panels.product;
  const int64_t mr = product.tile_rows, nr = product.tile_cols;
  alignas(64) std::byte right[kMostPanelBytes];
  const auto rows = [&](int64_t p) { return std::min(mr, inner.rows - p * mr); };
  for (int64_t j = 0; j < inner.cols; j += nr) {
    const int64_t cols = std::min(nr, inner.cols - j);
    low.down.Pack(j, cols, k0, panels.depth, right);
    for (int64_t p = first; p < last; ++p)
      product.multiply({panels.panel(p), rows(p), right, cols, panels.depth}, k0 > 0, inner.row(p * mr) + j,
                       inner.stride);
  }
  for (int64_t p = first; p < last && panels.tail > 0; ++p) {
    for (int64_t i = p * mr; i < p * mr + rows(p); ++i)
      for (int64_t j = 0; j < inner.cols; ++j) inner(i, j) *= low.scale;
    product.pack_rows(inner.row(p * mr), inner.stride, rows(p), inner.cols, panels.tail_of(p));
  }
}

// y = (y if accumulate) + the product of two operands over `all` elements of depth, in blocks of equal depth, and the
// low-rank term if there is one. The sum of one element depends neither on the other rows nor on the number of threads.
// As many blocks are packed together as fit into the cache: with few rows all of them, so that the threads wait for
// each other only twice. With a low-rank term they are packed one by one.
template <typename Left, typename Right>
void Blocked(const Context& context, const Left& left, const Right& right, int64_t all, bool accumulate,
             MatrixView<float> y, const LowRankTerm<Right>* low = nullptr) {
  if (all == 0 || y.rows == 0) return;
  const BlockProduct& product = right.product;
  const int64_t mr = product.tile_rows, nr = product.tile_cols, panels = RoundUp(y.cols, nr) / nr;
  const int64_t least_blocks = RoundUp(all, product.max_depth) / product.max_depth;
  const int64_t most_depth = RoundUp(RoundUp(all, least_blocks) / least_blocks, kDepthGrain);
  const int64_t blocks = RoundUp(all, most_depth) / most_depth, rank = low == nullptr ? 0 : low->inner.cols;
  const int64_t block_bytes =
      PackedBytes(product, RoundUp(std::min(product.max_rows, y.rows), mr), most_depth + RoundUp(rank, product.step));
  const int64_t together = low != nullptr ? 1 : std::clamp<int64_t>(kPackedBytes / block_bytes, 1, blocks);
  Buffer<std::byte> packed_x(together * block_bytes);
  for (int64_t m0 = 0; m0 < y.rows; m0 += product.max_rows) {
    const int64_t rows = std::min(product.max_rows, y.rows - m0), x_panels = RoundUp(rows, mr) / mr;
    for (int64_t first = 0; first < blocks; first += together) {
      const int64_t count = std::min(together, blocks - first);
      const auto depth_at = [&](int64_t b) { return (first + b) * most_depth; };  // before block b of these
      const auto packed = [&](int64_t b) {
        return LeftPanels{product, packed_x.data() + b * block_bytes, std::min(most_depth, all - depth_at(b)),
                          first + b + 1 == blocks ? rank : 0};
      };
      ParallelFor(context, count * x_panels, 1, [&](int64_t begin, int64_t end) {
        for (int64_t i = begin; i < end; ++i) {
          const int64_t b = i / x_panels, p = i % x_panels;
          const LeftPanels x = packed(b);
          left.Pack(m0 + p * mr, std::min(mr, rows - p * mr), depth_at(b), x.depth, x.panel(p));
        }
        if (low != nullptr) AddInner(*low, packed(0), begin, end, depth_at(0), low->inner.Rows(m0, rows));
      });
      ParallelFor(context, panels, 1, [&](int64_t begin, int64_t end) {
        alignas(64) std::byte panel[kMostPanelBytes];
        const auto cols_of = [&](int64_t p) { return std::min(nr, y.cols - p * nr); };
        for (int64_t i = begin * count; i < end * count; ++i) {
          const int64_t p = i / count, b = i % count, j = p * nr, next = (i + 1) / count;
          const LeftPanels x = packed(b);
          right.Pack(j, cols_of(p), depth_at(b), x.depth, panel);
          if (x.tail > 0) low->up.Pack(j, cols_of(p), 0, rank, panel + PackedBytes(product, nr, x.depth));
          PackedBlock block{x.data, rows, panel, cols_of(p), x.depth};
          if (i + 1 < end * count) right.SetNext(next * nr, cols_of(next), depth_at((i + 1) % count), block);
          block.depth = x.elements();
          product.multiply(block, accumulate || depth_at(b) > 0, y.row(m0) + j, y.stride);
        }
      });
    }
  }
}

// Returns whether a product of so many rows with a right operand as stored can have a low-rank term: the product packs
// the float32 factors too, and both operands in elements of one size.
bool TakesLowRank(const Context& context, int64_t rows, const TensorView& w, int64_t rank) {
  const BlockProduct& product = ProductFor(context, w.dtype);
  return rows > kFewRows && w.rows() > 0 && w.cols() > 0 && &product == &ProductFor(context, DType::kFloat32) &&
         rank > 0 && 2 * rank <= product.max_depth;
}

void CheckLowRank(const LowRankFactors& low, const TensorView& w, int64_t rows) {
  Check(low.a.shape.size() == 2 && low.b.shape.size() == 2 && low.a.dtype == DType::kFloat32 &&
            low.b.dtype == DType::kFloat32 && low.a.cols() == w.cols() && low.b.rows() == w.rows() &&
            low.a.rows() == low.b.cols() && low.inner.rows == rows && low.inner.cols == low.a.rows(),
        "a low-rank term of factors [{}] and [{}] with ({}, {}) between them does not fit W [{}] and {} rows",
        fmt::join(low.a.shape, ", "), fmt::join(low.b.shape, ", "), low.inner.rows, low.inner.cols,
        fmt::join(w.shape, ", "), rows);
}

void Scale(float factor, MatrixView<float> x) {
  for (int64_t i = 0; i < x.rows; ++i)
    for (int64_t j = 0; j < x.cols; ++j) x(i, j) *= factor;
}

// The product of few prepared rows of x with quantised blocks.
const IntegerProduct& FewRowsProduct(const Context& context) {
  return context.isa >= Isa::kAvx512BFloat16 ? kAvx512IntegerRows : BodyFor(context.isa).quantised_rows;
}

// The product with quantised blocks that takes so many rows of x as integers, or null if it has other operands:
// float32, or bfloat16 on AMX.
const IntegerProduct* IntegerProductFor(const Context& context, int64_t rows) {
  const bool blocked = context.isa >= Isa::kAvx512BFloat16;
  if (rows <= (blocked ? kFewIntegerRows : kFewQuantisedRows)) return &FewRowsProduct(context);
  if (!blocked) return nullptr;
  const bool rounded = context.products == Products::kBFloat16 && rows > kMostTiledRows;
  if (!rounded) return &kAvx512IntegerProduct;
  return context.isa == Isa::kAmx ? nullptr : &kAvx512RoundedIntegerProduct;
}

void CheckProduct(MatrixView<const float> x, const TensorView& w, const TensorView& bias, MatrixView<float> y) {
  Check(w.shape.size() == 2 && w.cols() == x.cols && w.rows() == y.cols && x.rows == y.rows &&
            w.dtype != DType::kFloat64 && (bias.empty() || bias.elements() == y.cols),
        "product of x ({}, {}) with W [{}] into y ({}, {}) does not fit", x.rows, x.cols, fmt::join(w.shape, ", "),
        y.rows, y.cols);
}

void CheckInputGradient(MatrixView<const float> dy, const TensorView& w, MatrixView<float> dx) {
  Check(w.shape.size() == 2 && w.rows() == dy.cols && w.cols() == dx.cols && dy.rows == dx.rows &&
            w.dtype != DType::kFloat64,
        "gradient of the input ({}, {}) from dy ({}, {}) and W [{}] does not fit", dx.rows, dx.cols, dy.rows, dy.cols,
        fmt::join(w.shape, ", "));
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
  CheckProduct(x, w, bias, y);
  const SimdBody& body = BodyFor(context.isa);
  const std::vector<float> wide_bias = Widened(bias);
  if (x.rows == 0) return;
  const float* const added = wide_bias.empty() ? nullptr : wide_bias.data();
  if (const IntegerProduct* const product = IsQuantised(w.dtype) ? IntegerProductFor(context, x.rows) : nullptr) {
    const int64_t row_bytes = product->prepared_bytes(x.cols), most = std::min(x.rows, kMostPreparedRows);
    const Buffer<std::byte> prepared(most * row_bytes);
    for (int64_t first = 0; first < x.rows; first += most) {
      const int64_t rows = std::min(most, x.rows - first);
      ParallelFor(context, rows, 4, [&](int64_t begin, int64_t end) {
        for (int64_t i = begin; i < end; ++i)
          product->prepare(x.row(first + i), x.cols, prepared.data() + i * row_bytes);
      });
      ParallelFor(context, y.cols, kRowGrain, [&](int64_t begin, int64_t end) {
        product->multiply(prepared.data(), rows, w.data, w.dtype, x.cols, begin, end, added, accumulate, y.row(first),
                          y.stride);
      });
    }
    return;
  }
  if (x.rows <= kMostTiledRows && IsQuantised(w.dtype)) {
    ParallelFor(context, y.cols, kRowGrain, [&](int64_t begin, int64_t end) {
      body.quantised_tiles(x.data, x.stride, x.rows, w.data, w.dtype, x.cols, begin, end, added, accumulate, y.data,
                           y.stride);
    });
    return;
  }
  if (x.rows <= kFewRows) {
    ParallelFor(context, y.cols, kRowGrain, [&](int64_t begin, int64_t end) {
      body.rows(x.data, x.stride, x.rows, w.data, w.dtype, x.cols, begin, end, added, accumulate, y.data, y.stride);
    });
    return;
  }
  const bool add = accumulate || !wide_bias.empty() || x.cols == 0;
  if (add) Initialise(context, wide_bias, accumulate, y);
  const BlockProduct& product = ProductFor(context, w.dtype);
  Blocked(context, LeftRows{product, x}, RightRows{context, product, w}, x.cols, add, y);
}

void MatMulEach(const Context& context, std::span<const MatMulItem> items) {
  const SimdBody& body = BodyFor(context.isa);
  const IntegerProduct& few_rows = FewRowsProduct(context);
  struct Few {
    const MatMulItem& item;
    int64_t first;     // the first of its columns among those of all
    int64_t prepared;  // where its rows of x begin, if W is quantised
    std::vector<float> bias;
  };
  static const TensorView kNoBias;
  std::vector<Few> few;
  int64_t columns = 0, bytes = 0;
  for (const MatMulItem& item : items) {
    const bool quantised = IsQuantised(item.w->dtype);
    const TensorView& bias = item.bias != nullptr ? *item.bias : kNoBias;
    const bool one_by_one = quantised ? IntegerProductFor(context, item.x.rows) == &few_rows : item.x.rows <= kFewRows;
    if (!one_by_one) {
      MatMul(context, item.x, *item.w, bias, false, item.y);
      continue;
    }
    CheckProduct(item.x, *item.w, bias, item.y);
    few.push_back({item, columns, bytes, Widened(bias)});
    columns += item.x.rows == 0 ? 0 : item.y.cols;
    if (quantised) bytes += item.x.rows * few_rows.prepared_bytes(item.x.cols);
  }
  const Buffer<std::byte> prepared(bytes);
  ParallelFor(context, bytes == 0 ? 0 : std::ssize(few), 4, [&](int64_t begin, int64_t end) {
    for (const Few& one : std::span(few).subspan(begin, end - begin)) {
      const MatrixView<const float>& x = one.item.x;
      if (!IsQuantised(one.item.w->dtype)) continue;
      for (int64_t i = 0; i < x.rows; ++i)
        few_rows.prepare(x.row(i), x.cols, prepared.data() + one.prepared + i * few_rows.prepared_bytes(x.cols));
    }
  });
  ParallelFor(context, columns, kRowGrain, [&](int64_t begin, int64_t end) {
    for (const Few& one : few) {
      const auto& [x, w, y, _] = one.item;
      const float* const bias = one.bias.empty() ? nullptr : one.bias.data();
      const int64_t first = std::max(begin - one.first, int64_t{0}), last = std::min(end - one.first, y.cols);
      if (first >= last || x.rows == 0) continue;
      if (IsQuantised(w->dtype)) {
        few_rows.multiply(prepared.data() + one.prepared, x.rows, w->data, w->dtype, x.cols, first, last, bias, false,
                          y.data, y.stride);
      } else {
        body.rows(x.data, x.stride, x.rows, w->data, w->dtype, x.cols, first, last, bias, false, y.data, y.stride);
      }
    }
  });
}

void MatMulLowRank(const Context& context, MatrixView<const float> x, const TensorView& w, const TensorView& bias,
                   const LowRankFactors& low, MatrixView<float> y) {
  CheckLowRank(low, w, x.rows);
  if (!TakesLowRank(context, x.rows, w, low.a.rows())) {
    MatMul(context, x, w, bias, false, y);
    MatMul(context, x, low.a, {}, false, low.inner);
    Scale(low.scale, low.inner);
    return MatMul(context, low.inner, low.b, {}, true, y);
  }
  CheckProduct(x, w, bias, y);
  const std::vector<float> wide_bias = Widened(bias);
  if (!bias.empty()) Initialise(context, wide_bias, false, y);
  const BlockProduct& product = ProductFor(context, w.dtype);
  const LowRankTerm<RightRows> term{{context, product, low.a}, {context, product, low.b}, low.scale, low.inner};
  Blocked(context, LeftRows{product, x}, RightRows{context, product, w}, x.cols, !bias.empty(), y, &term);
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
  Blocked(context, LeftRows{product, x}, RightColumns{context, product, b.data, DType::kFloat32, b.stride}, x.cols,
          accumulate, y);
}

void MatMulInputGradient(const Context& context, MatrixView<const float> dy, const TensorView& w, bool accumulate,
                         MatrixView<float> dx) {
  CheckInputGradient(dy, w, dx);
  if (dy.cols == 0) Initialise(context, {}, accumulate, dx);
  const BlockProduct& product = ProductFor(context, w.dtype);
  Blocked(context, LeftRows{product, dy}, RightColumns{context, product, w.data, w.dtype, w.cols()}, dy.cols,
          accumulate, dx);
}

void MatMulInputGradientLowRank(const Context& context, MatrixView<const float> dy, const TensorView& w,
                                const LowRankFactors& low, bool accumulate, MatrixView<float> dx) {
  CheckLowRank(low, w, dy.rows);
  if (!TakesLowRank(context, dy.rows, w, low.a.rows())) {
    MatMulInputGradient(context, dy, w, accumulate, dx);
    MatMulInputGradient(context, dy, low.b, false, low.inner);
    Scale(low.scale, low.inner);
    return MatMulInputGradient(context, low.inner, low.a, true, dx);
  }
  CheckInputGradient(dy, w, dx);
  const BlockProduct& product = ProductFor(context, w.dtype);
  const auto columns = [&](const TensorView& b) { return RightColumns{context, product, b.data, b.dtype, b.cols()}; };
  const LowRankTerm<RightColumns> term{columns(low.b), columns(low.a), low.scale, low.inner};
  Blocked(context, LeftRows{product, dy}, columns(w), dy.cols, accumulate, dx, &term);
}

void MatMulWeightGradient(const Context& context, MatrixView<const float> dy, MatrixView<const float> x,
                          MatrixView<float> dw) {
  Check(dy.rows == x.rows && dw.rows == dy.cols && dw.cols == x.cols,
        "gradient of W ({}, {}) from dy ({}, {}) and x ({}, {}) does not fit", dw.rows, dw.cols, dy.rows, dy.cols,
        x.rows, x.cols);
  if (dw.cols < dw.rows && dw.cols <= kFewColumns && x.rows > 0) {
    const Matrix<float> turned(dw.cols, dw.rows);
    const BlockProduct& product = ProductFor(context, DType::kFloat32);
    Blocked(context, LeftColumns{product, x}, RightColumns{context, product, dy.data, DType::kFloat32, dy.stride},
            x.rows, false, turned.view());
    for (int64_t i = 0; i < dw.rows; ++i)
      for (int64_t j = 0; j < dw.cols; ++j) dw(i, j) += turned(j, i);
    return;
  }
  const bool three_parts = context.isa == Isa::kAmx && context.products == Products::kFloat32 && dw.rows >= kManyRows;
  const BlockProduct& product = three_parts ? kAmxFloat32Product : ProductFor(context, DType::kFloat32);
  Blocked(context, LeftColumns{product, dy}, RightColumns{context, product, x.data, DType::kFloat32, x.stride}, x.rows,
          true, dw);
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
