// SPDX-License-Identifier: Apache-2.0
// The shared expert of a mixture (MixtureSpec), which all tokens run through.
#pragma once

#include "engine/projection.h"

namespace shiftrt {

class SharedExpertPass {
 public:
  SharedExpertPass(const StagePass& pass, const TrainedStage& stage);
  // Takes its memory from the arenas. Backwards runs only where it `keeps` what that reads.
  void LayOut(const Arenas& arenas, int64_t tokens, bool keeps);

  // Forwards, from x (tokens, hidden): the products with gate, up and the row of the weight; then y (tokens, hidden),
  // the weighted output. `lora` may be used again between the two.
  void Gate(DeviceMatrix<const float> x, const LoraScratch& lora);
  void Finish(const LoraScratch& lora, DeviceMatrix<float> y);
  // Backwards, after Gate() of the same x: first from dy, the gradient of y; then adds the gradient of x to dx unless
  // that is empty. dx may be dy.
  void OutputBackward(DeviceMatrix<const float> dy, const LoraScratch& lora);
  void InputBackward(DeviceMatrix<const float> x, const LoraScratch& lora, DeviceMatrix<float> dx);
  bool Trained() const;

 private:
  // activation_ from gates_ and ups_. The weight multiplies the input of the last product, which is as good as its
  // output and is kept.
  void Activate();

  Ops& ops_;
  const int64_t units_;
  ProjectionPass gate_, up_, down_, weight_;
  DeviceMatrix<float> gates_, ups_, weights_;  // (tokens, units) twice, (tokens, 1)
  DeviceMatrix<float> activation_;             // (tokens, units); in the place of the gates unless these are kept
  DeviceMatrix<float> dgates_, dweights_;      // that of up takes the place of the activation
};

}  // namespace shiftrt
