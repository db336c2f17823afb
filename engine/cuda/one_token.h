// SPDX-License-Identifier: Apache-2.0
// The layers for one decoded token that continues a cache, and the steps of their blocks: matrix-vector products fused
// with what surrounds them, so that the norm before a half is usually a part of the product that reads it. The
// stream stays in place: every product but a full adapter's reads it and adds to it. The launches are the same for
// every token, so that they can be recorded; nothing can be tapped.
#pragma once

#include "engine/block.h"
#include "engine/cuda/mixture.h"
#include "engine/cuda/state.h"
#include "kernels/cuda/matvec.h"

namespace shiftrt {

class OneToken : public Layers, private Block {
 public:
  explicit OneToken(CudaState& state) : Block(state.spec()), s_(state) {}
  // Says where the stream of the next Resume() is on this GPU. It is copied there before the launches that are
  // recorded.
  void StartFrom(const float* residual) { from_ = residual; }
  void Embed() override;
  void Resume(const Rows& residual) override;
  void Attention(const BlockStage& block, int64_t slot) override { RunAttention(block, slot); }
  void Mlp(const BlockStage& block) override { RunMlp(block); }
  void Adapter(const AdapterStage& adapter) override;
  // Also where recorded launches leave it.
  Rows Stream() override { return s_.rows()->Of({h_, 1, s_.hidden()}); }
  Rows Update(const BlockStage& block, Halves halves) override;
  Rows Heads() override;
  Rows Activation() override;
  void Choose() override { s_.Choose(h_); }

 private:
  void Begin();
  void NormInput(const BlockStage& block, Halves half) override;
  void Attend(const BlockStage& block, int64_t slot) override;
  void Gate(const BlockStage& block) override;
  void Finish(const BlockStage& block, Halves half) override;
  void GatedDelta(const DeviceDelta& w, int64_t slot);

  CudaState& s_;
  CudaMixture mixture_{s_};
  const float* from_ = nullptr;
  float *h_ = nullptr, *spare_ = nullptr;     // the stream, and where a full adapter writes the next one
  gpu::MatVecProblem of_attention_, of_mlp_;  // products that read the inputs of the halves
};

}  // namespace shiftrt
