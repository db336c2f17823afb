// SPDX-License-Identifier: Apache-2.0
#include "kernels/attention.h"

#include <algorithm>
#include <array>
#include <atomic>
#include <cmath>
#include <limits>
#include <vector>

#include "kernels/cpu/simd_body.h"
#include "runtime/check.h"
#include "runtime/parallel.h"

namespace shiftrt {

namespace {

// Keys packed at a time, whose scores for one panel of queries stay in the first-level cache: a multiple of the rows of
// the register tiles.
constexpr int64_t kKeyBlock = 132;
constexpr int64_t kItemRows = 192;  // query rows of one key-value head that share a packed block
constexpr int64_t kMostColumns = 32;

struct WorkItem {
  int64_t sequence, kv_head;
  int64_t head, heads;   // heads head .. head + heads of those that share the key-value head
  int64_t first, count;  // queries first .. first + count of the sequence
};

int64_t RoundUp(int64_t n, int64_t to) { return (n + to - 1) / to * to; }

// A register tile is faster from half a panel of rows on.
bool HasPanel(const BlockProduct& product, int64_t rows) { return 2 * rows > product.tile_cols; }

struct AttentionResults {
  MatrixView<float> out;
  MatrixView<float> log_sums;  // (tokens, heads), or empty
};

// Attention of the queries of one item to the keys and values of one head. Row r is query r / heads and head r % heads
// of the item.
class ItemAttention {
 public:
  ItemAttention(const Context& context, const AttentionShape& shape, const AttentionSequence& sequence,
                const WorkItem& item, MatrixView<const float> q, const AttentionResults& results)
      : body_(BodyFor(context.isa)),
        product_(AttentionProductFor(context)),
        shape_(shape),
        sequence_(sequence),
        item_(item),
        first_head_(item.kv_head * (shape.heads / shape.kv_heads) + item.head),
        heads_(item.heads),
        dim_(shape.head_dim),
        rows_(item.count * heads_),
        keys_(sequence.keys.data + item.kv_head * dim_),
        values_(sequence.values.data + item.kv_head * dim_),
        q_(q),
        results_(results) {}

  void Run() { HasPanel(product_, rows_) ? Tiled() : RowByRow(); }

 private:
  const float* Query(int64_t row) const { return q_.row(Token(row)) + Column(row); }
  float* Out(int64_t row) const { return results_.out.row(Token(row)) + Column(row); }
  int64_t Token(int64_t row) const { return sequence_.begin + item_.first + row / heads_; }
  int64_t Head(int64_t row) const { return first_head_ + row % heads_; }
  int64_t Column(int64_t row) const { return Head(row) * dim_; }
  // `sum` is the sum of the weights, which are the exponentials of the scores less `maximum`.
  void SetLogSum(int64_t row, float maximum, float sum) const {
    if (results_.log_sums.data == nullptr) return;
    results_.log_sums(Token(row), Head(row)) = maximum + std::log(sum);
  }
  // The denominator of the softmax, where `sum` is that of the keys.
  float WithSink(int64_t row, float maximum, float sum) const {
    return shape_.sinks.empty() ? sum : sum + std::exp(shape_.sinks[Head(row)] - maximum);
  }
  // The factor of the scores in the softmax; a soft cap has scaled them already.
  float SoftmaxScale() const { return shape_.soft_cap > 0 ? 1.0f : shape_.scale; }
  // Row r sees the keys First(r) .. Visible(r) - 1.
  int64_t Visible(int64_t row) const { return sequence_.past + item_.first + row / heads_ + 1; }
  int64_t First(int64_t row) const {
    return shape_.window > 0 ? std::max<int64_t>(0, Visible(row) - shape_.window) : 0;
  }

