// The engine of engine/engine.h on a GPU: what cuda_engine.cc (whole sequences) and cuda_one_token.cc (one token that
// continues a cache) share. Nobody else includes this.
#pragma once

#include <map>
#include <memory>
#include <vector>

#include "engine/cuda/cuda_weights.h"
#include "engine/engine.h"
#include "kernels/cuda/attention.h"
#include "kernels/cuda/rmsnorm.h"
#include "kernels/cuda/sample.h"

namespace shiftrt {

// A float32 array as large as the largest call needs, or one in the weights' type.
class Scratch {
 public:
  float* Floats(gpu::Stream stream, int64_t count) {
    return static_cast<float*>(Get(stream, count, DType::kFloat32).data);
  }
  gpu::DeviceArray Get(gpu::Stream stream, int64_t count, DType dtype) {
    const int64_t bytes = count * static_cast<int64_t>(SizeOf(dtype));
    return {buffer_.Reserve(stream, bytes, "the activations"), dtype};
  }
  int64_t bytes() const { return buffer_.size(); }
  void Release() { buffer_ = {}; }

 private:
  gpu::DeviceBuffer<std::byte> buffer_;
};

struct CudaKv : KvStorage {
  CudaKv(std::shared_ptr<DeviceWeights> weights, int64_t capacity) : device(std::move(weights)), capacity(capacity) {}
  struct Layer {
    gpu::DeviceBuffer<std::byte> keys, values;  // (capacity, kv_dim)
  };
  std::shared_ptr<DeviceWeights> device;  // keeps the stream that the memory goes back to
  int64_t capacity;
  std::vector<Layer> layers;  // one a block stage, in plan order
};

// An adapter's matrices as weights (out, in), the rank padded by zeros; 0: `a` instead of factors.
struct DeviceLra {
  gpu::DeviceBuffer<float> p, q, a, bias;
  int64_t rank = 0;
};

class CudaEngine : public Engine {
 public:
  explicit CudaEngine(const EngineSetup& setup);
  std::unique_ptr<KvStorage> MakeCache(int64_t capacity) override;
  Rows Run(const EngineCall& call) override;
  int32_t RunAndSample(const EngineCall& call, const SamplingOptions& sampling, double uniform) override;
  Matrix<float> Logits(const Rows& residual) override;
  std::vector<float> LogProbs(const ScoredRows& scored, std::span<int32_t> argmax) override;

 private:
  // Of the call in progress.
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
  struct KeysValues {
    gpu::DeviceArray keys, values;
  };

  const DeviceBlock& BlockOf(const BlockStage& stage);
  const DeviceLra& AdapterOf(const AdapterStage& stage);
  Step Upload(const EngineCall& call, const CudaKv* cache);
  void ExtendRope(int64_t positions);
  KeysValues Place(const Step& step, const CudaKv* cache, size_t layer);
  void JoinBranches(const Step& step, const KeysValues& kv);
  void Rotate(const Step& step, const DeviceBlock& block, gpu::ConstDeviceArray qkv, gpu::DeviceArray q,
              const KeysValues& kv);

  void RunOneToken(const Step& step, const CudaKv* cache, bool sample);
  void OneTokenBlock(const Step& step, const DeviceBlock& block, const KeysValues& kv, float* h);
  void OneTokenAdapter(const DeviceLra& lra, float*& h, float*& spare);

  void RunMany(const Step& step, const EngineCall& call);
  void Attend(const Step& step, const DeviceBlock& block, const KeysValues& kv);
  void FeedForward(const Step& step, const DeviceBlock& block);
  void ManyTokensAdapter(const DeviceLra& lra, MatrixView<float> h);
  void Settle(MatrixView<float> h);
  MatrixView<const float> Update(const Step& step, const DeviceBlock& block);
  MatrixView<const float> MlpUpdate(const Step& step, const DeviceBlock& block);

  void Compute(const EngineCall& call, bool sample);
  void Launch(const EngineCall& call, bool sample);
  void Head(const float* row, float* logits);
  void Sample(const float* row);
  int64_t ReleaseActivations();
  const float* OnDevice(const Rows& rows);
  MatrixView<float> Stream32(int64_t count) { return {residual_.Floats(stream_, count * hidden_), count, hidden_}; }
  float Eps() const { return static_cast<float>(config_.rms_eps); }

  std::shared_ptr<const Weights> weights_;
  const ModelConfig& config_;
  std::shared_ptr<DeviceWeights> device_;
  gpu::Stream stream_;
  DType dtype_;
  int64_t hidden_;
  DepthPlan plan_;  // of one-token calls, whose launches are recorded
  TapSet taps_;
  gpu::AttentionShape shape_;
  // What plans hold besides the model's own tensors, kept for as long as this engine.
  std::map<std::shared_ptr<const BlockWeights>, DeviceBlock> folded_;
  std::map<std::shared_ptr<const Lra>, DeviceLra> adapters_;

  gpu::DeviceBuffer<float> frequencies_;
  float rope_scale_ = 1;
  int64_t rope_positions_ = 0;
  gpu::DeviceBuffer<float> cosine_, sine_;

  gpu::DeviceBuffer<int32_t> indices_;
  Scratch residual_, normed_, qkv_, q_, keys_, values_, attended_, shares_, update_, mlp_update_, delta_, gate_up_,
      activation_, inner_, logits_, given_rows_, gathered_;
  gpu::Pending pending_;  // what the stream still has to have added

  // The choice of a token; apart from what calls share, for the recorded launches read and write it.
  gpu::DeviceBuffer<gpu::SampleRequest> request_;
  gpu::DeviceBuffer<float> sampled_logits_;
  gpu::DeviceBuffer<uint64_t> sample_scratch_;
  gpu::DeviceBuffer<int32_t> sampled_;

  gpu::LaunchGraph graph_;
  struct Recorded {
    const CudaKv* cache = nullptr;  // that the launches write to
    bool sample = false;            // whether they end with a token's choice
    bool operator==(const Recorded&) const = default;
  } recorded_;
};

}  // namespace shiftrt
