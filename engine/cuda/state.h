// SPDX-License-Identifier: Apache-2.0
// A decoder's tensors and scratch memory on its GPU, and the operations that the layers (many_tokens.h, one_token.h)
// and the head share.
#pragma once

#include <array>
#include <bit>
#include <map>
#include <memory>

#include "engine/backend.h"
#include "engine/cuda/call.h"
#include "engine/cuda/scratch.h"
#include "kernels/cuda/matvec.h"
#include "kernels/cuda/rmsnorm.h"
#include "models/block_tensors.h"

namespace shiftrt {

// An adapter's matrices as weights (out, in), the rank padded by zeros; rank 0: `a` instead of factors. `norm` has the
// norm's offset added, and is empty for an adapter that reads the stream.
struct DeviceLra {
  gpu::DeviceBuffer<float> p, q, a, bias, norm;
  int64_t rank = 0;
};

struct KeysValues {
  gpu::DeviceArray keys, values;
  int64_t rows = 0;  // rows of keys, and as many of values
};

// The arrays that every call uses again, each as large as the largest call needs.
enum class CudaArray : uint8_t {
  kResidual,
  kNormed,
  kMlpNormed,  // in a parallel block whose halves have a norm each
  kQkv,
  kQueries,
  kKeys,
  kValues,
  kAttended,
  kAttentionUpdate,
  kMlpUpdate,
  kDelta,
  kGateUp,
  kActivation,
  kWidened,
  kInner,
  kRouterLogits,
  kChosenExperts,
  kExpertInputs,
  kExpertRows,
  kSharedRows,
  kSharedGate,
  kDeltaMixed,
  kDeltaGates,
  kDeltaDecays,
  kDeltaHeads,
  kDeltaChunks,
  kDeltaStates,
  kLogits,
  kGiven,
  kGathered,
};
inline constexpr size_t kCudaArrays = static_cast<size_t>(CudaArray::kGathered) + 1;

class CudaState : public CudaCall {
 public:
  explicit CudaState(const BackendSetup& setup);

  bool tapped() const { return tapped_; }                // some calls make rows of updates
  bool gates_at_once() const { return gates_at_once_; }  // for many tokens, the activation is part of the product

  // The tensors of a stage, uploaded now if they were not before.
  const DeviceAttention& AttentionOf(const BlockStage& stage);
  const DeviceMlp& MlpOf(const BlockStage& stage);
  const DeviceHalf& HalfOf(const BlockStage& stage, Halves half) {
    return half == Halves::kMlp ? static_cast<const DeviceHalf&>(MlpOf(stage)) : AttentionOf(stage);
  }
  const DeviceLra& AdapterOf(const AdapterStage& stage);
  // The plan's head, (vocab, hidden), and final norm.
  const gpu::WeightRows& HeadWeights() const {
    return output_.head.memory.size() > 0 ? output_.head.rows : device()->head();
  }
  gpu::Norm FinalNorm() const {
    return NormOf(output_.final_norm.weight.size() > 0 ? output_.final_norm : device()->final_norm());
  }
  gpu::Norm NormOf(const DeviceNorm& norm) const {
    return {norm.weight.data(), eps(), spec().layer_norm, norm.bias.data()};
  }

  // Makes `call` the one in progress. If its token is the one that the call before chose, copies nothing to the device.
  void Start(const LayerCall& call);
  // The recorded launches of a step of 1, 2, 4, 8, 16 or 32 tokens.
  gpu::LaunchGraph& graph(int64_t tokens) { return graphs_[std::bit_width(static_cast<uint64_t>(tokens)) - 1]; }

