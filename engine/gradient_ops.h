// SPDX-License-Identifier: Apache-2.0
// What a device computes for gradients. The passes forwards and backwards (engine/gradients.cc) are written once,
// against this; the CPU implements it over kernels/*.h (engine/cpu/gradient_ops.cc), a GPU in engine/cuda/.
//
// All views are of float32 in the memory of the device, dense or strided, unless they say otherwise; spans marked as
// the host's are in host memory. Calls take effect in the order in which they are made. No result depends on the number
// of threads. The model's settings (epsilon, offset of norms, scale and cap of attention, activation, cap of logits)
// are those of the weights that the object was made for.
#pragma once

#include <cstdint>
#include <memory>
#include <span>

#include "engine/decoder.h"
#include "kernels/adamw.h"
#include "kernels/dropout.h"

namespace shiftrt {

// A matrix or a vector that is read: as the checkpoint stores it, in host memory (a GPU keeps a copy of it), or
// trained, in float32 in the device's memory; a trained vector is (1, n). Neither: the model lacks it.
struct Operand {
  TensorView stored;  // of the weights or of the plan, which outlive the object
  MatrixView<const float> trained = {};

  bool empty() const { return stored.empty() && trained.data == nullptr; }
};

// One attention of the batch in progress.
struct AttentionActivations {
  int64_t layer = 0;                // for its window
  MatrixView<const float> q, k, v;  // rotated queries and keys, (tokens, query_dim), (tokens, kv_dim) twice
  MatrixView<float> out;            // (tokens, query_dim)
  MatrixView<float> log_sums;       // (tokens, heads)
};

// The arguments of kernels/logprob.h's HeadLoss, of whose rows some are of one batch. Spans are the host's.
struct HeadRows {
  Operand head;                      // (vocab, hidden)
  MatrixView<const float> x;         // (rows, hidden), normed
  std::span<const int32_t> targets;  // one per row
  float cross_entropy = 1;
  float divergence = 0;
  MatrixView<const float> teacher =
      {};  // (rows, hidden), normed with the model's own last norm; its head is the model's
};

class GradientOps {
 public:
  virtual ~GradientOps() = default;

  // Zeroed. Goes back with the last copy of the pointer, which may outlive this object. Throws OutOfMemory.
  virtual std::shared_ptr<float> Allocate(int64_t count) = 0;
  virtual void Zero(MatrixView<float> x) = 0;
  virtual void Copy(MatrixView<const float> from, MatrixView<float> to) = 0;
  // Between this memory and the host's. They return when the numbers are there.
  virtual void ToHost(const float* from, std::span<float> host) = 0;
  virtual void FromHost(std::span<const float> host, float* to) = 0;
  // Rows of a decoder or of the host, dense, in this memory: copied there if they lie elsewhere, else a view of them.
  // `copy` keeps what was copied.
  virtual MatrixView<const float> Here(const Rows& rows, std::shared_ptr<float>& copy) = 0;

  // Makes `batch` the one in progress, whose tokens, positions and sequences the calls below read; it must stay valid
  // until the next call. Throws Error for a token outside the vocabulary.
  virtual void Begin(const Batch& batch) = 0;
  // h (tokens, hidden) = embeddings of the batch, scaled as the family does.
  virtual void Embed(MatrixView<float> h) = 0;
  // Rotates the heads of x (tokens, heads * head_dim), in place; RopeGradient rotates them back.
  virtual void Rope(MatrixView<float> x) = 0;
  virtual void RopeGradient(MatrixView<float> dx) = 0;
  // out and log_sums from q, k and v.
  virtual void Attention(const AttentionActivations& a) = 0;
  // The gradients of q, k and v from that of out.
  virtual void AttentionGradient(const AttentionActivations& a, MatrixView<const float> dout, MatrixView<float> dq,
                                 MatrixView<float> dk, MatrixView<float> dv) = 0;

