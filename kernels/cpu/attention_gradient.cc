// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <array>
#include <atomic>
#include <cmath>
#include <functional>
#include <vector>

#include "kernels/attention.h"
#include "kernels/cpu/simd_body.h"
#include "runtime/check.h"
#include "runtime/parallel.h"

namespace shiftrt {

namespace {

constexpr int64_t kRowBlock = 96;  // rows that are packed at a time: a multiple of the rows of every register tile

int64_t RoundUp(int64_t n, int64_t to) { return (n + to - 1) / to * to; }

struct Inputs {
  const PackedAttention& attention;
  MatrixView<const float> out, log_sums, dout;
  const AttentionGradients& gradients;
};

struct WorkItem {
  int64_t begin = 0, count = 0, kv_head = 0;  // the rows of a sequence
};

// Computes the gradients of one key-value head of one sequence at a time. With the probability p = exp(s - log_sum) of
// a key, the gradient of p is a = dout v, that of its score s is p (a - mean) with mean = dout out, and that of v is
// p dout. Row r is query r / group and head r % group of the group. Rows are processed in blocks, and keys in panels
// as wide as a register tile. The sums of keys and values are transposed, (head_dim, keys): probabilities and the
// gradients of scores then have the order of packed operands.
class Worker {
 public:
  Worker(const Context& context, const Inputs& inputs)
      : body_(BodyFor(context.isa)),
        product_(AttentionProductFor(context)),
        in_(inputs),
        shape_(inputs.attention.shape),
        group_(shape_.heads / shape_.kv_heads),
        dim_(shape_.head_dim),
        mr_(product_.tile_rows),
        nr_(product_.tile_cols),
        dims_(RoundUp(dim_, nr_)),
        queries_(product_, dim_),
        douts_(product_, dim_),
        scores_(kRowBlock * nr_),
        gradients_(kRowBlock * nr_),
        dq_(kRowBlock * dims_),
        factors_(PackedBytes(product_, nr_, kRowBlock)),
        turned_(PackedBytes(product_, kRowBlock, nr_)) {}

  void Run(const WorkItem& item) {
    item_ = item;
    PackKeys();
    const int64_t all = item.count * group_;
    for (first_ = 0; first_ < all; first_ += kRowBlock) {
      rows_ = std::min(kRowBlock, all - first_);
      SetRows();
      for (int64_t k0 = FirstKey(0) / nr_ * nr_; k0 <= Query(rows_ - 1); k0 += nr_) AddPanel(k0);
      for (int64_t r = 0; r < rows_; ++r)
        std::copy_n(dq_.data() + r * dims_, dim_, in_.gradients.q.row(Token(r)) + Head(r) * dim_);
    }
    WriteTransposed(dkeys_.data(), in_.gradients.keys);
    WriteTransposed(dvalues_.data(), in_.gradients.values);
  }

 private:
  // A block of rows in three forms: dense; packed as the left operand of products with keys or values; and with its
  // columns packed as the left operand of sums over the rows.
  struct Rows {
    Rows(const BlockProduct& product, int64_t dim)
        : dense(kRowBlock * dim),
          packed(PackedBytes(product, kRowBlock, dim)),
          columns(PackedBytes(product, RoundUp(dim, product.tile_rows), kRowBlock)) {}
    Buffer<float> dense;
    Buffer<std::byte> packed, columns;
  };

  // The query and the head of row r of the block.
  int64_t Query(int64_t r) const { return (first_ + r) / group_; }
  int64_t Token(int64_t r) const { return item_.begin + Query(r); }
  int64_t Head(int64_t r) const { return item_.kv_head * group_ + (first_ + r) % group_; }
  int64_t FirstKey(int64_t r) const {
    return shape_.window > 0 ? std::max<int64_t>(0, Query(r) + 1 - shape_.window) : 0;
  }

  // Packs panels of keys and values (head_dim, NR), and panels of rows of keys (NR, NR of head_dim).
  void PackKeys() {
    keys_ = RoundUp(item_.count, nr_);
    key_panels_.Reserve(PackedBytes(product_, keys_, dim_));
    value_panels_.Reserve(PackedBytes(product_, keys_, dim_));
    key_rows_.Reserve(PackedBytes(product_, dims_, keys_));
    dkeys_.Reserve(keys_ * dim_);
    dvalues_.Reserve(keys_ * dim_);
    std::fill_n(dkeys_.data(), keys_ * dim_, 0.0f);
    std::fill_n(dvalues_.data(), keys_ * dim_, 0.0f);
    const MatrixView<const float> keys = in_.attention.keys.Cols(item_.kv_head * dim_, dim_),
                                  values = in_.attention.values.Cols(item_.kv_head * dim_, dim_);
    for (int64_t k0 = 0; k0 < item_.count; k0 += nr_) {
      const int64_t count = std::min(nr_, item_.count - k0);
      const float* key = keys.row(item_.begin + k0);
      const int64_t panel = PackedBytes(product_, k0, dim_);
      product_.pack_panel(key, DType::kFloat32, keys.stride, count, dim_, key_panels_.data() + panel);
      product_.pack_panel(values.row(item_.begin + k0), DType::kFloat32, values.stride, count, dim_,
                          value_panels_.data() + panel);
      for (int64_t d0 = 0; d0 < dim_; d0 += nr_)
        product_.pack_right(key + d0, DType::kFloat32, keys.stride, std::min(nr_, dim_ - d0), count,
                            key_rows_.data() + KeyRows(k0, d0));
    }
  }

