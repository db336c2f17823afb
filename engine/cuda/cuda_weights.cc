// SPDX-License-Identifier: Apache-2.0
#include "engine/cuda/cuda_weights.h"

#include <algorithm>

#include "kernels/widen.h"
#include "runtime/check.h"

namespace shiftrt {

namespace {

using gpu::DeviceBuffer;

constexpr int64_t kHeadDims[] = {64, 80, 96, 128, 256};

// The matrices' one type; throws where a kernel would have to refuse later.
DType CheckSupported(const Weights& weights) {
  const ModelConfig& config = weights.config;
  Check(std::find(std::begin(kHeadDims), std::end(kHeadDims), config.head_dim) != std::end(kHeadDims),
        "the GPU kernels take heads of 64, 80, 96, 128 or 256; this model's have {}; it runs on the CPU",
        config.head_dim);
  Check(config.hidden % 8 == 0 && config.intermediate % 8 == 0,
        "the GPU kernels take hidden and intermediate sizes that are multiples of 8, not {} and {}; this model runs on "
        "the CPU",
        config.hidden, config.intermediate);
  const DType dtype = weights.embedding.dtype;
  weights.ForEach([&](const std::string& name, const TensorView& tensor) {
    Check(tensor.shape.size() < 2 || tensor.dtype == dtype,
          "{} is {}, the embedding {}: on the GPU all matrices have one type; load them with one type", name,
          Name(tensor.dtype), Name(dtype));
  });
  return dtype;
}

// Matrices one below the other.
DeviceBuffer<std::byte> Join(gpu::Stream stream, gpu::Uploader& uploader,
                             std::initializer_list<const TensorView*> parts) {
  int64_t bytes = 0, at = 0;
  for (const TensorView* part : parts) bytes += part->bytes();
  DeviceBuffer<std::byte> joined(stream, bytes, "the weights");
  for (const TensorView* part : parts) {
    uploader.Copy(joined.data() + at, part->data, part->bytes());
    at += part->bytes();
  }
  return joined;
}

// Vectors one behind the other, widened; nothing where all are absent, zeros where one is.
DeviceBuffer<float> JoinWide(gpu::Stream stream, std::initializer_list<std::pair<const TensorView*, int64_t>> parts) {
  std::vector<float> joined;
  bool any = false;
  for (const auto& [part, size] : parts) {
    const std::vector<float> values = part->empty() ? std::vector<float>(size, 0.0f) : Widened(*part);
    joined.insert(joined.end(), values.begin(), values.end());
    any |= !part->empty();
  }
  return any ? DeviceBuffer<float>(stream, std::span<const float>(joined), "the weights") : DeviceBuffer<float>();
}

}  // namespace

DeviceWeights::DeviceWeights(const Weights& weights, int gpu)
    : rows(std::make_shared<StreamRows>(gpu)),
      info(gpu::QueryDevice(gpu)),
      products(stream()),
      dtype(CheckSupported(weights)),
      embedding(Join(stream(), uploader, {&weights.embedding})),
      final_norm(JoinWide(stream(), {{&weights.final_norm, 0}})),
      blocks_(weights.config.layers),
      present_(weights.config.layers, false) {
  if (weights.head.data != weights.embedding.data) head_rows = Join(stream(), uploader, {&weights.head});
}

DeviceBlock UploadBlock(gpu::Stream stream, gpu::Uploader& uploader, const ModelConfig& config,
                        const BlockWeights& from) {
  DeviceBlock block;
  block.qkv = Join(stream, uploader, {&from.q, &from.k, &from.v});
  block.o = Join(stream, uploader, {&from.o});
  block.gate_up = Join(stream, uploader, {&from.gate, &from.up});
  block.down = Join(stream, uploader, {&from.down});
  block.input_norm = JoinWide(stream, {{&from.input_norm, 0}});
  block.post_norm = JoinWide(stream, {{&from.post_norm, 0}});
  block.q_norm = JoinWide(stream, {{&from.q_norm, 0}});
  block.k_norm = JoinWide(stream, {{&from.k_norm, 0}});
  block.qkv_bias = JoinWide(
      stream, {{&from.q_bias, config.query_dim()}, {&from.k_bias, config.kv_dim()}, {&from.v_bias, config.kv_dim()}});
  block.o_bias = JoinWide(stream, {{&from.o_bias, 0}});
  block.gate_up_bias = JoinWide(stream, {{&from.gate_bias, config.intermediate}, {&from.up_bias, config.intermediate}});
  block.down_bias = JoinWide(stream, {{&from.down_bias, 0}});
  return block;
}

const DeviceBlock& DeviceWeights::Block(const Weights& weights, int64_t layer) {
  if (!present_[layer]) blocks_[layer] = UploadBlock(stream(), uploader, weights.config, weights.blocks[layer]);
  present_[layer] = true;
  return blocks_[layer];
}

int64_t ActivationBytesPerToken(const ModelConfig& config, DType dtype) {
  const int64_t narrow = config.hidden + 2 * config.query_dim() + 2 * (config.query_dim() + config.kv_dim()) +
                         2 * config.kv_dim() + 3 * config.intermediate;
  return 4 * 3 * config.hidden + narrow * static_cast<int64_t>(SizeOf(dtype));  // stream and updates are float32
}

std::shared_ptr<DeviceWeights> OnDevice(const Weights& weights, int gpu) {
  std::shared_ptr<DeviceWeights>& copy = weights.on_device[gpu];
  if (copy == nullptr) copy = std::make_shared<DeviceWeights>(weights, gpu);
  return copy;
}

}  // namespace shiftrt
