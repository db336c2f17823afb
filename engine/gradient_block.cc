// SPDX-License-Identifier: Apache-2.0
// A block, or one half of it, both ways. Each half adds an update to the stream: update = [norm](projections(norm(h))).
#include "engine/gradient_block.h"

#include "engine/gradient_linear.h"

namespace shiftrt {

namespace {

using B = BlockWeights;

class BlockPass {
 public:
  // Activations lie in `kept`, everything else in `scratch`; both may be one arena. `all`: there is room for the
  // activations and gradients of the pass backwards too.
  BlockPass(const StagePass& pass, const TrainedStage& stage, Arena& kept, Arena& scratch, int64_t tokens, bool all);

  void Forward(MatrixView<float> h);
  // The same, and leaves the activations that Backward reads.
  void ForwardKeeping(MatrixView<float> h);
  // Computes the activations of ForwardKeeping, from the stream before the block.
  void Recompute(MatrixView<const float> h);
  void Backward(const StreamGradient& stream);

 private:
  struct Norm {
    Operand weight;
    MatrixView<float> gradient;
    bool Trained() const { return gradient.data != nullptr; }
  };
  Norm NormOf(TensorView B::*member) const { return {OperandOf(pass_, stage_, member), GradientOf(stage_, member)}; }

  void LayOut(Arena& kept, Arena& scratch, int64_t tokens, bool all);
  // From the stream before the half: everything up to what its last projection reads. RunMlp leaves gate and up, from
  // which Activate makes the activation.
  void RunAttention(MatrixView<const float> h);
  void RunMlp(MatrixView<const float> h);
  void Activate();
  // The update of a half; it is left in `added` as it is added to the stream, and before its norm in `update`.
  void Finish(const Projection& last, MatrixView<const float> x, const Norm& norm, MatrixView<float> update,
              MatrixView<float> added);
  // From the gradient of what was added to that of the update before its norm, in dx_; without a norm they are the
  // same.
  MatrixView<const float> UpdateGradient(const Norm& norm, MatrixView<const float> update,
                                         MatrixView<const float> gradient);
  // `stream` is the one before the half. Where `wanted`, `gradient` becomes that before the half.
  void MlpBackward(const StreamGradient& stream);
  void AttentionBackward(const StreamGradient& stream);
  // From dx_, the gradient of what the half's norm gave.
  void NormBackward(const Norm& norm, const StreamGradient& stream);

  bool AttentionInnerTrained() const {
    return q_.Trained() || k_.Trained() || v_.Trained() || q_norm_.Trained() || k_norm_.Trained() ||
           input_norm_.Trained();
  }
  bool AttentionTrained() const { return AttentionInnerTrained() || o_.Trained() || attention_update_norm_.Trained(); }

  const StagePass& pass_;
  const TrainedStage& stage_;
  GradientOps& ops_;
  const ModelConfig& config_;
  const BlockStage& block_;

  Projection q_, k_, v_, o_, gate_, up_, down_;
  Norm input_norm_, q_norm_, k_norm_, attention_update_norm_, post_norm_, mlp_update_norm_;

