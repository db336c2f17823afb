// SPDX-License-Identifier: Apache-2.0
// The layers for whole sequences, through products of many rows. They add their updates to the stream. Where calls are
// tapped, and where the family norms its updates, products write them apart, and the next norm adds them: 4 hidden
// bytes more per token that are written and read.
#pragma once

#include "engine/cuda/state.h"

namespace shiftrt {

class ManyTokens : public Layers {
 public:
  explicit ManyTokens(CudaState& state) : s_(state) {}
  void Embed() override;
  void Resume(const Rows& residual) override;
  void Attention(const BlockStage& block, int64_t slot) override;
  void Mlp(const BlockStage& block) override;
  void Adapter(const AdapterStage& adapter) override;
  Rows Stream() override;
  Rows Update(const BlockStage& block, Halves halves) override;
  Rows Heads() override;
  Rows Activation() override;
  void Choose() override;

 private:
  // The stream with everything added that was pending.
  MatrixView<float> Settled();
  void JoinBranches(const KeysValues& kv);
  // The norm of the stream with what was pending, which it adds.
  gpu::DeviceArray Normed(const DeviceNorm& norm, CudaArray into);
  // activation (tokens, intermediate) = the gated projections, or the activation of the up projection, of x (tokens,
  // hidden).
  void Gate(const DeviceMlp& w, gpu::ConstDeviceArray x, gpu::DeviceArray activation);
  // The product that ends a half. Its bias is pending, and so is it itself where it is written to `apart`.
  struct LastProduct {
    gpu::ConstDeviceArray x;
    const void* w = nullptr;
    int64_t inputs = 0;
    const gpu::DeviceBuffer<float>&bias, &norm;
  };
  void Add(const LastProduct& last, CudaArray apart);
  // Rows of the weights' type as float32: a copy where that is another type.
  Rows Widened(CudaArray rows, int64_t width);
  // An update with its bias, in a copy where it has one that is not in it already.
  MatrixView<const float> WithBias(MatrixView<const float> update, const gpu::DeviceBuffer<float>& bias);

  CudaState& s_;
  gpu::Pending pending_;  // must still be added to the stream
};

}  // namespace shiftrt