  void SetRows() {
    for (int64_t r = 0; r < rows_; ++r) {
      const int64_t token = Token(r), head = Head(r);
      const float* dout = in_.dout.row(token) + head * dim_;
      std::copy_n(in_.attention.q.row(token) + head * dim_, dim_, queries_.dense.data() + r * dim_);
      std::copy_n(dout, dim_, douts_.dense.data() + r * dim_);
      means_[r] = body_.dot(dout, in_.out.row(token) + head * dim_, dim_);
      log_sums_[r] = in_.log_sums(token, head);
    }
    for (const Rows* rows : {&queries_, &douts_}) {
      for (int64_t r = 0; r < rows_; r += mr_)
        product_.pack_rows(rows->dense.data() + r * dim_, dim_, std::min(mr_, rows_ - r), dim_,
                           rows->packed.data() + PackedBytes(product_, r, dim_));
      for (int64_t d = 0; d < dim_; d += mr_)
        product_.pack_columns(rows->dense.data() + d, dim_, std::min(mr_, dim_ - d), rows_,
                              rows->columns.data() + PackedBytes(product_, d, kRowBlock));
    }
    std::fill_n(dq_.data(), rows_ * dims_, 0.0f);
  }

  // Adds the panel of keys from k0 on, with the rows of the block that see any of them.
  void AddPanel(int64_t k0) {
    const int64_t keys = std::min(nr_, item_.count - k0);
    const int64_t from = std::max<int64_t>(0, k0 * group_ - first_) / mr_ * mr_;
    const int64_t to = shape_.window > 0 ? std::min(rows_, (k0 + nr_ - 1 + shape_.window) * group_ - first_) : rows_;
    const int64_t rows = to - from, first = PackedBytes(product_, from, dim_), panel = PackedBytes(product_, k0, dim_);
    product_.multiply({queries_.packed.data() + first, rows, key_panels_.data() + panel, nr_, dim_}, false,
                      scores_.data(), nr_);
    product_.multiply({douts_.packed.data() + first, rows, value_panels_.data() + panel, nr_, dim_}, false,
                      gradients_.data(), nr_);
    std::array<int32_t, kRowBlock> begin, end;
    for (int64_t r = 0; r < rows; ++r) {
      begin[r] = static_cast<int32_t>(std::clamp<int64_t>(FirstKey(from + r) - k0, 0, nr_));
      end[r] = static_cast<int32_t>(std::clamp<int64_t>(Query(from + r) + 1 - k0, 0, nr_));
    }
    body_.softmax_gradient(
        scores_.data(), gradients_.data(), rows,
        {begin.data(), end.data(), log_sums_.data() + from, means_.data() + from, shape_.scale, shape_.soft_cap});
    AddOverRows(douts_, from, rows, scores_.data(), dvalues_.data() + k0);
    AddOverRows(queries_, from, rows, gradients_.data(), dkeys_.data() + k0);
    for (int64_t r = 0; r < rows; r += mr_)
      product_.pack_rows(gradients_.data() + r * nr_, nr_, std::min(mr_, rows - r), keys,
                         turned_.data() + PackedBytes(product_, r, keys));
    for (int64_t d0 = 0; d0 < dim_; d0 += nr_)
      product_.multiply({turned_.data(), rows, key_rows_.data() + KeyRows(k0, d0), std::min(nr_, dim_ - d0), keys},
                        true, dq_.data() + from * dims_ + d0, dims_);
  }

  // sums (head_dim, NR of the keys) += the rows' columns times factors (rows, NR).
  void AddOverRows(const Rows& rows, int64_t from, int64_t count, const float* factors, float* sums) const {
    const void* const packed = PackedFactors(product_, factors, count, factors_.data());
    for (int64_t d = 0; d < dim_; d += mr_)
      product_.multiply({rows.columns.data() + PackedBytes(product_, d, kRowBlock) + PackedBytes(product_, mr_, from),
                         std::min(mr_, dim_ - d), packed, nr_, count},
                        true, sums + d * keys_, keys_);
  }

  // The place in key_rows_ of the columns from d0 on of the panel of keys k0.
  int64_t KeyRows(int64_t k0, int64_t d0) const { return PackedBytes(product_, k0 / nr_ * dims_ + d0, nr_); }

  void WriteTransposed(const float* sums, MatrixView<float> out) const {
    constexpr int64_t kRun = 16;  // a cache line of the sums
    for (int64_t k0 = 0; k0 < item_.count; k0 += kRun)
      for (int64_t d = 0; d < dim_; ++d)
        for (int64_t k = k0; k < std::min(item_.count, k0 + kRun); ++k)
          out(item_.begin + k, item_.kv_head * dim_ + d) = sums[d * keys_ + k];
  }