  // Scores and outputs are transposed, with the queries along the SIMD lanes. Maximum and sum of the softmax are then
  // vector operations, and the scores are in the order of a packed operand of the product with the values.
  void Tiled() {
    const int64_t mr = product_.tile_rows, nr = product_.tile_cols, panels = RoundUp(rows_, nr) / nr;
    const int64_t most_keys = RoundUp(std::min(kKeyBlock, Visible(rows_ - 1) - First(0)), mr);
    const int64_t query_bytes = PackedBytes(product_, nr, dim_), key_bytes = PackedBytes(product_, mr, dim_);
    Buffer<std::byte> queries(panels * query_bytes), packed_keys(most_keys / mr * key_bytes),
        packed_values(PackedBytes(product_, RoundUp(dim_, mr), most_keys)),
        packed_scores(PackedBytes(product_, nr, most_keys));
    Buffer<float> outputs(panels * dim_ * nr), scores(most_keys * nr);
    std::vector<PanelState> states(panels);
    std::fill_n(outputs.data(), outputs.size(), 0.0f);
    for (int64_t p = 0; p < panels; ++p) PackQueries(p, queries.data() + p * query_bytes);

    for (int64_t k0 = First(0); k0 < Visible(rows_ - 1); k0 += kKeyBlock) {
      const int64_t keys = std::min(kKeyBlock, Visible(rows_ - 1) - k0);
      for (int64_t i = 0; i < keys; i += mr)
        product_.pack_rows(keys_ + (k0 + i) * sequence_.keys.stride, sequence_.keys.stride, std::min(mr, keys - i),
                           dim_, packed_keys.data() + i / mr * key_bytes);
      const float* const values = values_ + k0 * sequence_.values.stride;
      for (int64_t at = 0; at < dim_; at += mr)
        product_.pack_columns(values + at, sequence_.values.stride, std::min(mr, dim_ - at), keys,
                              packed_values.data() + PackedBytes(product_, at, keys));
      for (int64_t p = 0; p < panels; ++p) {
        const int64_t last = std::min(rows_, (p + 1) * nr) - 1, seen = std::min(keys, Visible(last) - k0);
        if (seen <= 0 || First(p * nr) >= k0 + keys) continue;
        product_.multiply({packed_keys.data(), seen, queries.data() + p * query_bytes, nr, dim_}, false, scores.data(),
                          nr);
        std::array<int32_t, kMostColumns> begin{}, end{};
        for (int64_t row = p * nr; row <= last; ++row) {
          begin[row - p * nr] = static_cast<int32_t>(std::clamp<int64_t>(First(row) - k0, 0, keys));
          end[row - p * nr] = static_cast<int32_t>(std::clamp<int64_t>(Visible(row) - k0, 0, keys));
        }
        if (shape_.soft_cap > 0) body_.soft_cap(scores.data(), seen * nr, shape_.scale, shape_.soft_cap);
        PanelState& state = states[p];
        std::array<float, kMostColumns> rescale;
        body_.softmax(scores.data(), seen, SoftmaxScale(), {shape_.window > 0 ? begin.data() : nullptr, end.data()},
                      state.maximum.data(), state.sum.data(), rescale.data());
        float* const output = outputs.data() + p * dim_ * nr;
        if (k0 > First(0)) Rescale(rescale.data(), output);
        const void* const factors = PackedFactors(product_, scores.data(), seen, packed_scores.data());
        for (int64_t at = 0; at < dim_; at += mr)
          product_.multiply(
              {packed_values.data() + PackedBytes(product_, at, keys), std::min(mr, dim_ - at), factors, nr, seen},
              true, output + at * nr, nr);
      }
    }
    for (int64_t p = 0; p < panels; ++p) WriteOut(p, states[p], outputs.data() + p * dim_ * nr);
  }

  struct PanelState {
    std::array<float, kMostColumns> maximum, sum{};
    PanelState() { maximum.fill(std::numeric_limits<float>::lowest()); }
  };

  // The queries of one token and group are adjacent in memory; those of the next token are one row further.
  void PackQueries(int64_t panel, void* packed) const {
    const int64_t nr = product_.tile_cols, rows = std::min(nr, rows_ - panel * nr);
    const Buffer<float> dense(rows * dim_);
    for (int64_t j = 0; j < rows; ++j) std::copy_n(Query(panel * nr + j), dim_, dense.data() + j * dim_);
    product_.pack_panel(dense.data(), DType::kFloat32, dim_, rows, dim_, packed);
  }