  // An array with room for so many elements, which it need not keep from before.
  gpu::DeviceArray Get(CudaArray which, int64_t count, DType dtype) { return Of(which).Get(stream(), count, dtype); }
  float* Floats(CudaArray which, int64_t count) { return Of(which).Floats(stream(), count); }
  // Rows of the hidden size, one per token of the call.
  MatrixView<float> Hidden(CudaArray which) { return {Floats(which, step().count * hidden()), step().count, hidden()}; }
  // Gives back the memory of a batch; returns how many bytes.
  int64_t ReleaseScratch();
  // The bytes of the arrays that recorded launches use. They change when an array moves, because arrays only grow.
  int64_t ScratchBytes() const;
  // Forgets what was recorded, because an array has moved, but for one graph.
  void ResetGraphs(const gpu::LaunchGraph* but = nullptr);

  // Returns what the products of an adapter read: h (tokens, hidden), or its norm in an array.
  float* InputOf(const DeviceLra& lra, MatrixView<float> h);
  // Returns rows in this GPU's memory, to which those of the host are copied. Throws Error for rows of another GPU.
  const float* Here(const Rows& rows);
  // Returns where the keys and values of the call belong: in a slot of its caches, or in scratch for one block.
  KeysValues Place(int64_t slot);
  // From the product with the joined query, key and value matrices, which is changed: rotated queries to `q`, keys and
  // values to `kv`.
  void Rotate(int64_t layer, const DeviceAttention& attention, gpu::DeviceArray qkv, gpu::DeviceArray q,
              const KeysValues& kv);
  // The columns of the product with the joined query, key and value matrices.
  int64_t qkv_dim() const { return Size(config(), Axis::kQueries) + 2 * config().kv_dim(); }
  // attended (tokens, query_dim) *= the sigmoid of the gates in that product, if the model has gates.
  void GateHeads(gpu::ConstDeviceArray qkv, gpu::DeviceArray attended);
  // A gated delta network between its first products, qkvz (tokens, channels + values) and gates (tokens, 2
  // value_heads), and its last one: to (tokens, values), in the type of qkvz.
  void GatedDelta(const DeviceDelta& w, int64_t slot, gpu::ConstDeviceArray qkvz, const float* gates,
                  gpu::DeviceArray to);
  // A product whose input is the norm of h (hidden), computed by the product itself, or into `into` where the product
  // cannot or where the input is read again.
  gpu::MatVecProblem OfNormed(float* h, const gpu::Norm& norm, bool apart, CudaArray into = CudaArray::kNormed);
  // h += the update and its bias, normed first if the family does that, and times the residual multiplier: the end of
  // a half if updates are not plain. Leaves in `update` what was added.
  void AddNormed(MatrixView<float> h, float* update, const DeviceHalf& half);
  // Final norm and head of one row, (hidden) to (vocab).
  void Head(const float* row, float* logits);
  // Says how the next Choose() chooses.
  void Ask(const Draw& draw);
  // Chooses the token that follows `row` into chosen().
  void Choose(const float* row);
  // Chooses among logits (vocab) as a request in device memory says.
  void Sample(const float* logits, const gpu::SampleRequest* request, int32_t* token);
  const int32_t* chosen() const { return chosen_.data(); }

 private:
  Scratch& Of(CudaArray which) { return arrays_[static_cast<size_t>(which)]; }

  const bool tapped_, gates_at_once_;

  // The tensors of plans besides the model's own, kept for as long as this decoder.
  std::map<std::shared_ptr<const BlockWeights>, DeviceBlock> own_;
  std::map<std::shared_ptr<const Lra>, DeviceLra> adapters_;
  DeviceOutput output_;

  std::array<Scratch, kCudaArrays> arrays_;
  // The choice of a token; apart from the scratch, because recorded launches read and write it.
  gpu::DeviceBuffer<gpu::SampleRequest> request_;
  gpu::DeviceBuffer<int32_t> chosen_;
  gpu::DeviceBuffer<float> chosen_from_;  // logits of one row
  gpu::DeviceBuffer<uint64_t> choice_scratch_;
  std::array<gpu::LaunchGraph, std::bit_width(static_cast<uint64_t>(gpu::kFewTokens))> graphs_;
};

}  // namespace shiftrt
