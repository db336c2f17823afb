// SPDX-License-Identifier: Apache-2.0
// The layers for one decoded token that continues a cache: matrix-vector products fused with what surrounds them. The
// stream stays in place: every product but a full adapter's reads it and adds to it. The launches are the same for
// every token, so that they can be recorded; nothing can be tapped.
#pragma once

#include "engine/cuda/state.h"
#include "kernels/cuda/matvec.h"

namespace shiftrt {

class OneToken : public Layers {
 public:
  explicit OneToken(CudaState& state) : s_(state) {}
  // Says where the stream of the next Resume() is on this GPU. It is copied there before the launches that are
  // recorded.
  void StartFrom(const float* residual) { from_ = residual; }
  void Embed() override;
  void Resume(const Rows& residual) override;
  void Attention(const BlockStage& block, int64_t slot) override;
  void Mlp(const BlockStage& block) override;
  void Adapter(const AdapterStage& adapter) override;
  // Also where recorded launches leave it.
  Rows Stream() override { return s_.rows()->Of({h_, 1, s_.hidden()}); }
  Rows Update(const BlockStage& block, Halves halves) override;
  Rows Heads() override;
  Rows Activation() override;
  void Choose() override { s_.Choose(h_); }

 private:
  void Begin();
  // `problem` with the normed input of the stage's MLP as its input.
  gpu::MatVecProblem OfMlpInput(const BlockStage& block, gpu::MatVecProblem problem);
  void AddProduct(gpu::MatVecProblem product, const gpu::DeviceBuffer<float>& bias,
                  const gpu::DeviceBuffer<float>& norm);

  CudaState& s_;
  const float* from_ = nullptr;
  float *h_ = nullptr, *spare_ = nullptr;  // the stream, and where a full adapter writes the next one
};

}  // namespace shiftrt