  const SimdBody& body_;
  const BlockProduct& product_;
  const Inputs& in_;
  const AttentionShape& shape_;
  const int64_t group_, dim_, mr_, nr_, dims_;
  WorkItem item_;
  int64_t keys_ = 0;              // of the sequence, rounded up to whole panels
  int64_t first_ = 0, rows_ = 0;  // of the block of rows
  Buffer<std::byte> key_panels_, value_panels_, key_rows_;
  Buffer<float> dkeys_, dvalues_;
  Rows queries_, douts_;
  Buffer<float> scores_, gradients_, dq_;
  Buffer<std::byte> factors_, turned_;
  std::array<float, kRowBlock> log_sums_, means_;
};

void CheckShapes(const PackedAttention& attention, MatrixView<const float> out, MatrixView<const float> log_sums,
                 MatrixView<const float> dout, const AttentionGradients& gradients) {
  const AttentionShape& shape = attention.shape;
  Check(shape.kv_heads > 0 && shape.heads % shape.kv_heads == 0 && shape.scale > 0 && shape.window >= 0 &&
            shape.soft_cap >= 0,
        "gradient of attention of {} heads over {} with scale {}, window {} and soft cap {}", shape.heads,
        shape.kv_heads, shape.scale, shape.window, shape.soft_cap);
  const int64_t tokens = attention.q.rows, width = shape.heads * shape.head_dim,
                kv_width = shape.kv_heads * shape.head_dim;
  const auto check = [&](const char* name, MatrixView<const float> x, int64_t cols) {
    Check(x.rows == tokens && x.cols == cols, "gradient of attention: {} is ({}, {}), not ({}, {})", name, x.rows,
          x.cols, tokens, cols);
  };
  check("q", attention.q, width);
  check("keys", attention.keys, kv_width);
  check("values", attention.values, kv_width);
  check("out", out, width);
  check("log_sums", log_sums, shape.heads);
  check("dout", dout, width);
  check("the gradient of q", gradients.q, width);
  check("the gradient of keys", gradients.keys, kv_width);
  check("the gradient of values", gradients.values, kv_width);
  const std::span<const int64_t> offsets = attention.offsets;
  Check(!offsets.empty() && offsets.front() == 0 && offsets.back() == tokens && std::ranges::is_sorted(offsets),
        "gradient of attention: the offsets of the sequences do not cover {} tokens", tokens);
}

}  // namespace

void AttentionGradient(const Context& context, const PackedAttention& attention, MatrixView<const float> out,
                       MatrixView<const float> log_sums, MatrixView<const float> dout,
                       const AttentionGradients& gradients) {
  CheckShapes(attention, out, log_sums, dout, gradients);
  const Inputs inputs{attention, out, log_sums, dout, gradients};
  std::vector<WorkItem> items;
  for (size_t s = 0; s + 1 < attention.offsets.size(); ++s)
    for (int64_t head = 0; head < attention.shape.kv_heads; ++head)
      items.push_back({attention.offsets[s], attention.offsets[s + 1] - attention.offsets[s], head});
  // The longest sequences come first, so that the threads end at about the same time.
  std::ranges::stable_sort(items, std::greater(), &WorkItem::count);
  std::atomic<size_t> next = 0;
  ParallelFor(context, std::min<int64_t>(context.threads, std::ssize(items)), 1, [&](int64_t, int64_t) {
    Worker worker(context, inputs);
    for (size_t i; (i = next++) < items.size();) worker.Run(items[i]);
  });
}

void AttentionSinkGradient(const Context& context, const AttentionShape& shape, MatrixView<const float> out,
                           MatrixView<const float> log_sums, MatrixView<const float> dout, std::span<float> dsinks) {
  Check(std::ssize(shape.sinks) == shape.heads && dsinks.size() == shape.sinks.size() && log_sums.rows == out.rows &&
            dout.rows == out.rows && out.cols == shape.heads * shape.head_dim && dout.cols == out.cols &&
            log_sums.cols == shape.heads,
        "gradient of {} sinks for {} heads of {} and outputs ({}, {})", dsinks.size(), shape.heads, shape.head_dim,
        out.rows, out.cols);
  const SimdBody& body = BodyFor(context.isa);
  ParallelFor(context, shape.heads, 1, [&](int64_t begin, int64_t end) {
    for (int64_t head = begin; head < end; ++head) {
      double sum = 0;
      for (int64_t t = 0; t < out.rows; ++t) {
        const int64_t column = head * shape.head_dim;
        sum += static_cast<double>(std::exp(shape.sinks[head] - log_sums(t, head))) *
               body.dot(dout.row(t) + column, out.row(t) + column, shape.head_dim);
      }
      dsinks[head] -= static_cast<float>(sum);
    }
  });
}

}  // namespace shiftrt
