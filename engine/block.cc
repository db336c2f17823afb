// SPDX-License-Identifier: Apache-2.0
#include "engine/block.h"

namespace shiftrt {

using B = BlockWeights;

BlockPass::BlockPass(const StagePass& pass, const TrainedStage& stage, Keeping keeping)
    : pass_(pass),
      stage_(stage),
      keeping_(keeping),
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
      attention_norm_(InputNormOf(&B::input_norm, &B::input_norm_bias)),
      q_norm_(NormOf(&B::q_norm)),
      k_norm_(NormOf(&B::k_norm)),
      attention_update_norm_(NormOf(&B::attention_update_norm)),
      mlp_norm_(InputNormOf(&B::post_norm, &B::post_norm_bias)),
      mlp_update_norm_(NormOf(&B::mlp_update_norm)) {}

BlockPass::Norm BlockPass::InputNormOf(TensorView B::*weight, TensorView B::*bias) const {
  return config_.block.shared_norm ? NormOf(&B::shared_norm, &B::shared_norm_bias) : NormOf(weight, bias);
}

// docs/training.md has the sum of these as a formula.
void BlockPass::LayOut(const Arenas& arenas, int64_t tokens) {
  Arena &kept = arenas.kept, &scratch = arenas.scratch;
  const int64_t hidden = config_.hidden, queries = config_.query_dim(), keys = config_.kv_dim();
  const bool all = keeps(), normed_updates = config_.block.update_norms;
  lora_ = LoraScratch::Of(scratch, pass_, stage_, tokens);
  dx_ = dmlp_x_ = scratch.Get(tokens, hidden);
  if (parallel()) {
    mlp_x_ = kept.Get(tokens, hidden);
    if (all) dmlp_x_ = scratch.Get(tokens, hidden);
  }
  const int64_t before_attention = scratch.mark();
  if (RunsAttention(block_.halves)) {
    x_ = kept.Get(tokens, hidden);
    attention_.layer = block_.layer;
    attention_.q = kept.Get(tokens, queries);
    attention_.k = kept.Get(tokens, keys);
    attention_.v = kept.Get(tokens, keys);
    if (all && config_.block.qk_norm) {
      raw_query_ = kept.Get(tokens, queries);
      raw_key_ = kept.Get(tokens, keys);
    }
    attention_.out = kept.Get(tokens, queries);
    if (all) attention_.log_sums = kept.Get(tokens, config_.heads);
    attention_update_ = all && normed_updates ? kept.Get(tokens, hidden) : dx_;
    attention_added_ = dx_;
  }
  if (all && block_.halves == Halves::kBoth && !parallel()) mid_ = kept.Get(tokens, hidden);
  // Forwards the MLP needs nothing of the attention any more; backwards the gradients of the one are not needed at the
  // same time as those of the other.
  if (!all) scratch.Rewind(before_attention);
  const int64_t before_mlp = scratch.mark();
  if (RunsMlp(block_.halves)) {
    if (!parallel()) mlp_x_ = kept.Get(tokens, hidden);
    gates_ = kept.Get(tokens, config_.intermediate);
    if (config_.block.gated) ups_ = kept.Get(tokens, config_.intermediate);
    activation_ = all ? scratch.Get(tokens, config_.intermediate) : gates_;
    if (all) dgates_ = scratch.Get(tokens, config_.intermediate);
    mlp_update_ = all && normed_updates ? kept.Get(tokens, hidden) : dx_;
    mlp_added_ = dx_;
    if (keeping_ == Keeping::kUpdates) mlp_update_ = mlp_added_ = scratch.Get(tokens, hidden);
  }
  if (all && RunsAttention(block_.halves)) {
    scratch.Rewind(before_mlp);
    dattended_ = scratch.Get(tokens, queries);
    dquery_ = scratch.Get(tokens, queries);
    dkey_ = scratch.Get(tokens, keys);
    dvalue_ = scratch.Get(tokens, keys);
  }
}

void BlockPass::Attention(DeviceMatrix<float> h, int64_t slot) {
  attention_.slot = slot;
  AttentionHalf(h, h);
  if (!mid_.empty()) ops_.Copy(h, mid_);
}

void BlockPass::Mlp(DeviceMatrix<float> h) { MlpHalf(h, h); }

void BlockPass::Recompute(DeviceMatrix<const float> h) {
  if (RunsAttention(block_.halves)) AttentionHalf(h, mid_);
  if (RunsMlp(block_.halves)) MlpHalf(!mid_.empty() ? DeviceMatrix<const float>(mid_) : h, {});
}

void BlockPass::AttentionHalf(DeviceMatrix<const float> from, DeviceMatrix<float> to) {
  AttentionActivations& a = attention_;
  ops_.Norm(from, attention_norm_.operands, x_);
  if (parallel()) ops_.Norm(from, mlp_norm_.operands, mlp_x_);  // before `to`, which may be `from`, changes
  ops_.PlaceInCache(a);
  q_.Forward(x_, lora_, a.q);
  k_.Forward(x_, lora_, a.k);
  v_.Forward(x_, lora_, a.v);
  if (config_.block.qk_norm) {
    if (keeps()) {
      ops_.Copy(a.q, raw_query_);
      ops_.Copy(a.k, raw_key_);
    }
    ops_.RmsNormHeads(a.q, q_norm_.operands.weight);
    ops_.RmsNormHeads(a.k, k_norm_.operands.weight);
  }
  ops_.Rope(block_.layer, Rotated::kQueries, a.q);
  ops_.Rope(block_.layer, Rotated::kKeys, a.k);
  ops_.Attention(a);
  Finish({o_, attention_update_norm_, attention_update_, attention_added_}, a.out, from, to);
}

void BlockPass::MlpHalf(DeviceMatrix<const float> from, DeviceMatrix<float> to) {
  if (!parallel()) ops_.Norm(from, mlp_norm_.operands, mlp_x_);
  if (config_.block.gated) {
    gate_.Forward(mlp_x_, lora_, gates_);
    up_.Forward(mlp_x_, lora_, ups_);
  } else {
    up_.Forward(mlp_x_, lora_, gates_);
  }
  if (to.empty() && !config_.block.update_norms) return;
  Activate();
  Finish({down_, mlp_update_norm_, mlp_update_, mlp_added_}, activation_, from, to);
}

void BlockPass::Activate() {
  if (!activation_.StartsAt(gates_)) ops_.Copy(gates_, activation_);
  ops_.GatedUnit(activation_, ups_);
}

// The gradient of a norm of the update reads the update.
void BlockPass::Finish(const End& end, DeviceMatrix<const float> x, DeviceMatrix<const float> from,
                       DeviceMatrix<float> to) {
  if (to.empty() && !config_.block.update_norms) return;
  end.last.Forward(x, lora_, end.update);
  if (to.empty()) return;
  if (config_.block.update_norms) ops_.Norm(end.update, end.norm.operands, end.added);
  if (config_.block.residual_multiplier != 1) ops_.Scale(config_.block.residual_multiplier, end.added);
  if (!to.StartsAt(from)) ops_.Copy(from, to);
  ops_.AddTo(end.added, to);
}

void BlockPass::Backward(const StreamGradient& stream) {
  const bool attention = RunsAttention(block_.halves), mlp = RunsMlp(block_.halves);
  const bool into_attention = attention && (stream.wanted || AttentionTrained());
  StreamGradient of_mlp = stream;
  if (attention && !parallel()) of_mlp = {mid_, stream.gradient, into_attention};
  if (mlp) MlpBackward(of_mlp);
  if (mlp && !parallel()) NormBackward(mlp_norm_, dmlp_x_, of_mlp);
  if (into_attention) {
    AttentionBackward(stream);
    NormBackward(attention_norm_, dx_, stream);
  }
  // The attention reads the same gradient of the block's output as the MLP, so this may change it only now.
  if (parallel()) NormBackward(mlp_norm_, dmlp_x_, stream);
}

DeviceMatrix<const float> BlockPass::UpdateGradient(const Norm& norm, DeviceMatrix<const float> update,
                                                    DeviceMatrix<const float> gradient) {
  if (config_.block.residual_multiplier != 1) {
    ops_.Copy(gradient, dx_);
    ops_.Scale(config_.block.residual_multiplier, dx_);
    gradient = dx_;
  }
  if (!config_.block.update_norms) return gradient;
  ops_.NormGradient(update, norm.operands, gradient, false, dx_, norm.gradients);
  return dx_;
}

void BlockPass::NormBackward(const Norm& norm, DeviceMatrix<float> dx, const StreamGradient& stream) {
  if (!stream.wanted && !norm.Trained()) return;
  ops_.NormGradient(stream.input, norm.operands, dx, stream.wanted, stream.wanted ? stream.gradient : dx,
                    norm.gradients);
}

void BlockPass::MlpBackward(const StreamGradient& stream) {
  if (down_.ReadsInput()) Activate();
  const DeviceMatrix<const float> dupdate = UpdateGradient(mlp_update_norm_, mlp_update_, stream.gradient);

  const bool inner = stream.wanted || gate_.Trained() || up_.Trained() || mlp_norm_.Trained();
  down_.Backward(activation_, dupdate, lora_, false, inner ? dgates_ : DeviceMatrix<float>());
  if (!inner) return;
  const bool gated = config_.block.gated, input = stream.wanted || mlp_norm_.Trained();
  const DeviceMatrix<float> dups = gated ? activation_ : DeviceMatrix<float>();
  const DeviceMatrix<float> dx = input ? dmlp_x_ : DeviceMatrix<float>();
  ops_.GatedUnitGradient(gates_, ups_, dgates_, dups);
  if (!gated) return up_.Backward(mlp_x_, dgates_, lora_, false, dx);
  gate_.Backward(mlp_x_, dgates_, lora_, false, dx);
  up_.Backward(mlp_x_, dups, lora_, true, dx);
}

void BlockPass::AttentionBackward(const StreamGradient& stream) {
  const DeviceMatrix<const float> dupdate = UpdateGradient(attention_update_norm_, attention_update_, stream.gradient);
  const bool inner = stream.wanted || AttentionInnerTrained();
  o_.Backward(attention_.out, dupdate, lora_, false, inner ? dattended_ : DeviceMatrix<float>());
  if (!inner) return;
  ops_.AttentionGradient(attention_, dattended_, dquery_, dkey_, dvalue_);
  ops_.RopeGradient(block_.layer, Rotated::kQueries, dquery_);
  ops_.RopeGradient(block_.layer, Rotated::kKeys, dkey_);
  if (config_.block.qk_norm) {
    ops_.RmsNormHeadsGradient(raw_query_, q_norm_.operands.weight, dquery_, dquery_, q_norm_.gradients.weight);
    ops_.RmsNormHeadsGradient(raw_key_, k_norm_.operands.weight, dkey_, dkey_, k_norm_.gradients.weight);
  }
  const bool input = stream.wanted || attention_norm_.Trained();
  const DeviceMatrix<float> dx = input ? dx_ : DeviceMatrix<float>();
  q_.Backward(x_, dquery_, lora_, false, dx);
  k_.Backward(x_, dkey_, lora_, true, dx);
  v_.Backward(x_, dvalue_, lora_, true, dx);
}

}  // namespace shiftrt
