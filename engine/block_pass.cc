// SPDX-License-Identifier: Apache-2.0
#include "engine/block_pass.h"

#include "engine/gated_delta_pass.h"
#include "engine/short_convolution_pass.h"

namespace shiftrt {

using B = BlockWeights;

BlockPass::BlockPass(const StagePass& pass, const TrainedStage& stage, Keeping keeping)
    : Block(pass.weights.config.block),
      pass_(pass),
      stage_(stage),
      keeping_(keeping),
      ops_(pass.ops),
      config_(pass.weights.config),
      block_(stage.stage.block()),
      units_(MlpUnits(TensorsOf(pass.weights, block_))),
      q_(pass, stage, &B::q, &B::q_bias),
      k_(pass, stage, &B::k, &B::k_bias),
      v_(pass, stage, &B::v, &B::v_bias),
      gate_(pass, stage, &B::gate, &B::gate_bias),
      up_(pass, stage, &B::up, &B::up_bias),
      mixture_(pass, stage),
      q_norm_(NormOf(&B::q_norm)),
      k_norm_(NormOf(&B::k_norm)),
      dsinks_(GradientOf(stage, &B::sinks)),
      attention_{InputNormOf(&B::input_norm, &B::input_norm_bias), NormOf(&B::attention_update_norm),
                 ProjectionPass(pass, stage, &B::o, &B::o_bias)},
      mlp_{InputNormOf(&B::post_norm, &B::post_norm_bias), NormOf(&B::mlp_update_norm),
           ProjectionPass(pass, stage, &B::down, &B::down_bias)} {
  const Mixer mixer = config_.block.MixerOf(block_.layer);
  if (mixer == Mixer::kGatedDelta) mixer_ = std::make_unique<GatedDeltaPass>(pass, stage);
  if (mixer == Mixer::kShortConvolution) mixer_ = std::make_unique<ShortConvolutionPass>(pass, stage);
  heads_.sinks = OperandOf(pass, stage, &B::sinks);
  if (!config_.block.xielu) return;
  xielu_ = {OperandOf(pass, stage, &B::xielu_p), OperandOf(pass, stage, &B::xielu_n),
            OperandOf(pass, stage, &B::xielu_beta), OperandOf(pass, stage, &B::xielu_eps)};
  dxielu_ = {GradientOf(stage, &B::xielu_p), GradientOf(stage, &B::xielu_n)};
}

BlockPass::Norm BlockPass::InputNormOf(TensorView B::*weight, TensorView B::*bias) const {
  return config_.block.shared_norm ? NormOf(&B::shared_norm, &B::shared_norm_bias) : NormOf(weight, bias);
}

// docs/training.md has the sum of these as a formula.
void BlockPass::LayOut(const Arenas& arenas, int64_t tokens) {
  Arena &kept = arenas.kept, &scratch = arenas.scratch;
  const int64_t hidden = config_.hidden;
  const bool all = keeps(), normed_updates = config_.block.update_norms;
  lora_ = LoraScratch::Of(scratch, pass_, stage_, tokens);
  dx_ = dmlp_x_ = scratch.Get(tokens, hidden);
  if (parallel()) {
    mlp_.x = scratch.Get(tokens, hidden);
    if (all) dmlp_x_ = scratch.Get(tokens, hidden);
  }
  const int64_t before_attention = scratch.mark();
  if (RunsAttention(block_.halves)) {
    attention_.x = parallel() && !HasTwoInputs(block_) ? mlp_.x : scratch.Get(tokens, hidden);
    LayOutMixer(arenas, tokens);
    attention_.update = all && normed_updates ? kept.Get(tokens, hidden) : dx_;
    attention_.added = dx_;
  }
  if (all && block_.halves == Halves::kBoth && !parallel()) mid_ = kept.Get(tokens, hidden);
  // Forwards the MLP needs nothing of the attention any more; backwards the gradients of the one are not needed at the
  // same time as those of the other.
  if (!all) scratch.Rewind(before_attention);
  const int64_t before_mlp = scratch.mark();
  if (RunsMlp(block_.halves)) {
    if (!parallel()) mlp_.x = scratch.Get(tokens, hidden);
    if (mixture_.any()) {
      mixture_.LayOut(arenas, tokens, all);
    } else {
      LayOutMlp(arenas, tokens);
    }
    mlp_.update = all && normed_updates ? kept.Get(tokens, hidden) : dx_;
    mlp_.added = dx_;
    if (keeping_ == Keeping::kUpdates) mlp_.update = mlp_.added = scratch.Get(tokens, hidden);
  }
  if (all && RunsAttention(block_.halves)) {
    scratch.Rewind(before_mlp);
    LayOutMixerGradients(scratch, tokens);
  }
}

void BlockPass::LayOutMlp(const Arenas& arenas, int64_t tokens) {
  gates_ = arenas.kept.Get(tokens, units_);
  if (config_.block.gated) ups_ = arenas.kept.Get(tokens, units_);
  activation_ = keeps() ? arenas.scratch.Get(tokens, units_) : gates_;
  if (keeps()) dgates_ = arenas.scratch.Get(tokens, units_);
}

void BlockPass::LayOutMixer(const Arenas& arenas, int64_t tokens) {
  Arena& kept = arenas.kept;
  const int64_t queries = config_.query_dim(), keys = config_.kv_dim();
  const bool all = keeps(), gated = config_.block.attention_gate;
  if (mixer_) return mixer_->LayOut(arenas, tokens, all);
  heads_.layer = block_.layer;
  heads_.q = kept.Get(tokens, queries);
  heads_.k = kept.Get(tokens, keys);
  heads_.v = kept.Get(tokens, keys);
  if (all && config_.block.qk_norm) {
    raw_query_ = kept.Get(tokens, queries);
    raw_key_ = kept.Get(tokens, keys);
  }
  heads_.out = gated_heads_ = kept.Get(tokens, queries);
  if (all) heads_.log_sums = kept.Get(tokens, config_.heads);
  if (!gated) return;
  both_ = arenas.scratch.Get(tokens, 2 * queries);
  head_gates_ = kept.Get(tokens, queries);
  if (all) gated_heads_ = kept.Get(tokens, queries);
}

void BlockPass::LayOutMixerGradients(Arena& scratch, int64_t tokens) {
  const int64_t queries = config_.query_dim(), keys = config_.kv_dim();
  dattended_ = scratch.Get(tokens, mixer_ ? mixer_->width() : queries);
  if (mixer_) return mixer_->LayOutGradients(scratch, tokens);
  dquery_ = scratch.Get(tokens, queries);
  dkey_ = scratch.Get(tokens, keys);
  dvalue_ = scratch.Get(tokens, keys);
  if (config_.block.attention_gate) dhead_gates_ = scratch.Get(tokens, queries);
}

void BlockPass::Attention(DeviceMatrix<float> h, int64_t slot) {
  from_ = to_ = h;
  RunAttention(block_, slot);
  if (!mid_.empty()) ops_.Copy(h, mid_);
}

void BlockPass::Mlp(DeviceMatrix<float> h) {
  from_ = to_ = h;
  RunMlp(block_);
}

void BlockPass::Recompute(DeviceMatrix<const float> h) {
  from_ = h;
  to_ = mid_;
  if (RunsAttention(block_.halves)) RunAttention(block_, slot());
  if (!mid_.empty()) from_ = mid_;
  to_ = {};
  if (RunsMlp(block_.halves)) RunMlp(block_);
}

void BlockPass::NormInputs(DeviceMatrix<const float> h) {
  from_ = h;
  if (RunsAttention(block_.halves)) NormInput(block_, Halves::kAttention);
  if (!mid_.empty()) from_ = mid_;
  if (RunsMlp(block_.halves) && (!parallel() || HasTwoInputs(block_))) NormInput(block_, Halves::kMlp);
}

void BlockPass::NormInput(const BlockStage&, Halves which) {
  const Half& half = Of(which);
  ops_.Norm(from_, half.norm.operands, half.x);
}

void BlockPass::Attend(const BlockStage&, int64_t slot) {
  if (mixer_) return mixer_->Forward(attention_.x, lora_, slot);
  const bool gated = config_.block.attention_gate;
  AttentionActivations& a = heads_;
  a.slot = slot;
  ops_.PlaceInCache(a);
  q_.Forward(attention_.x, lora_, gated ? both_ : a.q);
  if (gated) ops_.SplitGates(both_, a.q, head_gates_);
  k_.Forward(attention_.x, lora_, a.k);
  v_.Forward(attention_.x, lora_, a.v);
  if (!config_.block.qk_norm_after_rotation) NormHeads();
  ops_.Rope(block_.layer, Rotated::kQueries, a.q);
  ops_.Rope(block_.layer, Rotated::kKeys, a.k);
  if (config_.block.qk_norm_after_rotation) NormHeads();
  ops_.Attention(a);
  if (!gated) return;
  if (!gated_heads_.StartsAt(a.out)) ops_.Copy(a.out, gated_heads_);
  ops_.SigmoidGate(head_gates_, gated_heads_);
}

void BlockPass::NormHeads() {
  if (!config_.block.qk_norm) return;
  if (keeps()) {
    ops_.Copy(heads_.q, raw_query_);
    ops_.Copy(heads_.k, raw_key_);
  }
  ops_.RmsNormHeads(heads_.q, q_norm_.operands.weight);
  ops_.RmsNormHeads(heads_.k, k_norm_.operands.weight);
}

void BlockPass::NormHeadsBackward() {
  if (!config_.block.qk_norm) return;
  ops_.RmsNormHeadsGradient(raw_query_, q_norm_.operands.weight, dquery_, dquery_, q_norm_.gradients.weight);
  ops_.RmsNormHeadsGradient(raw_key_, k_norm_.operands.weight, dkey_, dkey_, k_norm_.gradients.weight);
}

void BlockPass::Gate(const BlockStage&) {
  if (mixture_.any()) return mixture_.Gate(mlp_.x, lora_);
  if (config_.block.gated) {
    gate_.Forward(mlp_.x, lora_, gates_);
    up_.Forward(mlp_.x, lora_, ups_);
  } else {
    up_.Forward(mlp_.x, lora_, gates_);
  }
  if (WantsUpdate()) Activate();
}

void BlockPass::Activate() {
  if (!activation_.StartsAt(gates_)) ops_.Copy(gates_, activation_);
  if (config_.block.xielu) return ops_.Xielu(xielu_, activation_);
  ops_.GatedUnit(activation_, ups_);
}

void BlockPass::Finish(const BlockStage&, Halves which) {
  if (!WantsUpdate()) return;
  const Half& half = Of(which);
  if (which == Halves::kMlp && mixture_.any()) {
    mixture_.Finish(lora_, half.update);
  } else {
    half.last.Forward(which == Halves::kMlp ? activation_ : heads(), lora_, half.update);
  }
  if (to_.empty()) return;
  if (config_.block.update_norms) ops_.Norm(half.update, half.update_norm.operands, half.added);
  if (config_.block.residual_multiplier != 1) ops_.Scale(config_.block.residual_multiplier, half.added);
  if (!to_.StartsAt(from_)) ops_.Copy(from_, to_);
  ops_.AddTo(half.added, to_);
}

void BlockPass::Backward(const StreamGradient& stream) {
  const bool attention = RunsAttention(block_.halves), mlp = RunsMlp(block_.halves);
  const bool into_attention = attention && (stream.wanted || AttentionTrained());
  StreamGradient of_mlp = stream;
  if (attention && !parallel()) of_mlp = {mid_, stream.gradient, into_attention};
  if (mlp) MlpBackward(of_mlp);
  if (mlp && !parallel()) NormBackward(mlp_.norm, dmlp_x_, of_mlp);
  if (into_attention) {
    AttentionBackward(stream);
    NormBackward(attention_.norm, dx_, stream);
  }
  // The attention reads the same gradient of the block's output as the MLP, so this may change it only now.
  if (parallel()) NormBackward(mlp_.norm, dmlp_x_, stream);
}

DeviceMatrix<const float> BlockPass::UpdateGradient(const Half& half, DeviceMatrix<const float> gradient) {
  if (config_.block.residual_multiplier != 1) {
    ops_.Copy(gradient, dx_);
    ops_.Scale(config_.block.residual_multiplier, dx_);
    gradient = dx_;
  }
  if (!config_.block.update_norms) return gradient;
  ops_.NormGradient(half.update, half.update_norm.operands, gradient, false, dx_, half.update_norm.gradients);
  return dx_;
}

void BlockPass::NormBackward(const Norm& norm, DeviceMatrix<float> dx, const StreamGradient& stream) {
  if (!stream.wanted && !norm.Trained()) return;
  ops_.NormGradient(stream.input, norm.operands, dx, stream.wanted, stream.wanted ? stream.gradient : dx,
                    norm.gradients);
}

void BlockPass::MlpBackward(const StreamGradient& stream) {
  if (mixture_.any()) return MixtureBackward(stream);
  if (mlp_.last.ReadsInput()) Activate();
  const DeviceMatrix<const float> dupdate = UpdateGradient(mlp_, stream.gradient);

  const bool inner = stream.wanted || gate_.Trained() || up_.Trained() || mlp_.norm.Trained() || dxielu_.any();
  mlp_.last.Backward(activation_, dupdate, lora_, false, inner ? dgates_ : DeviceMatrix<float>());
  if (!inner) return;
  const bool gated = config_.block.gated, input = stream.wanted || mlp_.norm.Trained();
  const DeviceMatrix<float> dups = gated ? activation_ : DeviceMatrix<float>();
  const DeviceMatrix<float> dx = input ? dmlp_x_ : DeviceMatrix<float>();
  if (config_.block.xielu) {
    ops_.XieluGradient(xielu_, gates_, dgates_, dxielu_);
  } else {
    ops_.GatedUnitGradient(gates_, ups_, dgates_, dups);
  }
  if (!gated) return up_.Backward(mlp_.x, dgates_, lora_, false, dx);
  gate_.Backward(mlp_.x, dgates_, lora_, false, dx);
  up_.Backward(mlp_.x, dups, lora_, true, dx);
}

void BlockPass::MixtureBackward(const StreamGradient& stream) {
  const DeviceMatrix<const float> dupdate = UpdateGradient(mlp_, stream.gradient);
  const bool input = stream.wanted || mlp_.norm.Trained();
  if (input || mixture_.Trained()) mixture_.Backward(mlp_.x, dupdate, lora_, input ? dmlp_x_ : DeviceMatrix<float>());
}

void BlockPass::AttentionBackward(const StreamGradient& stream) {
  const DeviceMatrix<const float> dupdate = UpdateGradient(attention_, stream.gradient);
  const bool inner = stream.wanted || AttentionInnerTrained();
  attention_.last.Backward(heads(), dupdate, lora_, false, inner ? dattended_ : DeviceMatrix<float>());
  if (!inner) return;
  HeadsBackward(stream.wanted || attention_.norm.Trained() ? dx_ : DeviceMatrix<float>());
}

void BlockPass::HeadsBackward(DeviceMatrix<float> dx) {
  if (mixer_) return mixer_->Backward(attention_.x, dattended_, lora_, dx);
  const bool gated = config_.block.attention_gate;
  if (gated) ops_.SigmoidGateGradient(head_gates_, heads_.out, dattended_, dhead_gates_);
  ops_.AttentionGradient(heads_, dattended_, dquery_, dkey_, dvalue_);
  if (!dsinks_.empty()) ops_.AttentionSinkGradient(heads_, dattended_, dsinks_);
  if (config_.block.qk_norm_after_rotation) NormHeadsBackward();
  ops_.RopeGradient(block_.layer, Rotated::kQueries, dquery_);
  ops_.RopeGradient(block_.layer, Rotated::kKeys, dkey_);
  if (!config_.block.qk_norm_after_rotation) NormHeadsBackward();
  if (gated) ops_.JoinGates(dquery_, dhead_gates_, both_);
  q_.Backward(attention_.x, gated ? both_ : dquery_, lora_, false, dx);
  k_.Backward(attention_.x, dkey_, lora_, true, dx);
  v_.Backward(attention_.x, dvalue_, lora_, true, dx);
}

}  // namespace shiftrt