  // Activations; (tokens, hidden) where nothing else is said.
  MatrixView<float> x_;                    // the normed input of the attention
  AttentionActivations attention_;         // with the rotated queries and keys
  MatrixView<float> query_, key_, value_;  // of `attention_`, to be written
  MatrixView<float> raw_query_, raw_key_;  // before their norms; empty without these
  MatrixView<float> attention_update_, attention_added_;
  MatrixView<float> mid_;    // the stream between the halves
  MatrixView<float> mlp_x_;  // the normed input of the MLP
  MatrixView<float> gates_, ups_,
      activation_;  // (tokens, intermediate); the activation takes the place of the gate forwards
  MatrixView<float> mlp_update_, mlp_added_;
  // Gradients. That of up takes the place of the activation.
  MatrixView<float> dx_, dgates_, dattended_, dquery_, dkey_, dvalue_;
  LoraScratch lora_;
};

BlockPass::BlockPass(const StagePass& pass, const TrainedStage& stage, Arena& kept, Arena& scratch, int64_t tokens,
                     bool all)
    : pass_(pass),
      stage_(stage),
      ops_(pass.ops),
      config_(pass.weights.config),
      block_(stage.stage.block()),
      q_(pass, stage, &B::q, &B::q_bias),
      k_(pass, stage, &B::k, &B::k_bias),
      v_(pass, stage, &B::v, &B::v_bias),
      o_(pass, stage, &B::o, &B::o_bias),
      gate_(pass, stage, &B::gate, &B::gate_bias),
      up_(pass, stage, &B::up, &B::up_bias),
      down_(pass, stage, &B::down, &B::down_bias),
      input_norm_(NormOf(&B::input_norm)),
      q_norm_(NormOf(&B::q_norm)),
      k_norm_(NormOf(&B::k_norm)),
      attention_update_norm_(NormOf(&B::attention_update_norm)),
      post_norm_(NormOf(&B::post_norm)),
      mlp_update_norm_(NormOf(&B::mlp_update_norm)) {
  LayOut(kept, scratch, tokens, all);
}

// docs/training.md has the sum of these as a formula.
void BlockPass::LayOut(Arena& kept, Arena& scratch, int64_t tokens, bool all) {
  const int64_t hidden = config_.hidden, queries = config_.query_dim(), keys = config_.kv_dim();
  const bool normed_updates = config_.block.update_norms;
  lora_ = LoraScratch::Of(scratch, pass_, stage_, tokens);
  dx_ = scratch.Get(tokens, hidden);
  const int64_t before_attention = scratch.mark();
  if (RunsAttention(block_.halves)) {
    x_ = kept.Get(tokens, hidden);
    query_ = kept.Get(tokens, queries);
    key_ = kept.Get(tokens, keys);
    value_ = kept.Get(tokens, keys);
    if (all && config_.block.qk_norm) {
      raw_query_ = kept.Get(tokens, queries);
      raw_key_ = kept.Get(tokens, keys);
    }
    attention_ = {block_.layer, query_, key_, value_, kept.Get(tokens, queries), kept.Get(tokens, config_.heads)};
    attention_update_ = all && normed_updates ? kept.Get(tokens, hidden) : dx_;
    attention_added_ = dx_;
  }
  if (all && block_.halves == Halves::kBoth) mid_ = kept.Get(tokens, hidden);
  // Forwards the MLP needs nothing of the attention any more; backwards the gradients of the one are not needed at the
  // same time as those of the other.
  if (!all) scratch.Rewind(before_attention);
  const int64_t before_mlp = scratch.mark();
  if (RunsMlp(block_.halves)) {
    mlp_x_ = kept.Get(tokens, hidden);
    gates_ = kept.Get(tokens, config_.intermediate);
    ups_ = kept.Get(tokens, config_.intermediate);
    activation_ = all ? scratch.Get(tokens, config_.intermediate) : gates_;
    if (all) dgates_ = scratch.Get(tokens, config_.intermediate);
    mlp_update_ = all && normed_updates ? kept.Get(tokens, hidden) : dx_;
    mlp_added_ = dx_;
  }
  if (all && RunsAttention(block_.halves)) {
    scratch.Rewind(before_mlp);
    dattended_ = scratch.Get(tokens, queries);
    dquery_ = scratch.Get(tokens, queries);
    dkey_ = scratch.Get(tokens, keys);
    dvalue_ = scratch.Get(tokens, keys);
  }
}

void BlockPass::RunAttention(MatrixView<const float> h) {
  ops_.RmsNorm(h, input_norm_.weight, x_);
  q_.Forward(x_, lora_, query_);
  k_.Forward(x_, lora_, key_);
  v_.Forward(x_, lora_, value_);
  if (config_.block.qk_norm) {
    if (raw_query_.data != nullptr) {
      ops_.Copy(query_, raw_query_);
      ops_.Copy(key_, raw_key_);
    }
    ops_.RmsNormHeads(query_, q_norm_.weight);
    ops_.RmsNormHeads(key_, k_norm_.weight);
  }
  ops_.Rope(query_);
  ops_.Rope(key_);
  ops_.Attention(attention_);
}

void BlockPass::RunMlp(MatrixView<const float> h) {
  ops_.RmsNorm(h, post_norm_.weight, mlp_x_);
  gate_.Forward(mlp_x_, lora_, gates_);
  up_.Forward(mlp_x_, lora_, ups_);
}

void BlockPass::Finish(const Projection& last, MatrixView<const float> x, const Norm& norm, MatrixView<float> update,
                       MatrixView<float> added) {
  last.Forward(x, lora_, update);
  if (config_.block.update_norms) ops_.RmsNorm(update, norm.weight, added);
}

void BlockPass::Forward(MatrixView<float> h) {
  if (RunsAttention(block_.halves)) {
    RunAttention(h);
    Finish(o_, attention_.out, attention_update_norm_, attention_update_, attention_added_);
    ops_.AddTo(attention_added_, h);
  }
  if (RunsMlp(block_.halves)) {
    RunMlp(h);
    ops_.GatedUnit(gates_, ups_);
    Finish(down_, gates_, mlp_update_norm_, mlp_update_, mlp_added_);
    ops_.AddTo(mlp_added_, h);
  }
}

void BlockPass::Activate() {
  ops_.Copy(gates_, activation_);
  ops_.GatedUnit(activation_, ups_);
}

void BlockPass::ForwardKeeping(MatrixView<float> h) {
  if (RunsAttention(block_.halves)) {
    RunAttention(h);
    Finish(o_, attention_.out, attention_update_norm_, attention_update_, attention_added_);
    ops_.AddTo(attention_added_, h);
  }
  if (mid_.data != nullptr) ops_.Copy(h, mid_);
  if (RunsMlp(block_.halves)) {
    RunMlp(h);
    Activate();
    Finish(down_, activation_, mlp_update_norm_, mlp_update_, mlp_added_);
    ops_.AddTo(mlp_added_, h);
  }
}

void BlockPass::Recompute(MatrixView<const float> h) {
  const bool attention = RunsAttention(block_.halves), mlp = RunsMlp(block_.halves);
  if (attention) RunAttention(h);
  if (attention && (mlp || config_.block.update_norms))
    Finish(o_, attention_.out, attention_update_norm_, attention_update_, attention_added_);
  if (attention && mlp) {
    ops_.Copy(h, mid_);
    ops_.AddTo(attention_added_, mid_);
  }
  if (!mlp) return;
  RunMlp(attention ? MatrixView<const float>(mid_) : h);
  if (!config_.block.update_norms) return;
  Activate();
  down_.Forward(activation_, lora_, mlp_update_);
}

void BlockPass::Backward(const StreamGradient& stream) {
  const bool attention = RunsAttention(block_.halves), mlp = RunsMlp(block_.halves);
  if (mlp && attention) {
    MlpBackward({mid_, stream.gradient, stream.wanted || AttentionTrained()});
  } else if (mlp) {
    MlpBackward(stream);
  }
  if (attention && (stream.wanted || AttentionTrained())) AttentionBackward(stream);
}

MatrixView<const float> BlockPass::UpdateGradient(const Norm& norm, MatrixView<const float> update,
                                                  MatrixView<const float> gradient) {
  if (!config_.block.update_norms) return gradient;
  ops_.RmsNormGradient(update, norm.weight, gradient, false, dx_, norm.gradient);
  return dx_;
}

void BlockPass::NormBackward(const Norm& norm, const StreamGradient& stream) {
  ops_.RmsNormGradient(stream.input, norm.weight, dx_, stream.wanted, stream.wanted ? stream.gradient : dx_,
                       norm.gradient);
}

void BlockPass::MlpBackward(const StreamGradient& stream) {
  if (down_.ReadsInput()) Activate();
  const MatrixView<const float> dupdate = UpdateGradient(mlp_update_norm_, mlp_update_, stream.gradient);

  const bool inner = stream.wanted || gate_.Trained() || up_.Trained() || post_norm_.Trained();
  down_.Backward(activation_, dupdate, lora_, false, inner ? dgates_ : MatrixView<float>());
  if (!inner) return;
  const MatrixView<float> dups = activation_;
  ops_.GatedUnitGradient(gates_, ups_, dgates_, dups);
  const bool input = stream.wanted || post_norm_.Trained();
  gate_.Backward(mlp_x_, dgates_, lora_, false, input ? dx_ : MatrixView<float>());
  up_.Backward(mlp_x_, dups, lora_, true, input ? dx_ : MatrixView<float>());
  if (input) NormBackward(post_norm_, stream);
}

void BlockPass::AttentionBackward(const StreamGradient& stream) {
  const MatrixView<const float> dupdate = UpdateGradient(attention_update_norm_, attention_update_, stream.gradient);
  const bool inner = stream.wanted || AttentionInnerTrained();
  o_.Backward(attention_.out, dupdate, lora_, false, inner ? dattended_ : MatrixView<float>());
  if (!inner) return;
  ops_.AttentionGradient(attention_, dattended_, dquery_, dkey_, dvalue_);
  ops_.RopeGradient(dquery_);
  ops_.RopeGradient(dkey_);
  if (config_.block.qk_norm) {
    ops_.RmsNormHeadsGradient(raw_query_, q_norm_.weight, dquery_, dquery_, q_norm_.gradient);
    ops_.RmsNormHeadsGradient(raw_key_, k_norm_.weight, dkey_, dkey_, k_norm_.gradient);
  }
  const bool input = stream.wanted || input_norm_.Trained();
  const MatrixView<float> dx = input ? dx_ : MatrixView<float>();
  q_.Backward(x_, dquery_, lora_, false, dx);
  k_.Backward(x_, dkey_, lora_, true, dx);
  v_.Backward(x_, dvalue_, lora_, true, dx);
  if (input) NormBackward(input_norm_, stream);
}

}  // namespace

int64_t BlockFloats(const StagePass& pass, const TrainedStage& stage, int64_t tokens, Direction direction) {
  Arena arena;
  const BlockPass measured(pass, stage, arena, arena, tokens, direction == Direction::kBackward);
  return arena.peak();
}

int64_t BlockKeptFloats(const StagePass& pass, const TrainedStage& stage, int64_t tokens) {
  Arena kept, scratch;
  const BlockPass measured(pass, stage, kept, scratch, tokens, /*all=*/true);
  return kept.peak();
}

void BlockForward(const StagePass& pass, const TrainedStage& stage, const StageMemory& memory, MatrixView<float> h) {
  Arena scratch(memory.scratch), kept(memory.kept);
  if (memory.kept != nullptr) return BlockPass(pass, stage, kept, scratch, h.rows, true).ForwardKeeping(h);
  BlockPass(pass, stage, scratch, scratch, h.rows, false).Forward(h);
}

void BlockBackward(const StagePass& pass, const TrainedStage& stage, const StageMemory& memory,
                   const StreamGradient& stream) {
  Arena scratch(memory.scratch), kept(memory.kept);
  const bool keeps = memory.kept != nullptr;
  BlockPass block(pass, stage, keeps ? kept : scratch, scratch, stream.input.rows, /*all=*/true);
  if (!keeps) block.Recompute(stream.input);
  block.Backward(stream);
}

}  // namespace shiftrt