  // output (head_dim, NR) *= rescale, column by column.
  void Rescale(const float* rescale, float* output) const {
    const int64_t nr = product_.tile_cols;
    if (std::all_of(rescale, rescale + nr, [](float factor) { return factor == 1; })) return;
    for (int64_t i = 0; i < dim_; ++i)
      for (int64_t j = 0; j < nr; ++j) output[i * nr + j] *= rescale[j];
  }

  // Writes the rows of a panel: its output (head_dim, NR), transposed, divided by the sums of the weights.
  void WriteOut(int64_t panel, PanelState& state, const float* output) const {
    const int64_t nr = product_.tile_cols, rows = std::min(nr, rows_ - panel * nr);
    for (int64_t j = 0; j < rows; ++j)
      state.sum[j] = WithSink(panel * nr + j, SoftmaxScale() * state.maximum[j], state.sum[j]);
    alignas(64) float turned[kMostColumns * kMostColumns];
    for (int64_t at = 0; at < dim_; at += nr) {
      const int64_t width = std::min(nr, dim_ - at);
      body_.product.pack_panel(output + at * nr, DType::kFloat32, nr, width, nr, turned);
      for (int64_t j = 0; j < rows; ++j) {
        const float inverse = 1.0f / state.sum[j];
        float* const out = Out(panel * nr + j) + at;
        for (int64_t i = 0; i < width; ++i) out[i] = turned[j * nr + i] * inverse;
      }
    }
    for (int64_t j = 0; j < rows; ++j) SetLogSum(panel * nr + j, SoftmaxScale() * state.maximum[j], state.sum[j]);
  }

  // Used for a decoded token: one pass over keys and values without packing (Milakov and Gimelshein 2018).
  void RowByRow() {
    std::vector<float> maximum(rows_, std::numeric_limits<float>::lowest()), sum(rows_, 0.0f);
    for (int64_t row = 0; row < rows_; ++row) std::fill_n(Out(row), dim_, 0.0f);
    float scores[kKeyBlock];
    for (int64_t k0 = First(0); k0 < Visible(rows_ - 1); k0 += kKeyBlock) {
      for (int64_t row = 0; row < rows_; ++row) {
        const int64_t first = std::max(k0, First(row)), seen = std::min(k0 + kKeyBlock, Visible(row)) - first;
        if (seen <= 0) continue;
        for (int64_t j = 0; j < seen; ++j)
          scores[j] = SoftmaxScale() * body_.dot(Query(row), keys_ + (first + j) * sequence_.keys.stride, dim_);
        if (shape_.soft_cap > 0) body_.soft_cap(scores, seen, shape_.scale, shape_.soft_cap);
        const float most = std::max(maximum[row], *std::max_element(scores, scores + seen));
        const float rescale = std::exp(maximum[row] - most);
        maximum[row] = most;
        sum[row] = sum[row] * rescale + static_cast<float>(body_.exponentiate(scores, seen, most));
        float* out = Out(row);
        for (int64_t i = 0; i < dim_; ++i) out[i] *= rescale;
        body_.add_weighted(scores, values_ + first * sequence_.values.stride, sequence_.values.stride, seen, out, dim_);
      }
    }
    for (int64_t row = 0; row < rows_; ++row) {
      sum[row] = WithSink(row, maximum[row], sum[row]);
      SetLogSum(row, maximum[row], sum[row]);
      for (int64_t i = 0; i < dim_; ++i) Out(row)[i] /= sum[row];
    }
  }

