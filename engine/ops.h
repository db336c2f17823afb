// SPDX-License-Identifier: Apache-2.0
// The operations of a device. The steps of a block (engine/block_pass.h) and adapters (engine/adapter.h) are written
// over them, for inference on the CPU and for gradients on every device. The CPU implements them with kernels/*.h
// (engine/cpu/ops.cc), a GPU in engine/cuda/ops.cc. Inference on a GPU has steps that join several of them
// (engine/cuda/many_tokens.h, engine/cuda/one_token.h).
//
// All matrices are in the memory of the device, dense or strided, unless they say otherwise; spans are in host memory.
// Calls take effect in the order in which they are made. No result depends on the number of threads. The model's
// settings (epsilon, offset of norms, scale and cap of attention, activation, cap of logits) are those of the weights
// that the object was made for.
#pragma once

#include <cstdint>
#include <memory>
#include <span>

#include "engine/decoder.h"
#include "kernels/adamw.h"
#include "kernels/dropout.h"
#include "kernels/experts.h"

namespace shiftrt {

struct LayerCall;

// A matrix or a vector that an operation reads. It is stored, as the checkpoint has it, in host memory (a GPU keeps a
// copy of it), or trained, in float32 in the device's memory; a trained vector is (1, n). It is neither if the model
// lacks it.
class Operand {
 public:
  Operand() = default;
  Operand(const TensorView& stored) : stored_(&stored) {}  // NOLINT(google-explicit-constructor): a stored operand
  Operand(TensorView&&) = delete;
  Operand(DeviceMatrix<const float> trained) : trained_(trained) {}  // NOLINT(google-explicit-constructor)
  Operand(DeviceMatrix<float> trained) : trained_(trained) {}        // NOLINT(google-explicit-constructor)

  bool is_trained() const { return !trained_.empty(); }
  bool empty() const { return stored().empty() && !is_trained(); }
  // A tensor of the weights or of the plan, which outlives the operation; empty for a trained operand.
  const TensorView& stored() const { return *stored_; }
  const DeviceMatrix<const float>& trained() const { return trained_; }

 private:
  static inline const TensorView kNone;
  const TensorView* stored_ = &kNone;
  DeviceMatrix<const float> trained_;
};

// The weights of a norm and, of a LayerNorm that has one, the bias.
struct NormOperands {
  Operand weight, bias = {};
};
// The gradients of a norm are added to these matrices, (1, n) each. An empty one takes none.
struct NormGradients {
  DeviceMatrix<float> weight, bias = {};
};

enum class Rotated : uint8_t { kQueries, kKeys };

// One attention of the call in progress.
struct AttentionActivations {
  int64_t layer = 0;            // decides the window
  int64_t slot = 0;             // the slot in the call's cache, if it has one
  DeviceMatrix<float> q, k, v;  // rotated queries and keys, and values: (tokens, query_dim), (tokens, kv_dim) twice
  DeviceMatrix<float> out;      // (tokens, query_dim)
  DeviceMatrix<float> log_sums = {};  // (tokens, heads), which the gradient reads; empty: they are not computed
  Operand sinks = {};                 // (heads); empty: the model has none
};

// One gated delta network of the call in progress (kernels/gated_delta.h).
struct DeltaActivations {
  int64_t slot = 0;                    // the slot in the call's cache, if it has one
  DeviceMatrix<float> channels;        // (tokens, channels): the convolution's input
  DeviceMatrix<float> mixed;           // (tokens, channels): the convolution's output
  DeviceMatrix<float> a = {}, b = {};  // (tokens, value_heads)
  DeviceMatrix<float> out = {};        // (tokens, values), before the norm of the heads
};
struct DeltaOperands {
  Operand conv, a_log, dt_bias;
};
struct DeltaOperandGradients {
  DeviceMatrix<float> conv, a_log, dt_bias;  // (1, n) each, added to; an empty one takes none
};

// One short convolution of the call in progress (kernels/short_convolution.h).
struct ConvolutionActivations {
  int64_t slot = 0;                        // the slot in the call's cache, if it has one
  DeviceMatrix<float> in;                  // (tokens, 3 channels)
  DeviceMatrix<float> product, convolved;  // (tokens, channels)
  DeviceMatrix<float> out;  // (tokens, channels), which may be `convolved` unless the gradient reads that
};

// kernels/xielu.h: the numbers, (1) each, and where their gradients are added, (1, 1) each; an empty one takes none.
struct XieluOperands {
  Operand alpha_p, alpha_n, beta, eps;
};
struct XieluGradients {
  DeviceMatrix<float> alpha_p, alpha_n;
  bool any() const { return !alpha_p.empty() || !alpha_n.empty(); }
};

// The arguments of kernels/logprob.h's HeadLoss, of whose rows some are of one batch. Spans are the host's.
struct HeadRows {
  Operand head;                      // (vocab, hidden)
  DeviceMatrix<const float> x;       // (rows, hidden), normed
  std::span<const int32_t> targets;  // one per row
  float cross_entropy = 1;
  float divergence = 0;
  DeviceMatrix<const float> teacher =
      {};  // (rows, hidden), normed with the model's own last norm; its head is the model's
};

class Ops {
 public:
  virtual ~Ops() = default;

