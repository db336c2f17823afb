// SPDX-License-Identifier: Apache-2.0
// A decoder's tensors, tables, scratch memory and call in progress on its GPU, and the operations that the bodies of
// the layers (many_tokens.h, one_token.h) and the head share.
#pragma once

#include <array>
#include <map>
#include <memory>

#include "engine/backend.h"
#include "engine/cuda/call.h"
#include "engine/cuda/scratch.h"
#include "engine/cuda/weights.h"
#include "kernels/cuda/matvec.h"
#include "kernels/cuda/rmsnorm.h"

namespace shiftrt {

// An adapter's matrices as weights (out, in), the rank padded by zeros; rank 0: `a` instead of factors.
struct DeviceLra {
  gpu::DeviceBuffer<float> p, q, a, bias;
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
  kLogits,
  kGiven,
  kGathered,
};
inline constexpr size_t kCudaArrays = static_cast<size_t>(CudaArray::kGathered) + 1;

class CudaState {
 public:
  explicit CudaState(const BackendSetup& setup);
  CudaState(const CudaState&) = delete;
  CudaState& operator=(const CudaState&) = delete;

  const ModelConfig& config() const { return weights_->config; }
  const BlockSpec& spec() const { return config().block; }
  int64_t hidden() const { return config().hidden; }
  float eps() const { return static_cast<float>(config().rms_eps); }
  gpu::Stream stream() const { return stream_; }
  // The type of the weights, of cached keys and values, and of what products of many rows read.
  DType dtype() const { return dtype_; }
  int cores() const { return device_->info().multiprocessors; }
  bool tapped() const { return tapped_; }                // some calls make rows of updates
  bool gates_at_once() const { return gates_at_once_; }  // for many tokens, the activation is part of the product
  gpu::Products& products() { return device_->products(); }
  const std::shared_ptr<const StreamRows>& rows() const { return device_->rows(); }

  // The tensors of a stage, uploaded now if they were not before.
  const DeviceAttention& AttentionOf(const BlockStage& stage);
  const DeviceMlp& MlpOf(const BlockStage& stage);
  const DeviceLra& AdapterOf(const AdapterStage& stage);
  // The plan's head, (vocab, hidden), and final norm.
  gpu::ConstDeviceArray HeadWeights() const {
    return output_.head.size() > 0 ? gpu::ConstDeviceArray(output_.head.data(), dtype_) : device_->head();
  }
  gpu::Norm FinalNorm() const {
    return NormOf(output_.final_norm.weight.size() > 0 ? output_.final_norm : device_->final_norm());
  }
  gpu::Norm NormOf(const DeviceNorm& norm) const {
    return {norm.weight.data(), eps(), spec().layer_norm, norm.bias.data()};
  }
  // True if both halves of the stage run and read the stream before the block.
  bool Parallel(const BlockStage& block) const { return spec().parallel && block.halves == Halves::kBoth; }
  // The array with the normed input of the MLP of such a stage.
  CudaArray ParallelMlpInput() const { return spec().shared_norm ? CudaArray::kNormed : CudaArray::kMlpNormed; }

  // Makes `call` the one in progress. If its token is the one that the call before chose, copies nothing to the device.
  void Begin(const LayerCall& call);
  const Step& step() const { return call_.step(); }
  const CudaKv* cache() const { return call_.cache(); }
  gpu::RopeTable rope(int64_t layer) const { return call_.rope(layer); }
  // The recorded launches for one token. Whatever moves an array that they use resets them.
  gpu::LaunchGraph& graph() { return graph_; }

  // An array with room for so many elements, which it need not keep from before.
  gpu::DeviceArray Get(CudaArray which, int64_t count, DType dtype) { return Of(which).Get(stream_, count, dtype); }
  float* Floats(CudaArray which, int64_t count) { return Of(which).Floats(stream_, count); }
  // Rows of the hidden size, one per token of the call.
  MatrixView<float> Hidden(CudaArray which) { return {Floats(which, step().count * hidden()), step().count, hidden()}; }
  // Gives back the memory of a batch; returns how many bytes.
  int64_t ReleaseScratch();

  // h = the embeddings of the call's tokens.
  void Embed(float* h);
  // Returns rows in this GPU's memory, to which those of the host are copied. Throws Error for rows of another GPU.
  const float* Here(const Rows& rows);
  // Returns where the keys and values of the call belong: in a slot of the cache, or in scratch for one block.
  KeysValues Place(int64_t slot);
  // From the product with the joined query, key and value matrices, which is changed: rotated queries to `q`, keys and
  // values to `kv`.
  void Rotate(int64_t layer, const DeviceAttention& attention, gpu::DeviceArray qkv, gpu::DeviceArray q,
              const KeysValues& kv);
  // out = the attention of the call's queries at `layer`, in float32.
  void AttendSplit(int64_t layer, gpu::ConstDeviceArray q, const KeysValues& kv, float* out);
  gpu::AttentionShape ShapeOf(int64_t layer) const { return AttentionShapeOf(config(), spec().Window(layer)); }
  // `problem` with the norm of h (hidden) as its input: computed by the product, or into `into` where the product
  // cannot or where the input is read again.
  gpu::MatVecProblem OfNormed(float* h, const gpu::Norm& norm, bool apart, gpu::MatVecProblem problem,
                              CudaArray into = CudaArray::kNormed);
  // h += update + bias, normed first with `norm` unless that is empty, and times the residual multiplier: what a model
  // does whose updates are not plain. Leaves in `update` what was added.
  void AddNormed(MatrixView<float> h, float* update, const gpu::DeviceBuffer<float>& bias,
                 const gpu::DeviceBuffer<float>& norm);
  // Final norm and head of one row, (hidden) to (vocab).
  void Head(const float* row, float* logits);
  // Says how the next Choose() chooses.
  void Ask(const Draw& draw);
  // Chooses the token that follows `row` into chosen().
  void Choose(const float* row);
  const int32_t* chosen() const { return chosen_.data(); }

 private:
  Scratch& Of(CudaArray which) { return arrays_[static_cast<size_t>(which)]; }

  const std::shared_ptr<const Weights> weights_;
  const std::shared_ptr<DeviceWeights> device_;
  const gpu::Stream stream_;
  const DType dtype_;
  const bool tapped_, gates_at_once_;

  // The tensors of plans besides the model's own, kept for as long as this decoder.
  std::map<std::shared_ptr<const BlockWeights>, DeviceBlock> own_;
  std::map<std::shared_ptr<const Lra>, DeviceLra> adapters_;
  DeviceOutput output_;

  CudaCall call_;
  std::array<Scratch, kCudaArrays> arrays_;
  gpu::SplitScratch shares_;
  // The choice of a token; apart from the scratch, because recorded launches read and write it.
  gpu::DeviceBuffer<gpu::SampleRequest> request_;
  gpu::DeviceBuffer<int32_t> chosen_;
  gpu::DeviceBuffer<float> chosen_from_;  // logits
  gpu::DeviceBuffer<uint64_t> choice_scratch_;
  gpu::LaunchGraph graph_;
};

}  // namespace shiftrt
