// SPDX-License-Identifier: Apache-2.0
// A mixer of a block that is no attention, from the block's normed input to the input of its last projection.
#pragma once

#include "engine/projection.h"

namespace shiftrt {

class MixerPass {
 public:
  virtual ~MixerPass() = default;

  // Takes the memory of the forward pass, which `keeps` what Backward() reads or not.
  virtual void LayOut(const Arenas& arenas, int64_t tokens, bool keeps) = 0;
  virtual void LayOutGradients(Arena& scratch, int64_t tokens) = 0;

  // x (tokens, hidden). `slot` is the mixer's in the call's cache.
  virtual void Forward(DeviceMatrix<const float> x, const LoraScratch& lora, int64_t slot) = 0;
  virtual const DeviceMatrix<float>& out() const = 0;  // (tokens, width())
  virtual int64_t width() const = 0;
  virtual int64_t slot() const = 0;

  virtual bool Trained() const = 0;
  // From the gradient of out(), which is overwritten. Writes that of x to dx unless it is empty.
  virtual void Backward(DeviceMatrix<const float> x, DeviceMatrix<float> dout, const LoraScratch& lora,
                        DeviceMatrix<float> dx) = 0;
};

}  // namespace shiftrt