  // Zeroed. Goes back with the last copy of the pointer, which may outlive this object. Throws OutOfMemory.
  virtual DeviceMemory Allocate(int64_t count) = 0;
  virtual void Zero(DeviceMatrix<float> x) = 0;
  virtual void Copy(DeviceMatrix<const float> from, DeviceMatrix<float> to) = 0;
  // Between dense matrices of this memory and the host's. They return when the numbers are there.
  virtual void ToHost(DeviceMatrix<const float> from, std::span<float> host) = 0;
  virtual void FromHost(std::span<const float> host, DeviceMatrix<float> to) = 0;
  // Rows of a decoder or of the host, dense, in this memory: copied there if they lie elsewhere, else a view of them.
  // `copy` keeps what was copied.
  virtual DeviceMatrix<const float> Here(const Rows& rows, DeviceMemory& copy) = 0;
  // A view of dense rows of this memory.
  virtual Rows AsRows(DeviceMatrix<const float> here) const = 0;

  // Makes `call` the one in progress. The operations below read its tokens, positions, sequences and cache. Its batch
  // and cache must stay valid until the next Begin(). Throws Error for a token outside the vocabulary.
  virtual void Begin(const LayerCall& call) = 0;
  // h (tokens, hidden) = embeddings of the batch, scaled as the family does.
  virtual void Embed(DeviceMatrix<float> h) = 0;
  // Rotates the heads of x (tokens, heads * head_dim), in place, as `layer` does its queries or keys; RopeGradient
  // rotates them back.
  virtual void Rope(int64_t layer, Rotated which, DeviceMatrix<float> x) = 0;
  virtual void RopeGradient(int64_t layer, Rotated which, DeviceMatrix<float> dx) = 0;
  // If the call continues one cache, makes a.k and a.v views of the rows of a.slot where the keys and values of the
  // call's tokens belong.
  virtual void PlaceInCache(AttentionActivations& a) = 0;
  // Computes out, and log_sums if it is not empty, from q and from the keys and values that the tokens see: a.k and
  // a.v, and those of the caches.
  virtual void Attention(const AttentionActivations& a) = 0;
  // The gradients of q, k and v from that of out. The call has no cache and no sequence with a parent.
  virtual void AttentionGradient(const AttentionActivations& a, DeviceMatrix<const float> dout, DeviceMatrix<float> dq,
                                 DeviceMatrix<float> dk, DeviceMatrix<float> dv) = 0;

  // Adds to dsinks (1, heads): kernels/attention.h. Follows AttentionGradient() of the same arguments.
  virtual void AttentionSinkGradient(const AttentionActivations& a, DeviceMatrix<const float> dout,
                                     DeviceMatrix<float> dsinks) = 0;

