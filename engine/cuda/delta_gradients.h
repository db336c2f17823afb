// SPDX-License-Identifier: Apache-2.0
// Gated delta networks among the operations of gradients (engine/ops.h): the memory that the kernels of
// kernels/cuda/gated_delta.h need between their launches.
#pragma once

#include "engine/cuda/call.h"
#include "engine/cuda/operands.h"
#include "engine/cuda/scratch.h"
#include "engine/ops.h"

namespace shiftrt {

class DeltaGradients {
 public:
  DeltaGradients(CudaCall& call, DeviceOperands& operands) : call_(call), operands_(operands) {}

  // Ops::GatedDelta() and Ops::GatedDeltaGradient() for the sequences of the call, which go on from nothing. a.mixed
  // has normed queries and keys.
  void Forward(const DeltaActivations& a, const DeltaOperands& operands);
  void Backward(const DeltaActivations& a, const DeltaOperands& operands, DeviceMatrix<const float> dout,
                DeviceMatrix<float> dmixed, const DeltaActivations& gradients,
                const DeltaOperandGradients& of_operands);

 private:
  gpu::DeltaCall CallOf(const DeltaActivations& a, const DeltaOperands& operands);
  float* Get(Scratch& scratch, int64_t floats) { return scratch.Floats(call_.stream(), floats); }

  CudaCall& call_;
  DeviceOperands& operands_;
  Scratch decays_, chunks_, added_, changes_, starts_, ends_, of_decays_;
};

}  // namespace shiftrt
