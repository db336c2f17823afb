// SPDX-License-Identifier: Apache-2.0
// Blocks whose MLP has other units than the model's.
#pragma once

#include <memory>
#include <utility>
#include <vector>

#include "kernels/widen.h"
#include "models/own_tensors.h"
#include "models/plan.h"

namespace shiftrt {

// The stage with `units` units of its MLP: the first ones, or all of them again and again.
inline BlockStage WithUnits(const Weights& weights, BlockStage stage, int64_t units) {
  using B = BlockWeights;
  const auto own = std::make_shared<OwnBlock>(weights, stage);
  const int64_t before = MlpUnits(own->weights());
  for (TensorView B::*member : {&B::gate, &B::up, &B::gate_bias, &B::up_bias}) {
    const TensorView tensor = own->weights().*member;
    if (tensor.empty()) continue;
    const std::vector<float> all = Widened(tensor);
    const auto columns = static_cast<int64_t>(all.size()) / before;
    std::vector<float> rows;
    for (int64_t unit = 0; unit < units; ++unit)
      rows.insert(rows.end(), all.begin() + unit % before * columns, all.begin() + (unit % before + 1) * columns);
    std::vector<int64_t> shape = tensor.shape;
    shape[0] = units;
    own->Replace(member, rows, std::move(shape));
  }
  const std::vector<float> all = Widened(own->weights().down);
  const int64_t hidden = own->weights().down.rows();
  std::vector<float> down;
  for (int64_t i = 0; i < hidden; ++i)
    for (int64_t unit = 0; unit < units; ++unit) down.push_back(all[i * before + unit % before]);
  own->Replace(&B::down, down, {hidden, units});
  stage.own = OwnBlock::Share(own);
  return stage;
}

// The stage in its own shapes, with the function that it has with its first `units` units alone.
inline BlockStage WithSilentUnits(const Weights& weights, BlockStage stage, int64_t units) {
  const auto own = std::make_shared<OwnBlock>(weights, stage);
  std::vector<float> down = Widened(own->weights().down);
  const int64_t columns = own->weights().down.cols();
  for (size_t i = 0; i < down.size(); ++i)
    if (static_cast<int64_t>(i) % columns >= units) down[i] = 0;
  own->Replace(&BlockWeights::down, down);
  stage.own = OwnBlock::Share(own);
  return stage;
}

}  // namespace shiftrt