  // Gated delta networks, and the gates of an attention.
  //
  // From a.channels, a.a and a.b computes a.mixed and a.out, and advances the states of the caches. What is in a.mixed
  // is the device's.
  virtual void GatedDelta(const DeltaActivations& a, const DeltaOperands& operands) = 0;
  // From the gradient of a.out those of a.channels, a.a and a.b. The call has no cache and no sequence with a parent.
  // `dmixed` (tokens, channels) is scratch memory.
  virtual void GatedDeltaGradient(const DeltaActivations& a, const DeltaOperands& operands,
                                  DeviceMatrix<const float> dout, DeviceMatrix<float> dmixed,
                                  const DeltaActivations& gradients, const DeltaOperandGradients& of_operands) = 0;
  // Short convolutions; the bodies here throw Error, for a device without them.
  //
  // From a.in computes the others, and advances the rows of the caches. `w` is (channels, 1, width).
  virtual void ShortConvolution(const ConvolutionActivations& a, const Operand& w);
  // From the gradient of a.out that of a.in, and adds to that of w, (1, n), unless it is empty. The call has no cache
  // and no sequence with a parent.
  virtual void ShortConvolutionGradient(const ConvolutionActivations& a, const Operand& w,
                                        DeviceMatrix<const float> dout, DeviceMatrix<float> din,
                                        DeviceMatrix<float> dw);
  // The RMSNorm of each head of x (tokens, values), in place, without the model's offset; weight (value_dim).
  virtual void DeltaNorm(DeviceMatrix<float> x, const Operand& weight) = 0;
  virtual void DeltaNormGradient(DeviceMatrix<const float> x, const Operand& weight, DeviceMatrix<const float> dy,
                                 DeviceMatrix<float> dx, DeviceMatrix<float> dweight) = 0;
  // The output of q_proj (tokens, 2 query_dim), which has a head's gate after its queries, as queries and gates
  // (tokens, query_dim), and back.
  virtual void SplitGates(DeviceMatrix<const float> both, DeviceMatrix<float> q, DeviceMatrix<float> gate) = 0;
  virtual void JoinGates(DeviceMatrix<const float> q, DeviceMatrix<const float> gate, DeviceMatrix<float> both) = 0;
  // kernels/elementwise.h.
  virtual void SigmoidGate(DeviceMatrix<const float> gate, DeviceMatrix<float> x) = 0;
  virtual void SigmoidGateGradient(DeviceMatrix<const float> gate, DeviceMatrix<const float> x, DeviceMatrix<float> dy,
                                   DeviceMatrix<float> dgate) = 0;

  // kernels/matmul.h.
  virtual void MatMul(DeviceMatrix<const float> x, const Operand& w, const Operand& bias, bool accumulate,
                      DeviceMatrix<float> y) = 0;
  // kernels/matmul.h's MatMulEach.
  struct Product {
    DeviceMatrix<const float> x;
    const TensorView* w;  // stored
    DeviceMatrix<float> y;
    const TensorView* bias;  // stored; empty: there is none
  };
  virtual void MatMulEach(std::span<const Product> products);
  virtual void MatMulRight(DeviceMatrix<const float> x, const Operand& b, bool accumulate, DeviceMatrix<float> y) = 0;
  virtual void MatMulInputGradient(DeviceMatrix<const float> dy, const Operand& w, bool accumulate,
                                   DeviceMatrix<float> dx) = 0;
  virtual void MatMulWeightGradient(DeviceMatrix<const float> dy, DeviceMatrix<const float> x,
                                    DeviceMatrix<float> dw) = 0;
  virtual void BiasGradient(DeviceMatrix<const float> dy, DeviceMatrix<float> db) = 0;
  // Products with the matrix w + scale b a: y = x (w + scale b a)' + bias, with inner (tokens, rank) = scale x a', and
  // dx = dy (w + scale b a) (+ dx), with inner = scale dy b. A device may join the products.
  struct LowRankTerm {
    Operand a, b;  // (rank, input) and (output, rank), trained
    float scale;
    DeviceMatrix<float> inner;
  };
  virtual void MatMulLowRank(DeviceMatrix<const float> x, const Operand& w, const Operand& bias, const LowRankTerm& low,
                             DeviceMatrix<float> y);
  virtual void MatMulInputGradientLowRank(DeviceMatrix<const float> dy, const Operand& w, const LowRankTerm& low,
                                          bool accumulate, DeviceMatrix<float> dx);

  // The norm of rows that the model has: kernels/rmsnorm.h or kernels/layernorm.h. Without weight, which the model
  // lacks, it copies. Queries and keys have an RMSNorm, of each head alone or of all together. An empty dweight: no
  // gradient of the weights.
  virtual void Norm(DeviceMatrix<const float> x, const NormOperands& norm, DeviceMatrix<float> out) = 0;
  virtual void RmsNormHeads(DeviceMatrix<float> x, const Operand& weight) = 0;
  // dx may be dy unless it accumulates.
  virtual void NormGradient(DeviceMatrix<const float> x, const NormOperands& norm, DeviceMatrix<const float> dy,
                            bool accumulate, DeviceMatrix<float> dx, const NormGradients& gradients) = 0;
  virtual void RmsNormHeadsGradient(DeviceMatrix<const float> x, const Operand& weight, DeviceMatrix<const float> dy,
                                    DeviceMatrix<float> dx, DeviceMatrix<float> dweight) = 0;

