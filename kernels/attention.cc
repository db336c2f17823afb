#include "kernels/attention.h"

#include <algorithm>
#include <limits>
#include <vector>

#include "kernels/fast_math.h"
#include "kernels/simd_body.h"
#include "runtime/check.h"
#include "runtime/parallel.h"

namespace shiftrt {

namespace {

constexpr int64_t kQueryBlock = 16;
constexpr int64_t kKeyBlock = 64;

struct WorkItem {
  int64_t sequence, kv_head, first, count;  // queries first .. first + count of the sequence
};

// One query of one head over a block of keys: running maximum, running sum and output (Milakov & Gimelshein 2018).
class OnlineSoftmax {
 public:
  OnlineSoftmax(const SimdBody& body, float* out, int64_t head_dim) : body_(body), out_(out), head_dim_(head_dim) {
    std::fill_n(out, head_dim, 0.0f);
  }
  // scores[j] belongs to row j of values.
  void Add(float* scores, int64_t count, const float* values, int64_t stride) {
    const float maximum = std::max(maximum_, *std::max_element(scores, scores + count));
    const float rescale = FastExp(maximum_ - maximum);
    maximum_ = maximum;
    float sum = 0;
#pragma omp simd reduction(+ : sum)
    for (int64_t j = 0; j < count; ++j) {
      scores[j] = FastExp(scores[j] - maximum);
      sum += scores[j];
    }
    sum_ = sum_ * rescale + sum;
    if (rescale != 1.0f)
      for (int64_t i = 0; i < head_dim_; ++i) out_[i] *= rescale;
    for (int64_t j = 0; j < count; ++j) body_.axpy(scores[j], values + j * stride, out_, head_dim_);
  }
  void Finish() {
    for (int64_t i = 0; i < head_dim_; ++i) out_[i] /= sum_;
  }

 private:
  const SimdBody& body_;
  float* out_;
  int64_t head_dim_;
  float maximum_ = -std::numeric_limits<float>::max();
  float sum_ = 0;
};

void Attend(const SimdBody& body, const AttentionShape& shape, const AttentionSequence& sequence, const WorkItem& item,
            MatrixView<const float> q, MatrixView<float> out) {
  const int64_t group = shape.heads / shape.kv_heads, dim = shape.head_dim;
  const float* keys = sequence.keys.data + item.kv_head * dim;
  const float* values = sequence.values.data + item.kv_head * dim;
  std::vector<OnlineSoftmax> states;
  for (int64_t i = 0; i < item.count; ++i)
    for (int64_t g = 0; g < group; ++g)
      states.emplace_back(body, out.row(sequence.begin + item.first + i) + (item.kv_head * group + g) * dim, dim);
  const int64_t last_visible = sequence.past + item.first + item.count;
  float scores[kKeyBlock];
  for (int64_t k0 = 0; k0 < last_visible; k0 += kKeyBlock) {
    for (int64_t i = 0; i < item.count; ++i) {
      const int64_t visible = std::min(kKeyBlock, sequence.past + item.first + i + 1 - k0);
      if (visible <= 0) continue;
      for (int64_t g = 0; g < group; ++g) {
        const float* query = q.row(sequence.begin + item.first + i) + (item.kv_head * group + g) * dim;
        for (int64_t j = 0; j < visible; ++j)
          scores[j] = shape.scale * body.dot(query, keys + (k0 + j) * sequence.keys.stride, dim);
        states[i * group + g].Add(scores, visible, values + k0 * sequence.values.stride, sequence.values.stride);
      }
    }
  }
  for (OnlineSoftmax& state : states) state.Finish();
}

}  // namespace

void Attention(const Context& context, const AttentionShape& shape, std::span<const AttentionSequence> sequences,
               MatrixView<const float> q, MatrixView<float> out) {
  Check(shape.kv_heads > 0 && shape.heads % shape.kv_heads == 0 && q.cols == shape.heads * shape.head_dim &&
            out.cols == q.cols && out.rows == q.rows,
        "attention of {} heads of {} over {} does not fit queries ({}, {})", shape.heads, shape.head_dim,
        shape.kv_heads, q.rows, q.cols);
  std::vector<WorkItem> items;
  for (size_t s = 0; s < sequences.size(); ++s) {
    const AttentionSequence& sequence = sequences[s];
    Check(sequence.begin + sequence.count <= q.rows && sequence.keys.rows >= sequence.past + sequence.count &&
              sequence.values.rows >= sequence.past + sequence.count,
          "sequence {} of {} queries after {} positions does not fit {} keys", s, sequence.count, sequence.past,
          sequence.keys.rows);
    for (int64_t first = 0; first < sequence.count; first += kQueryBlock)
      for (int64_t head = 0; head < shape.kv_heads; ++head)
        items.push_back({static_cast<int64_t>(s), head, first, std::min(kQueryBlock, sequence.count - first)});
  }
  // Later query blocks see more keys, so items are dealt out in turn rather than in halves.
  const auto parts = std::min<int64_t>(context.threads, static_cast<int64_t>(items.size()));
  ParallelFor(context, parts, 1, [&](int64_t begin, int64_t end) {
    for (int64_t part = begin; part < end; ++part)
      for (size_t i = part; i < items.size(); i += parts)
        Attend(BodyFor(context.isa), shape, sequences[items[i].sequence], items[i], q, out);
  });
}

}  // namespace shiftrt
