// SPDX-License-Identifier: Apache-2.0
// The short convolution of a block (kernels/short_convolution.h), whose input is a projection of the block's normed
// input.
#pragma once

#include "engine/mixer_pass.h"

namespace shiftrt {

class ShortConvolutionPass final : public MixerPass {
 public:
  ShortConvolutionPass(const StagePass& pass, const TrainedStage& stage);
  void LayOut(const Arenas& arenas, int64_t tokens, bool keeps) override;
  void LayOutGradients(Arena& scratch, int64_t tokens) override;
  void Forward(DeviceMatrix<const float> x, const LoraScratch& lora, int64_t slot) override;
  const DeviceMatrix<float>& out() const override { return a_.out; }
  int64_t width() const override { return channels_; }
  int64_t slot() const override { return a_.slot; }
  bool Trained() const override { return in_.Trained() || !dconvolution_.empty(); }
  void Backward(DeviceMatrix<const float> x, DeviceMatrix<float> dout, const LoraScratch& lora,
                DeviceMatrix<float> dx) override;

 private:
  Ops& ops_;
  int64_t channels_;
  ProjectionPass in_;
  Operand convolution_;
  DeviceMatrix<float> dconvolution_;

  ConvolutionActivations a_;
  DeviceMatrix<float> din_;  // (tokens, 3 channels)
};

}  // namespace shiftrt