  // kernels/elementwise.h: of the activation or the clamped unit that the model has. Without gate, `up` and `dup` are
  // empty, and `gate` is the output of the up projection.
  virtual void GatedUnit(DeviceMatrix<float> gate, DeviceMatrix<const float> up) = 0;
  virtual void GatedUnitGradient(DeviceMatrix<const float> gate, DeviceMatrix<const float> up,
                                 DeviceMatrix<float> dgate, DeviceMatrix<float> dup) = 0;
  // kernels/xielu.h; the bodies here throw Error, for a device without them.
  virtual void Xielu(const XieluOperands& numbers, DeviceMatrix<float> x);
  virtual void XieluGradient(const XieluOperands& numbers, DeviceMatrix<const float> x, DeviceMatrix<float> dx,
                             const XieluGradients& of_numbers);
  virtual void AddTo(DeviceMatrix<const float> x, DeviceMatrix<float> y) = 0;  // y += x
  virtual void AddRow(const Operand& b, DeviceMatrix<float> y) = 0;            // every row of y += b (1, n)
  virtual void Scale(float factor, DeviceMatrix<float> x) = 0;                 // x *= factor
  virtual void ApplyDropout(const Dropout& dropout, DeviceMatrix<const float> x, DeviceMatrix<float> out) = 0;
  // Row i of `to` = row rows[i] of `from`, and the reverse: row rows[i] of `to` = row i of `from`. `rows` is the
  // host's.
  virtual void Gather(std::span<const int64_t> rows, DeviceMatrix<const float> from, DeviceMatrix<float> to) = 0;
  virtual void Scatter(std::span<const int64_t> rows, DeviceMatrix<const float> from, DeviceMatrix<float> to) = 0;

  // kernels/experts.h. The probabilities in a routing are the device's: a GPU leaves them out.
  virtual ExpertRouting RouteToExperts(DeviceMatrix<const float> logits, int64_t active, bool normalised) = 0;
  // Row s of `to` = the row of `from` of the token of slot s. Products of one expert after another read the rows.
  virtual void GatherSlots(const ExpertRouting& routing, DeviceMatrix<const float> from, DeviceMatrix<float> to);
  virtual void SumOverExperts(const ExpertRouting& routing, bool weighted, DeviceMatrix<const float> x,
                              DeviceMatrix<float> y) = 0;
  virtual void ExpertWeightGradient(const ExpertRouting& routing, DeviceMatrix<const float> activation,
                                    DeviceMatrix<float> g, std::span<float> dweights) = 0;
  virtual void ExpertBiasWeightGradient(const TensorView& b, DeviceMatrix<const float> dy,
                                        std::span<float> dweights) = 0;
  virtual void ScaleByExpertWeights(const ExpertRouting& routing, DeviceMatrix<float> x) = 0;
  // kernels/elementwise.h, for the weight of a shared expert.
  virtual void SigmoidGateRows(DeviceMatrix<const float> gate, DeviceMatrix<float> x) = 0;
  virtual void SigmoidGateRowsGradient(DeviceMatrix<const float> gate, DeviceMatrix<const float> y,
                                       DeviceMatrix<float> dy, DeviceMatrix<float> dgate) = 0;
  // In the place of the logits, their gradient.
  virtual void RouteToExpertsGradient(const ExpertRouting& routing, bool normalised, std::span<const float> dweights,
                                      DeviceMatrix<float> logits) = 0;

  // kernels/logprob.h's HeadLossGradient, with dx and dw empty or not, and TokenLogProbs.
  virtual void HeadLossGradient(const HeadRows& rows, std::span<const float> scales, std::span<float> losses,
                                DeviceMatrix<float> dx, DeviceMatrix<float> dw) = 0;
  virtual void LogProbs(const HeadRows& rows, std::span<float> log_probs) = 0;

  // kernels/adamw.h; the arrays are dense.
  virtual void AdamWStep(const AdamW& settings, DeviceMatrix<const float> gradient, DeviceMatrix<float> values,
                         DeviceMatrix<float> first, DeviceMatrix<float> second) = 0;
  virtual double SumOfSquares(DeviceMatrix<const float> values) = 0;  // dense
  // The sum of |w * gradient| over the elements, in float64; a vector's gradient is (1, n).
  virtual double SumOfAbsoluteProducts(const Operand& w, DeviceMatrix<const float> gradient) = 0;
};

// The operations of the context's device, for a model. Throws Error if the device has none.
std::unique_ptr<Ops> MakeOps(const Context& context, std::shared_ptr<const Weights> weights);
std::unique_ptr<Ops> MakeCpuOps(const Context& context, std::shared_ptr<const Weights> weights);
std::unique_ptr<Ops> MakeCudaOps(const Context& context, std::shared_ptr<const Weights> weights);

}  // namespace shiftrt
