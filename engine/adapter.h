// SPDX-License-Identifier: Apache-2.0
// An adapter stage both ways, over the operations of a device: h + (x P) Q + b, or h + x A + b, where x is h or its
// norm.
#pragma once

#include "engine/stage_pass.h"

namespace shiftrt {

class AdapterPass {
 public:
  AdapterPass(const StagePass& pass, const TrainedStage& stage);
  AdapterPass(const AdapterPass&) = delete;  // operands refer to its views
  AdapterPass& operator=(const AdapterPass&) = delete;
  // Takes its memory from the arenas, before anything else is called.
  void LayOut(const Arenas& arenas, int64_t tokens);

  void Forward(DeviceMatrix<float> h);
  void Backward(const StreamGradient& stream);

 private:
  // A matrix of the adapter, trained or stored.
  struct Matrix {
    TensorView stored;
    Operand operand;
    DeviceMatrix<float> gradient;
    bool Trained() const { return !gradient.empty(); }
  };
  static void Take(const Parameter& parameter, const shiftrt::Matrix<float>& stored, Matrix& matrix);
  // Returns what the products read of h.
  DeviceMatrix<const float> InputOf(DeviceMatrix<const float> h);
  // Adds the gradient of the stream to g, given that of the products' input.
  void AddInputGradient(const StreamGradient& stream, DeviceMatrix<const float> dx);

  Ops& ops_;
  const Lra& lra_;
  Matrix a_, p_, q_, b_;
  TensorView norm_;                     // its weight, which is not trained; empty: the products read the stream
  DeviceMatrix<float> inner_, dinner_;  // (tokens, rank); of a full adapter inner_ is (tokens, hidden)
  DeviceMatrix<float> normed_;          // (tokens, hidden), of an adapter with a norm
};

}  // namespace shiftrt
