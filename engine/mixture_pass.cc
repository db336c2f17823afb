// SPDX-License-Identifier: Apache-2.0
#include "engine/mixture_pass.h"

#include <algorithm>

#include "engine/projection.h"

namespace shiftrt {

MixturePass::MixturePass(const StagePass& pass, const TrainedStage& stage)
    : pass_(pass),
      stage_(stage),
      ops_(pass.ops),
      block_(TensorsOf(pass.weights, stage.stage.block())),
      spec_(pass.weights.config.block.mixture),
      router_(OperandOf(pass, stage, &BlockWeights::router)),
      router_bias_(OperandOf(pass, stage, &BlockWeights::router_bias)),
      drouter_(GradientOf(stage, &BlockWeights::router)),
      drouter_bias_(GradientOf(stage, &BlockWeights::router_bias)) {
  if (any() && !block_.shared_up.empty()) shared_.emplace(pass, stage);
}

const ExpertGradients* MixturePass::GradientsOf(size_t expert) const {
  const std::vector<ExpertGradients>& all = stage_.parameters.experts;
  return all.empty() ? nullptr : &all[expert];
}

bool MixturePass::Trained() const {
  return any() && (!drouter_.empty() || !drouter_bias_.empty() || !stage_.parameters.experts.empty() ||
                   (shared_ && shared_->Trained()));
}

void MixturePass::LayOut(const Arenas& arenas, int64_t tokens, bool keeps) {
  Arena &kept = arenas.kept, &scratch = arenas.scratch;
  const int64_t experts = std::ssize(block_.experts), active = std::min(spec_.active, experts), slots = tokens * active,
                hidden = pass_.weights.config.hidden, units = block_.experts.front().up.rows();
  logits_ = scratch.Get(tokens, experts);
  rows_ = scratch.Get(slots, hidden);
  gates_ = kept.Get(slots, units);
  ups_ = kept.Get(slots, units);
  activation_ = keeps ? scratch.Get(slots, units) : gates_;
  if (shared_) shared_->LayOut(arenas, tokens, keeps);
  if (!keeps) return;
  dgates_ = scratch.Get(slots, units);
  if (!stage_.parameters.experts.empty()) inputs_ = scratch.Get(slots, hidden);
}

void MixturePass::Route(DeviceMatrix<const float> x) {
  ops_.MatMul(x, router_, router_bias_, false, logits_);
  routing_ = ops_.RouteToExperts(logits_, std::min(spec_.active, logits_.cols), spec_.normalised);
}

void MixturePass::Gate(DeviceMatrix<const float> x, const LoraScratch& lora) {
  Route(x);
  ops_.GatherSlots(routing_, x, rows_);
  std::vector<Ops::Product> products;
  ForEachExpert([&](size_t expert, const auto& of) {
    const ExpertWeights& w = block_.experts[expert];
    products.push_back({of(rows_), &w.gate, of(gates_), &w.gate_bias});
    products.push_back({of(rows_), &w.up, of(ups_), &w.up_bias});
  });
  ops_.MatMulEach(products);
  if (shared_) shared_->Gate(x, lora);
}

void MixturePass::Finish(const LoraScratch& lora, DeviceMatrix<float> y) {
  if (!activation_.StartsAt(gates_)) ops_.Copy(gates_, activation_);
  ops_.GatedUnit(activation_, ups_);
  std::vector<Ops::Product> products;
  ForEachExpert([&](size_t expert, const auto& of) {
    const ExpertWeights& w = block_.experts[expert];
    products.push_back({of(activation_), &w.down, of(rows_), &w.down_bias});
  });
  ops_.MatMulEach(products);
  ops_.SumOverExperts(routing_, /*weighted=*/true, rows_, y);
  if (!shared_) return;
  const DeviceMatrix<float> of_shared = rows_.Rows(0, y.rows);  // there is a slot at least for each token
  shared_->Finish(lora, of_shared);
  ops_.AddTo(of_shared, y);
}

void MixturePass::Backward(DeviceMatrix<const float> x, DeviceMatrix<const float> dy, const LoraScratch& lora,
                           DeviceMatrix<float> dx) {
  Route(x);
  const bool trains_experts = !stage_.parameters.experts.empty();
  ops_.Copy(gates_, activation_);
  ops_.GatedUnit(activation_, ups_);
  if (shared_) shared_->OutputBackward(dy, lora);
  ops_.GatherSlots(routing_, dy, rows_);
  std::vector<float> dweights(routing_.slots());
  ForEachExpert([&](size_t expert, const auto& of) {
    const ExpertWeights& w = block_.experts[expert];
    ops_.MatMulInputGradient(of(rows_), w.down, false, of(dgates_));
    if (!w.down_bias.empty()) ops_.ExpertBiasWeightGradient(w.down_bias, of(rows_), SlotsOf(expert, dweights));
  });
  ops_.ExpertWeightGradient(routing_, activation_, dgates_, dweights);
  if (trains_experts) {
    ops_.ScaleByExpertWeights(routing_, rows_);
    ops_.GatherSlots(routing_, x, inputs_);
    ForEachExpert([&](size_t expert, const auto& of) {
      ops_.MatMulWeightGradient(of(rows_), of(activation_), GradientsOf(expert)->down);
      AddBiasGradient(of(rows_), GradientsOf(expert)->down_bias);
    });
  }
  const DeviceMatrix<float> dups = activation_;
  ops_.GatedUnitGradient(gates_, ups_, dgates_, dups);
  ForEachExpert([&](size_t expert, const auto& of) {
    if (trains_experts) {
      ops_.MatMulWeightGradient(of(dgates_), of(inputs_), GradientsOf(expert)->gate);
      ops_.MatMulWeightGradient(of(dups), of(inputs_), GradientsOf(expert)->up);
      AddBiasGradient(of(dgates_), GradientsOf(expert)->gate_bias);
      AddBiasGradient(of(dups), GradientsOf(expert)->up_bias);
    }
    if (dx.empty()) return;
    ops_.MatMulInputGradient(of(dgates_), block_.experts[expert].gate, false, of(rows_));
    ops_.MatMulInputGradient(of(dups), block_.experts[expert].up, true, of(rows_));
  });
  ops_.RouteToExpertsGradient(routing_, spec_.normalised, dweights, logits_);  // logits_ becomes its own gradient
  if (!drouter_.empty()) ops_.MatMulWeightGradient(logits_, x, drouter_);
  AddBiasGradient(logits_, drouter_bias_);
  if (!dx.empty()) {
    ops_.SumOverExperts(routing_, /*weighted=*/false, rows_, dx);
    ops_.MatMulInputGradient(logits_, router_, true, dx);
  }
  if (shared_) shared_->InputBackward(x, lora, dx);
}

}  // namespace shiftrt
