// A model's weights in GPU memory: one copy a GPU, shared by every decoder there, each block uploaded when a plan first
// runs it.
#pragma once

#include <memory>
#include <vector>

#include "engine/cuda/rows.h"
#include "kernels/cuda/matmul.h"
#include "models/weights.h"
#include "runtime/cuda/upload.h"

namespace shiftrt {

// One block's tensors, matrices that meet the same input joined by rows. Norms and biases are float32; an absent one is
// null.
struct DeviceBlock {
  gpu::DeviceBuffer<std::byte> qkv, o, gate_up, down;
  gpu::DeviceBuffer<float> input_norm, post_norm, q_norm, k_norm;
  gpu::DeviceBuffer<float> qkv_bias, o_bias, gate_up_bias, down_bias;
};

DeviceBlock UploadBlock(gpu::Stream stream, gpu::Uploader& uploader, const ModelConfig& config,
                        const BlockWeights& from);

// Also carries what all decoders over these weights do their work with, in series: stream and library handles.
struct DeviceWeights {
  // Throws Error for a model the kernels do not take: matrices of several types, sizes that are no multiples of 8, a
  // head dimension other than 64, 80, 96, 128 or 256.
  DeviceWeights(const Weights& weights, int gpu);
  const DeviceBlock& Block(const Weights& weights, int64_t layer);  // uploaded now, if it was not before

  std::shared_ptr<const StreamRows> rows;  // own the stream of all work with these weights
  gpu::Stream stream() const { return rows->stream(); }
  gpu::Uploader uploader{stream()};
  gpu::DeviceInfo info;
  gpu::Products products;
  DType dtype;  // of every matrix
  gpu::DeviceBuffer<std::byte> embedding, head_rows;
  gpu::DeviceBuffer<float> final_norm;
  gpu::ConstDeviceArray head() const { return {head_rows.size() > 0 ? head_rows.data() : embedding.data(), dtype}; }

 private:
  std::vector<DeviceBlock> blocks_;
  std::vector<bool> present_;
};

// Of device memory that a token of a batch takes while it runs, the cache apart: about what the engine's scratch grows
// by.
int64_t ActivationBytesPerToken(const ModelConfig& config, DType dtype);

// The copy of `weights` on one GPU, made now if this is the first decoder that asks.
std::shared_ptr<DeviceWeights> OnDevice(const Weights& weights, int gpu);

}  // namespace shiftrt
