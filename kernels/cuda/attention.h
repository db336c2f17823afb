// SPDX-License-Identifier: Apache-2.0
// Causal grouped-query attention (kernels/attention.h) in two forms: split over the keys, for decoding, and tiled on
// the tensor cores, for whole sequences; and its gradient. The softmax is online and in float32.
#pragma once

#include "kernels/cuda/grid.h"
#include "runtime/tensor.h"

namespace shiftrt::gpu {

struct AttentionShape {
  int heads = 0;
  int kv_heads = 0;  // divides heads; query head h reads kv head h / (heads / kv_heads)
  int head_dim = 0;  // 64, 80, 96, 128 or 256
  float scale = 0;
  int window = 0;      // a query sees the last `window` of its keys, including its own; 0: all of them
  float soft_cap = 0;  // a scaled score s becomes soft_cap tanh(s / soft_cap); 0: it is unchanged
  // (heads) in device memory: exp(sinks[head]) is a term of the softmax's denominator; null: there is none.
  const float* sinks = nullptr;
};

// Device memory in which the blocks that share a query exchange results. It serves one call after another in one
// stream. It grows when a call first needs more, so that launches of the same shape can be recorded afterwards.
class SplitScratch {
 public:
  float* Shares(Stream stream, int64_t count) { return shares_.Reserve(stream, count, kWhat); }
  // Zeros, and left as zeros by every launch.
  uint32_t* Arrivals(Stream stream, int64_t count);
  int64_t bytes() const {
    return shares_.size() * static_cast<int64_t>(sizeof(float)) +
           arrivals_.size() * static_cast<int64_t>(sizeof(uint32_t));
  }
  void Release() { *this = SplitScratch(); }

 private:
  static constexpr const char* kWhat = "the shares of attention";
  DeviceBuffer<float> shares_;
  DeviceBuffer<uint32_t> arrivals_;
};

// A few queries, each with its own range of keys. Query t sees rows first_row[t] .. first_row[t] + visible[t] - 1
// of keys and values (rows, kv_heads * head_dim), or the last `window` of these; visible[t] >= 1, in device memory, so
// that a recorded launch serves every step. Cost: reads the visible keys and values once per kv head and group of four
// query heads; one launch, whose last block for a group of heads combines the splits.
struct SplitAttention {
  AttentionShape shape;
  const float* q = nullptr;  // (tokens, heads * head_dim)
  ConstDeviceArray keys, values;
  const int32_t* first_row = nullptr;
  const int32_t* visible = nullptr;
  int64_t tokens = 0;
  int splits = 1;  // from AttentionSplits: the most blocks that share the keys of a query; few keys use fewer
  SplitScratch* scratch = nullptr;
  DeviceArray out;            // (tokens, heads * head_dim), not q; float32, or the type of the keys
  float* log_sums = nullptr;  // as in PackedAttention
};
// The number of splits that fills the device if no query has more than `longest` keys.
int AttentionSplits(const AttentionShape& shape, int64_t tokens, int64_t longest, int multiprocessors);
void AttendSplit(Stream stream, const SplitAttention& call);

// Queries begin .. begin + count - 1 of a batch; the i-th of them sees rows kv_begin .. kv_begin + past + i.
struct PackedSequence {
  int32_t begin = 0, count = 0, past = 0, kv_begin = 0;
};
// The two kernels for whole sequences. kFastest: the one for warpgroups (wgmma) where TakesWarpgroups().
enum class PackedKernel { kFastest, kWarps, kWarpgroups };

// Whole sequences, bfloat16 or float16 throughout. Cost: 4 head_dim FLOP per head and pair of a query and a visible
// key. Keys and values are read once per block of 128 queries (64 queries if head_dim is 256).
struct PackedAttention {
  AttentionShape shape;
  ConstDeviceArray q;                         // (tokens, heads * head_dim)
  ConstDeviceArray keys, values;              // (rows, kv_heads * head_dim)
  const PackedSequence* sequences = nullptr;  // in device memory
  int64_t sequence_count = 0;
  int64_t longest = 0;           // the largest `count`
  int64_t tokens = 0, rows = 0;  // rows of q, and of keys and values; nothing after them is read
  DeviceArray out;               // (tokens, heads * head_dim), not q
  // If not null, (tokens, heads): the logarithm of the softmax's denominator, of the scaled and capped scores.
  float* log_sums = nullptr;
  PackedKernel kernel = PackedKernel::kFastest;
};
void AttendPacked(Stream stream, const PackedAttention& call);
// True if the kernel for warpgroups computes this shape on the device: with heads of 64 or 128, without a window, a
// soft cap and sinks, on compute capability 9.0, unless the environment variable SHIFTRT_CUDA_WGMMA is 0.
bool TakesWarpgroups(int device, const AttentionShape& shape);

// The gradients of q, keys and values from that of `out`, for sequences without a past whose keys are those of the
// batch (kv_begin = begin). q, keys, values, out and dout are of one type, bfloat16 or float32; with bfloat16, weights
// and gradients of scores are rounded to it before they are multiplied, and everything else is float32. No sum is made
// by atomics, so the same bits follow every time. Cost: 14 head_dim FLOP per head and pair of a query and a visible
// key, because both the queries' and the keys' side compute the scores again (18 with a head_dim of 256); three
// launches.
struct AttentionGradientCall {
  AttentionShape shape;
  ConstDeviceArray q, out, dout;              // (tokens, heads * head_dim)
  ConstDeviceArray keys, values;              // (tokens, kv_heads * head_dim)
  const float* log_sums = nullptr;            // (tokens, heads), as PackedAttention leaves them
  const PackedSequence* sequences = nullptr;  // in device memory; together they have all tokens
  int64_t sequence_count = 0;
  int64_t longest = 0;  // the largest `count`
  int64_t tokens = 0;
  float* deltas = nullptr;                                    // (tokens, heads), overwritten
  float *dq = nullptr, *dkeys = nullptr, *dvalues = nullptr;  // float32, overwritten
};
void AttendGradient(Stream stream, const AttentionGradientCall& call);
// dsinks (heads) -= the sum over the tokens of exp(sinks - log_sums) * deltas, both (tokens, heads): the gradient of
// the sinks, from the deltas that AttendGradient() left. Added in a fixed order; one launch.
void AddSinkGradient(Stream stream, const float* sinks, MatrixView<const float> log_sums, const float* deltas,
                     float* dsinks);

}  // namespace shiftrt::gpu
