// SPDX-License-Identifier: Apache-2.0
// The layers for whole sequences and for one token of each of several, and the steps of their blocks, through products
// of many rows. Activations have the type of the weights; the queries of single tokens are float32. Products add to the
// stream. Where calls are tapped, and where the family norms its updates, they write them apart, and the next norm adds
// them: 4 hidden bytes more per token that are written and read.
#pragma once

#include "engine/block.h"
#include "engine/cuda/mixture.h"
#include "engine/cuda/state.h"

namespace shiftrt {

class ManyTokens : public Layers, private Block {
 public:
  explicit ManyTokens(CudaState& state) : Block(state.spec()), s_(state) {}
  void Embed() override;
  void Resume(const Rows& residual) override;
  void Attention(const BlockStage& block, int64_t slot) override { RunAttention(block, slot); }
  void Mlp(const BlockStage& block) override { RunMlp(block); }
  void Adapter(const AdapterStage& adapter) override;
  Rows Stream() override;
  Rows Update(const BlockStage& block, Halves halves) override;
  Rows Heads() override;
  Rows Activation() override;
  void Choose() override;

 private:
  void NormInput(const BlockStage& block, Halves half) override;
  void Attend(const BlockStage& block, int64_t slot) override;
  void Gate(const BlockStage& block) override;
  void Finish(const BlockStage& block, Halves half) override;
  // The input of a half, (tokens, hidden).
  gpu::DeviceArray InputOf(const BlockStage& block, Halves half);
  void JoinBranches(const KeysValues& kv);
  void GatedDelta(const DeviceDelta& w, gpu::ConstDeviceArray x, int64_t slot);
  // The stream with everything added that was pending.
  MatrixView<float> WithPending();
  // Returns what the last product of a half read in float32: a copy where the weights have another type.
  Rows Widened(CudaArray rows);

  CudaState& s_;
  CudaMixture mixture_{s_};
  gpu::Pending pending_;  // must still be added to the stream
  int64_t inputs_ = 0;    // what the last product of the half that ran last read per token
};

}  // namespace shiftrt