  // kernels/matmul.h.
  virtual void MatMul(MatrixView<const float> x, const Operand& w, const Operand& bias, bool accumulate,
                      MatrixView<float> y) = 0;
  virtual void MatMulRight(MatrixView<const float> x, const Operand& b, bool accumulate, MatrixView<float> y) = 0;
  virtual void MatMulInputGradient(MatrixView<const float> dy, const Operand& w, bool accumulate,
                                   MatrixView<float> dx) = 0;
  virtual void MatMulWeightGradient(MatrixView<const float> dy, MatrixView<const float> x, MatrixView<float> dw) = 0;
  virtual void BiasGradient(MatrixView<const float> dy, MatrixView<float> db) = 0;

  // kernels/rmsnorm.h; the heads are those of queries or keys. An empty dweight: no gradient of the weights.
  virtual void RmsNorm(MatrixView<const float> x, const Operand& weight, MatrixView<float> out) = 0;
  virtual void RmsNormHeads(MatrixView<float> x, const Operand& weight) = 0;
  // dx may be dy unless it accumulates.
  virtual void RmsNormGradient(MatrixView<const float> x, const Operand& weight, MatrixView<const float> dy,
                               bool accumulate, MatrixView<float> dx, MatrixView<float> dweight) = 0;
  virtual void RmsNormHeadsGradient(MatrixView<const float> x, const Operand& weight, MatrixView<const float> dy,
                                    MatrixView<float> dx, MatrixView<float> dweight) = 0;

  // kernels/elementwise.h: of the activation that the model has.
  virtual void GatedUnit(MatrixView<float> gate, MatrixView<const float> up) = 0;
  virtual void GatedUnitGradient(MatrixView<const float> gate, MatrixView<const float> up, MatrixView<float> dgate,
                                 MatrixView<float> dup) = 0;
  virtual void AddTo(MatrixView<const float> x, MatrixView<float> y) = 0;  // y += x
  virtual void AddRow(const Operand& b, MatrixView<float> y) = 0;          // every row of y += b (1, n)
  virtual void Scale(float factor, MatrixView<float> x) = 0;               // x *= factor
  virtual void ApplyDropout(const Dropout& dropout, MatrixView<const float> x, MatrixView<float> out) = 0;
  // Row i of `to` = row rows[i] of `from`, and the reverse: row rows[i] of `to` = row i of `from`. `rows` is the
  // host's.
  virtual void Gather(std::span<const int64_t> rows, MatrixView<const float> from, MatrixView<float> to) = 0;
  virtual void Scatter(std::span<const int64_t> rows, MatrixView<const float> from, MatrixView<float> to) = 0;

  // kernels/logprob.h's HeadLossGradient and TokenLogProbs. Scales, losses and log_probs are the host's.
  virtual void HeadLossGradient(const HeadRows& rows, std::span<const float> scales, std::span<float> losses,
                                MatrixView<float> dx, MatrixView<float> dw) = 0;
  virtual void LogProbs(const HeadRows& rows, std::span<float> log_probs) = 0;

  // kernels/adamw.h; the spans are of the device.
  virtual void AdamWStep(const AdamW& settings, std::span<const float> gradient, std::span<float> values,
                         std::span<float> first, std::span<float> second) = 0;
  virtual double SumOfSquares(std::span<const float> values) = 0;
  // The sum of |w * gradient| over the elements, in float64; a vector's gradient is (1, n).
  virtual double SumOfAbsoluteProducts(const Operand& w, MatrixView<const float> gradient) = 0;
};

// The operations of the context's device, for a model. Throws Error where the device has none.
std::unique_ptr<GradientOps> MakeGradientOps(const Context& context, std::shared_ptr<const Weights> weights);
std::unique_ptr<GradientOps> MakeCpuGradientOps(const Context& context, std::shared_ptr<const Weights> weights);
std::unique_ptr<GradientOps> MakeCudaGradientOps(const Context& context, std::shared_ptr<const Weights> weights);

}  // namespace shiftrt
