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

constexpr int64_t kKeyBlock = 128;  // keys packed at a time; their scores for one panel of queries stay in L1
constexpr int64_t kItemRows = 192;  // query rows of one key-value head that share a packed block
constexpr int64_t kMostColumns = 32;

struct WorkItem {
  int64_t sequence, kv_head, first, count;  // queries first .. first + count of the sequence
};

int64_t RoundUp(int64_t n, int64_t to) { return (n + to - 1) / to * to; }

struct AttentionResults {
  MatrixView<float> out;
  MatrixView<float> log_sums;  // (tokens, heads), or empty
};

// Attention of the queries of one item to the keys and values of one head. Row r is query r / group and head r % group
// of the group.
class ItemAttention {
 public:
  ItemAttention(const SimdBody& body, const AttentionShape& shape, const AttentionSequence& sequence,
                const WorkItem& item, MatrixView<const float> q, const AttentionResults& results)
      : body_(body),
        shape_(shape),
        sequence_(sequence),
        item_(item),
        group_(shape.heads / shape.kv_heads),
        dim_(shape.head_dim),
        rows_(item.count * group_),
        keys_(sequence.keys.data + item.kv_head * dim_),
        values_(sequence.values.data + item.kv_head * dim_),
        q_(q),
        results_(results) {}

  // A register tile is faster from half a panel of rows on.
  void Run() { 2 * rows_ > body_.product.tile_cols ? Tiled() : RowByRow(); }

 private:
  const float* Query(int64_t row) const { return q_.row(Token(row)) + Column(row); }
  float* Out(int64_t row) const { return results_.out.row(Token(row)) + Column(row); }
  int64_t Token(int64_t row) const { return sequence_.begin + item_.first + row / group_; }
  int64_t Column(int64_t row) const { return (item_.kv_head * group_ + row % group_) * dim_; }
  // `sum` is the sum of the weights, which are the exponentials of the scores less `maximum`.
  void SetLogSum(int64_t row, float maximum, float sum) const {
    if (results_.log_sums.data == nullptr) return;
    results_.log_sums(Token(row), item_.kv_head * group_ + row % group_) = maximum + std::log(sum);
  }
  // The factor of the scores in the softmax; a soft cap has scaled them already.
  float SoftmaxScale() const { return shape_.soft_cap > 0 ? 1.0f : shape_.scale; }
  // Row r sees the keys First(r) .. Visible(r) - 1.
  int64_t Visible(int64_t row) const { return sequence_.past + item_.first + row / group_ + 1; }
  int64_t First(int64_t row) const {
    return shape_.window > 0 ? std::max<int64_t>(0, Visible(row) - shape_.window) : 0;
  }

  // Scores and outputs are transposed, with the queries along the SIMD lanes. Maximum and sum of the softmax are then
  // vector operations, and the scores are already packed for the product with the values.
  void Tiled() {
    const int64_t mr = body_.product.tile_rows, nr = body_.product.tile_cols, panels = RoundUp(rows_, nr) / nr;
    const int64_t most_keys = RoundUp(std::min(kKeyBlock, Visible(rows_ - 1) - First(0)), mr), dims = RoundUp(dim_, mr);
    Buffer<float> queries(panels * dim_ * nr), outputs(panels * dims * nr);
    Buffer<float> packed_keys(most_keys * dim_), packed_values(dims * most_keys), scores(most_keys * nr);
    std::vector<PanelState> states(panels);
    std::fill_n(outputs.data(), outputs.size(), 0.0f);
    for (int64_t p = 0; p < panels; ++p) PackQueries(p, queries.data() + p * dim_ * nr);

    for (int64_t k0 = First(0); k0 < Visible(rows_ - 1); k0 += kKeyBlock) {
      const int64_t keys = std::min(kKeyBlock, Visible(rows_ - 1) - k0);
      for (int64_t i = 0; i < keys; i += mr)
        body_.product.pack_rows(keys_ + (k0 + i) * sequence_.keys.stride, sequence_.keys.stride, std::min(mr, keys - i),
                                dim_, packed_keys.data() + i * dim_);
      PackValues(k0, keys, packed_values.data());
      for (int64_t p = 0; p < panels; ++p) {
        const int64_t last = std::min(rows_, (p + 1) * nr) - 1, seen = std::min(keys, Visible(last) - k0);
        if (seen <= 0 || First(p * nr) >= k0 + keys) continue;
        for (int64_t i = 0; i < seen; i += mr)
          body_.tile(packed_keys.data() + i * dim_, queries.data() + p * dim_ * nr, dim_, scores.data() + i * nr);
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
        AddWeightedValues(packed_values.data(), keys, scores.data(), seen, rescale.data(),
                          outputs.data() + p * dims * nr);
      }
    }
    for (int64_t row = 0; row < rows_; ++row) {
      const int64_t p = row / nr, j = row % nr;
      const float* output = outputs.data() + p * dims * nr + j;
      const float inverse = 1.0f / states[p].sum[j];
      SetLogSum(row, SoftmaxScale() * states[p].maximum[j], states[p].sum[j]);
      for (int64_t i = 0; i < dim_; ++i) Out(row)[i] = output[i * nr] * inverse;
    }
  }