  const SimdBody& body_;
  const BlockProduct& product_;
  const AttentionShape& shape_;
  const AttentionSequence& sequence_;
  const WorkItem& item_;
  const int64_t first_head_, heads_, dim_, rows_;
  const float* keys_;
  const float* values_;
  const MatrixView<const float> q_;
  const AttentionResults& results_;
};

void Attend(const Context& context, const AttentionShape& shape, std::span<const AttentionSequence> sequences,
            MatrixView<const float> q, const AttentionResults& results) {
  const MatrixView<float>& out = results.out;
  Check(shape.kv_heads > 0 && shape.heads % shape.kv_heads == 0 && q.cols == shape.heads * shape.head_dim &&
            out.cols == q.cols && out.rows == q.rows && shape.scale > 0,
        "attention of {} heads of {} over {} does not fit queries ({}, {})", shape.heads, shape.head_dim,
        shape.kv_heads, q.rows, q.cols);
  Check(shape.window >= 0 && shape.soft_cap >= 0, "attention with a window of {} keys and scores capped at {}",
        shape.window, shape.soft_cap);
  Check(shape.sinks.empty() || std::ssize(shape.sinks) == shape.heads, "attention of {} heads with {} sinks",
        shape.heads, shape.sinks.size());
  const int64_t group = shape.heads / shape.kv_heads, block = std::max<int64_t>(1, kItemRows / group);
  // If there are few items, the heads that share keys and values are divided, too: twice as many items as threads.
  const int64_t shared = std::max<int64_t>(1, std::ssize(sequences) * shape.kv_heads);
  const int64_t parts = std::min(group, RoundUp(int64_t{2} * context.threads, shared) / shared);
  std::vector<WorkItem> items;
  for (size_t s = 0; s < sequences.size(); ++s) {
    const AttentionSequence& sequence = sequences[s];
    Check(sequence.begin + sequence.count <= q.rows && sequence.keys.rows >= sequence.past + sequence.count &&
              sequence.values.rows >= sequence.past + sequence.count,
          "sequence {} of {} queries after {} positions does not fit {} keys", s, sequence.count, sequence.past,
          sequence.keys.rows);
    const int64_t divided = HasPanel(AttentionProductFor(context), std::min(block, sequence.count) * group) ? 1 : parts;
    for (int64_t first = 0; first < sequence.count; first += block)
      for (int64_t i = 0; i < shape.kv_heads * divided; ++i) {
        const int64_t part = i % divided, head = group * part / divided, end = group * (part + 1) / divided;
        items.push_back({.sequence = static_cast<int64_t>(s),
                         .kv_head = i / divided,
                         .head = head,
                         .heads = end - head,
                         .first = first,
                         .count = std::min(block, sequence.count - first)});
      }
  }
  // Items differ in length, so each thread takes the next item when it is free. The results do not depend on the
  // thread.
  std::atomic<size_t> next = 0;
  ParallelFor(context, std::min<int64_t>(context.threads, static_cast<int64_t>(items.size())), 1,
              [&](int64_t, int64_t) {
                for (size_t i; (i = next++) < items.size();)
                  ItemAttention(context, shape, sequences[items[i].sequence], items[i], q, results).Run();
              });
}

}  // namespace

void Attention(const Context& context, const AttentionShape& shape, std::span<const AttentionSequence> sequences,
               MatrixView<const float> q, MatrixView<float> out) {
  Attend(context, shape, sequences, q, {out, {}});
}

void AttentionForGradient(const Context& context, const PackedAttention& attention, MatrixView<float> out,
                          MatrixView<float> log_sums) {
  Check(log_sums.rows == out.rows && log_sums.cols == attention.shape.heads,
        "attention of {} heads with sums ({}, {}) for {} queries", attention.shape.heads, log_sums.rows, log_sums.cols,
        out.rows);
  std::vector<AttentionSequence> sequences;
  for (size_t s = 0; s + 1 < attention.offsets.size(); ++s) {
    const int64_t begin = attention.offsets[s], count = attention.offsets[s + 1] - begin;
    Check(begin >= 0 && count >= 0 && begin + count <= attention.keys.rows && begin + count <= attention.values.rows,
          "sequence {} of rows {} to {} does not fit {} keys and {} values", s, begin, begin + count,
          attention.keys.rows, attention.values.rows);
    sequences.push_back({begin, count, 0, attention.keys.Rows(begin, count), attention.values.Rows(begin, count)});
  }
  Attend(context, attention.shape, sequences, attention.q, {out, log_sums});
}

}  // namespace shiftrt
