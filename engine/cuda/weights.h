// SPDX-License-Identifier: Apache-2.0
// A model's weights in GPU memory: one copy per GPU, shared by every decoder there. Each half of a block is uploaded
// when a plan first runs it. Quantised matrices stay quantised if the kernels read their blocks
// (kernels/cuda/blocks.h); others are expanded to bfloat16. Of a part of a split model, embedding, norm and head are
// there if the part has them.
#pragma once

#include <map>
#include <memory>
#include <mutex>
#include <optional>

#include "engine/cuda/rows.h"
#include "engine/cuda/scratch.h"
#include "kernels/cuda/blocks.h"
#include "kernels/cuda/matmul.h"
#include "models/plan.h"
#include "models/weights.h"
#include "runtime/context.h"
#include "runtime/cuda/upload.h"

namespace shiftrt {

// A matrix, or matrices that meet the same input, one below the other.
struct DeviceWeight {
  gpu::DeviceBuffer<std::byte> memory;
  gpu::WeightRows rows;  // all parts are named
};

// A norm as the kernels take it; a bias that the model lacks is null, and so are both if it lacks the norm.
struct DeviceNorm {
  gpu::DeviceBuffer<float> weight, bias;
};

// The tensors of a block's halves, matrices that meet the same input joined by rows. Norms and biases are float32, the
// family's offset added to the norms; an absent one is null.
struct DeviceHalf {
  DeviceNorm norm;
  DeviceWeight last;   // the projection that ends the half: o or down
  int64_t inputs = 0;  // what it reads per token: heads, or units
  gpu::DeviceBuffer<float> last_bias, update_norm;
};
// A gated delta network as kernels/cuda/gated_delta.h takes it.
struct DeviceDelta {
  DeviceWeight qkvz, gates;  // queries, keys, values and z; b and a
  gpu::DeviceBuffer<float> conv, a_log, dt_bias, norm;
};
struct DeviceAttention : DeviceHalf {
  DeviceWeight qkv;  // with gates (BlockSpec::attention_gate) among the rows of q
  gpu::DeviceBuffer<float> q_norm, k_norm, qkv_bias, sinks;
  std::optional<DeviceDelta> delta;  // in the place of these
};
// A mixture of experts. The experts' matrices stand one below the other; of gate_up, an expert's gate and then its up.
struct DeviceMixture {
  DeviceWeight router, gate_up, down;
  int64_t experts = 0, active = 0, units = 0;
  // Null where the experts have none: (experts), (experts, 2 units) and (experts, hidden).
  gpu::DeviceBuffer<float> router_bias, gate_up_bias, down_bias;
  DeviceWeight shared_gate_up, shared_down, shared_weight;
  int64_t shared_units = 0;  // 0: there is no shared expert
};
struct DeviceMlp : DeviceHalf {
  DeviceWeight gate_up;  // without gate, the up projection alone
  gpu::DeviceBuffer<float> gate_up_bias;
  std::optional<DeviceMixture> mixture;  // in the place of these and of the last projection
};
// A final norm and a head of a plan's own; nothing where it has the model's. The final norm is multiplied by the scale
// of the logits, and is there if that is not 1.
struct DeviceOutput {
  DeviceWeight head;
  DeviceNorm final_norm;
};
struct DeviceBlock {
  std::optional<DeviceAttention> attention;
  std::optional<DeviceMlp> mlp;
};

// Also carries what all decoders over these weights work with, one call after another: the stream and the library
// handles. Several threads may have halves uploaded; only one at a time may launch work.
class DeviceWeights {
 public:
  // Throws Error for a model the kernels do not take: matrices of several types that are not quantised, or of another
  // than bfloat16 beside quantised ones; sizes that are no multiples of 8; a head dimension other than 64, 80, 96, 128
  // or 256; gated delta networks with heads of more than 256; mixtures of more than gpu::kMostExperts experts.
  DeviceWeights(const Weights& weights, int gpu);

  // A half of a block of `weights`, which are those this was made of.
  const DeviceAttention& Attention(const Weights& weights, int64_t layer);
  const DeviceMlp& Mlp(const Weights& weights, int64_t layer);
  // Tensors that a plan gives a block of the same model. Throws Error where a matrix is not of dtype(), or quantised in
  // a model of bfloat16, and for an MLP whose units are no multiple of 8, or experts of several types, like Mlp().
  DeviceAttention UploadAttention(const ModelConfig& config, const BlockStage& stage);
  DeviceMlp UploadMlp(const ModelConfig& config, const BlockStage& stage);
  DeviceOutput UploadOutput(const Weights& weights, const DepthPlan& plan);
  DeviceWeight UploadMatrix(const TensorView& matrix);
  // Throws Error unless a matrix of this type can belong to this model; `what` says which matrix it is.
  void CheckType(const std::string& what, DType type) const;

  // y = x W' (+ y) as gpu::MatMulProblem says, but for its w. Up to gpu::kFewTokens dense rows are multiplied with the
  // blocks of quantised parts, and with `streamed` with dense 16-bit weights, by gpu::MultiplyFew(); for more, one
  // quantised part after the other is expanded. Quantised parts must not be transposed.
  void MatMul(gpu::MatMulProblem problem, const gpu::WeightRows& w, bool streamed = false);
  // Quantised rows in bfloat16, dense. Valid until the next call of this function or of MatMul().
  gpu::ConstDeviceArray Expanded(const gpu::WeightPart& part, int64_t cols);

  const std::shared_ptr<const StreamRows>& rows() const { return rows_; }  // own the stream
  gpu::Stream stream() const { return rows_->stream(); }
  const gpu::DeviceInfo& info() const { return info_; }
  gpu::Products& products() { return products_; }
  DType dtype() const { return dtype_; }  // the type of every matrix that is not quantised, and of activations
  const gpu::WeightRows& embedding() const { return embedding_.rows; }
  const gpu::WeightRows& head() const { return head_.memory.size() > 0 ? head_.rows : embedding_.rows; }
  const DeviceNorm& final_norm() const { return final_norm_; }

 private:
  std::shared_ptr<const StreamRows> rows_;
  gpu::DeviceInfo info_;
  gpu::Products products_;
  DType dtype_;
  std::mutex uploading_;  // guards these two
  gpu::Uploader uploader_{stream()};
  std::map<int64_t, DeviceBlock> blocks_;  // by layer

  DeviceWeight embedding_, head_;  // no head of its own where it is tied
  Scratch expanded_;
  DeviceNorm final_norm_;
};

// The copy of `weights` on one GPU, made now if the context has none.
std::shared_ptr<DeviceWeights> OnDevice(const Context& context, const std::shared_ptr<const Weights>& weights, int gpu);

}  // namespace shiftrt
