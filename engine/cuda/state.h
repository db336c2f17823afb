// SPDX-License-Identifier: Apache-2.0
// The state of a decoder on its GPU: tensors, tables, scratch memory, and the call in progress. Only files of
// engine/cuda/ include it: the backend, the implementations of layers (many_tokens.h, one_token.h) and the operations
// of gradients.
#pragma once

#include <map>
#include <memory>
#include <vector>

#include "engine/backend.h"
#include "engine/cuda/rope_table.h"
#include "engine/cuda/weights.h"
#include "kernels/cuda/attention.h"
#include "kernels/cuda/sample.h"

namespace shiftrt {

inline constexpr const char* kActivations = "the activations";

// An array as large as the largest call needs, in float32 or in the weights' type.
class Scratch {
 public:
  float* Floats(gpu::Stream stream, int64_t count) {
    return static_cast<float*>(Get(stream, count, DType::kFloat32).data);
  }
  gpu::DeviceArray Get(gpu::Stream stream, int64_t count, DType dtype) {
    const int64_t bytes = count * static_cast<int64_t>(SizeOf(dtype));
    return {buffer_.Reserve(stream, bytes, kActivations), dtype};
  }
  int64_t bytes() const { return buffer_.size(); }
  void Release() { buffer_ = {}; }

 private:
  gpu::DeviceBuffer<std::byte> buffer_;
};

struct CudaKv : KvStorage {
  CudaKv(std::shared_ptr<const StreamRows> stream, int64_t capacity) : stream(std::move(stream)), capacity(capacity) {}
  struct Slot {
    gpu::DeviceBuffer<std::byte> keys, values;  // (capacity, kv_dim)
  };
  std::shared_ptr<const StreamRows> stream;  // that the memory goes back to
  int64_t capacity;
  std::vector<Slot> slots;  // one per block whose attention runs, in plan order
};

// An adapter's matrices as weights (out, in), the rank padded by zeros; rank 0: `a` instead of factors.
struct DeviceLra {
  gpu::DeviceBuffer<float> p, q, a, bias;
  int64_t rank = 0;
};

struct KeysValues {
  gpu::DeviceArray keys, values;
  int64_t rows = 0;  // of each
};

// The call in progress, as launches read it: arrays in device memory, and sizes.
struct Step {
  int64_t count = 0;
  const int32_t *tokens = nullptr, *positions = nullptr, *cache_rows = nullptr, *first_row = nullptr,
                *visible = nullptr;
  const gpu::PackedSequence* sequences = nullptr;
  int64_t sequence_count = 0, longest = 0;
  int64_t longest_keys = 0;  // no query will see more
  // Rows of keys that branches have in one piece with their own; they stand behind the call's.
  const int32_t* joined_rows = nullptr;
  int64_t joined_count = 0;
};

inline gpu::SampleRequest RequestOf(const Draw& draw) {
  return {draw.sampling.temperature, draw.sampling.top_p, draw.uniform, draw.sampling.top_k};
}

class CudaState {
 public:
  explicit CudaState(const BackendSetup& setup);
  CudaState(const CudaState&) = delete;
  CudaState& operator=(const CudaState&) = delete;

  // The tensors of a stage, uploaded now if they were not before.
  const DeviceAttention& AttentionOf(const BlockStage& stage);
  const DeviceMlp& MlpOf(const BlockStage& stage);
  const DeviceLra& AdapterOf(const AdapterStage& stage);

  // Copies what a call's launches read to the device, and makes it the call in progress.
  void Begin(const LayerCall& call);
  // The same for one token that continues a cache, the one that the call before chose. Copies nothing to the device.
  void BeginOnChosen(const LayerCall& call);
  // The memory for keys and values: a slot of the cache, or scratch for one block.
  KeysValues Place(int64_t slot);
  // From the product with the joined query, key and value matrices: rotated queries to `q`, keys and values to `kv`.
  void Rotate(const DeviceAttention& attention, gpu::ConstDeviceArray qkv, gpu::DeviceArray q, const KeysValues& kv);
  gpu::RopeTable rope() const { return rope_.table(); }
  // Rows in this GPU's memory: those of the host are copied over. Throws Error for rows of another GPU.
  const float* Here(const Rows& rows);

  // The shape of attention of the block at `layer`, which has a window of its own.
  gpu::AttentionShape ShapeOf(int64_t layer) const;
  // h += update + bias, normed first with `norm`: what a family with norms of its updates does. Leaves in `update` what
  // was added.
  void AddNormed(MatrixView<float> h, float* update, const gpu::DeviceBuffer<float>& bias,
                 const gpu::DeviceBuffer<float>& norm);
  // The plan's head, (vocab, hidden), and final norm.
  gpu::ConstDeviceArray HeadWeights() const {
    return output_.head.size() > 0 ? gpu::ConstDeviceArray(output_.head.data(), dtype) : device->head();
  }
  const float* FinalNorm() const {
    return output_.final_norm.size() > 0 ? output_.final_norm.data() : device->final_norm();
  }
  // Final norm and head of one row, (hidden) to (vocab).
  void Head(const float* row, float* logits);
  // The token that follows `row`, as `request` says, into `chosen`.
  void Choose(const float* row);

  // Gives back the memory of a batch; returns how many bytes.
  int64_t ReleaseScratch();
  // Rows of the hidden size, one per token of the call.
  MatrixView<float> Hidden(Scratch& scratch) {
    return {scratch.Floats(stream, step.count * hidden), step.count, hidden};
  }

  const std::shared_ptr<const Weights> weights;
  const ModelConfig& config;
  const BlockSpec& spec;
  const std::shared_ptr<DeviceWeights> device;
  const gpu::Stream stream;
  const DType dtype;  // of the weights' matrices, of cached keys and values, and of what products of many rows read
  const int64_t hidden;
  const float eps;
  const int cores;
  const gpu::AttentionShape shape;
  const bool tapped;         // some calls make rows of updates
  const bool gates_at_once;  // for many tokens, the activation is part of the product (gated_product.h)

  Step step;
  const CudaKv* cache = nullptr;  // of the call in progress
  Scratch residual, normed, qkv, q, keys, values, attended, attention_update, mlp_update, delta, gate_up, activation,
      widened, inner, logits, given, gathered;
  gpu::SplitScratch shares;
  // The choice of a token; apart from the scratch, for recorded launches read and write it.
  gpu::DeviceBuffer<gpu::SampleRequest> request;
  gpu::DeviceBuffer<int32_t> chosen;
  // Launches for one token. Whatever moves an array that they use resets it.
  gpu::LaunchGraph graph;

 private:
  // Tensors of plans besides the model's own, kept for as long as this decoder.
  std::map<std::shared_ptr<const BlockWeights>, DeviceBlock> own_;
  std::map<std::shared_ptr<const Lra>, DeviceLra> adapters_;
  DeviceOutput output_;

  GrowingRopeTable rope_;

  gpu::DeviceBuffer<int32_t> indices_;
  gpu::DeviceBuffer<float> chosen_from_;  // logits
  gpu::DeviceBuffer<uint64_t> choice_scratch_;
};

}  // namespace shiftrt