  struct PanelState {
    std::array<float, kMostColumns> maximum, sum{};
    PanelState() { maximum.fill(std::numeric_limits<float>::lowest()); }
  };

  // The queries of one token and group are adjacent in memory; those of the next token are one row further.
  void PackQueries(int64_t panel, float* packed) const {
    const int64_t nr = body_.product.tile_cols;
    for (int64_t j = 0; j < nr; ++j) {
      const int64_t row = panel * nr + j;
      for (int64_t i = 0; i < dim_; ++i) packed[i * nr + j] = row < rows_ ? Query(row)[i] : 0.0f;
    }
  }

  // packed[panel of MR dimensions][key][dimension], zero after the last dimension.
  void PackValues(int64_t k0, int64_t keys, float* packed) const {
    const int64_t mr = body_.product.tile_rows;
    for (int64_t at = 0; at < dim_; at += mr) {
      const int64_t width = std::min(mr, dim_ - at);
      for (int64_t j = 0; j < keys; ++j) {
        const float* value = values_ + (k0 + j) * sequence_.values.stride + at;
        float* out = packed + at * keys + j * mr;
        for (int64_t i = 0; i < mr; ++i) out[i] = i < width ? value[i] : 0.0f;
      }
    }
  }

  // output (dims, NR) = output * rescale + values' scores, over the first `seen` of `keys` packed keys.
  void AddWeightedValues(const float* packed, int64_t keys, const float* scores, int64_t seen, const float* rescale,
                         float* output) const {
    const int64_t mr = body_.product.tile_rows, nr = body_.product.tile_cols;
    alignas(64) float tile[12 * kMostColumns];
    for (int64_t at = 0; at < dim_; at += mr) {
      body_.tile(packed + at * keys, scores, seen, tile);
      for (int64_t i = 0; i < mr; ++i)
        for (int64_t j = 0; j < nr; ++j)
          output[(at + i) * nr + j] = output[(at + i) * nr + j] * rescale[j] + tile[i * nr + j];
    }
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
        for (int64_t j = 0; j < seen; ++j)
          body_.axpy(scores[j], values_ + (first + j) * sequence_.values.stride, out, dim_);
      }
    }
    for (int64_t row = 0; row < rows_; ++row) {
      SetLogSum(row, maximum[row], sum[row]);
      for (int64_t i = 0; i < dim_; ++i) Out(row)[i] /= sum[row];
    }
  }

  const SimdBody& body_;
  const AttentionShape& shape_;
  const AttentionSequence& sequence_;
  const WorkItem& item_;
  const int64_t group_, dim_, rows_;
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
  const int64_t block = std::max<int64_t>(1, kItemRows / (shape.heads / shape.kv_heads));
  std::vector<WorkItem> items;
  for (size_t s = 0; s < sequences.size(); ++s) {
    const AttentionSequence& sequence = sequences[s];
    Check(sequence.begin + sequence.count <= q.rows && sequence.keys.rows >= sequence.past + sequence.count &&
              sequence.values.rows >= sequence.past + sequence.count,
          "sequence {} of {} queries after {} positions does not fit {} keys", s, sequence.count, sequence.past,
          sequence.keys.rows);
    for (int64_t first = 0; first < sequence.count; first += block)
      for (int64_t head = 0; head < shape.kv_heads; ++head)
        items.push_back({static_cast<int64_t>(s), head, first, std::min(block, sequence.count - first)});
  }
  // Items differ in length, so each thread takes the next item when it is free. The results do not depend on the
  // thread.
  std::atomic<size_t> next = 0;
  ParallelFor(context, std::min<int64_t>(context.threads, static_cast<int64_t>(items.size())), 1,
              [&](int64_t, int64_t) {
                for (size_t i; (i = next++) < items.size();)
                  ItemAttention(BodyFor(context.isa), shape, sequences[items[i].sequence], items[i], q, results).Run();
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
