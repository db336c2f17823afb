// SPDX-License-Identifier: Apache-2.0
// The layers for whole sequences, through products of many rows. Products write their updates apart, and the next norm
// adds them to the stream.
#pragma once

#include "engine/cuda/state.h"
#include "kernels/cuda/rmsnorm.h"

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
  void Add(MatrixView<float> update, const gpu::DeviceBuffer<float>& bias, const gpu::DeviceBuffer<float>& norm);
  // Rows of the weights' type as float32: a copy where that is another type.
  Rows Widened(Scratch& rows, int64_t width);
  // An update with its bias, in a copy where it has one that is not in it already.
  MatrixView<const float> WithBias(MatrixView<const float> update, const gpu::DeviceBuffer<float>& bias);

  CudaState& s_;
  gpu::Pending pending_;  // what the stream still has to have added
};

}  // namespace shiftrt
