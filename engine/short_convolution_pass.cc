// SPDX-License-Identifier: Apache-2.0
#include "engine/short_convolution_pass.h"

namespace shiftrt {

using B = BlockWeights;

// The projection has no bias: the one that is named is empty in a block with a short convolution.
ShortConvolutionPass::ShortConvolutionPass(const StagePass& pass, const TrainedStage& stage)
    : ops_(pass.ops),
      channels_(pass.weights.config.block.convolution.channels),
      in_(pass, stage, &B::convolution_in, &B::q_bias),
      convolution_(OperandOf(pass, stage, &B::convolution)),
      dconvolution_(GradientOf(stage, &B::convolution)) {}

void ShortConvolutionPass::LayOut(const Arenas& arenas, int64_t tokens, bool keeps) {
  a_.in = arenas.kept.Get(tokens, 3 * channels_);
  a_.product = arenas.kept.Get(tokens, channels_);
  a_.convolved = arenas.kept.Get(tokens, channels_);
  a_.out = keeps ? arenas.kept.Get(tokens, channels_) : a_.convolved;
}

void ShortConvolutionPass::LayOutGradients(Arena& scratch, int64_t tokens) {
  din_ = scratch.Get(tokens, 3 * channels_);
}

void ShortConvolutionPass::Forward(DeviceMatrix<const float> x, const LoraScratch& lora, int64_t slot) {
  a_.slot = slot;
  in_.Forward(x, lora, a_.in);
  ops_.ShortConvolution(a_, convolution_);
}

void ShortConvolutionPass::Backward(DeviceMatrix<const float> x, DeviceMatrix<float> dout, const LoraScratch& lora,
                                    DeviceMatrix<float> dx) {
  ops_.ShortConvolutionGradient(a_, convolution_, dout, din_, dconvolution_);
  in_.Backward(x, din_, lora, false, dx);
}

}  // namespace shiftrt
