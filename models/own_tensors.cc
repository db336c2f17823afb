// SPDX-License-Identifier: Apache-2.0
#include "models/own_tensors.h"

#include <cmath>

#include "models/block_tensors.h"
#include "runtime/check.h"
#include "runtime/elements.h"

namespace shiftrt {

namespace {

// For messages, such as "mlp.down_proj.weight".
const char* NameOf(TensorView BlockWeights::*member) {
  for (const BlockTensor& row : BlockTensors())
    if (row.member == member) return row.name;
  return "?";
}
const char* NameOf(TensorView OutputWeights::*member) {
  if (member == &OutputWeights::head) return "lm_head.weight";
  return member == &OutputWeights::final_norm ? "model.norm.weight" : "model.norm.bias";
}

// Copies `values` to a new tensor with the type of `tensor`. `storage` keeps it alive. Errors begin with `what`.
template <typename Value>
TensorView Store(const char* what, std::span<const Value> values, TensorView tensor,
                 std::vector<std::shared_ptr<const void>>& storage) {
  Check(std::ssize(values) == tensor.elements(), "{}: {} values for a tensor of [{}]", what, values.size(),
        fmt::join(tensor.shape, ", "));
  return WithType(tensor.dtype, [&]<typename T>(std::type_identity<T>) {
    auto buffer = std::make_shared<Buffer<T>>(std::ssize(values));
    for (size_t i = 0; i < values.size(); ++i) {
      T& stored = buffer->data()[i];
      stored = T(static_cast<float>(values[i]));
      Check(std::isfinite(static_cast<float>(stored)), "{}: element {} would be {}, which is beyond {}", what, i,
            values[i], Name(tensor.dtype));
    }
    tensor.data = buffer->data();
    storage.push_back(std::move(buffer));
    return tensor;
  });
}

}  // namespace

OwnBlock::OwnBlock(std::shared_ptr<const BlockWeights> block) : weights_(*block) {
  storage_.push_back(std::move(block));
}

OwnBlock::OwnBlock(const Weights& weights, const BlockStage& stage) : weights_(TensorsOf(weights, stage)) {
  if (stage.own) storage_.push_back(stage.own);
}

void OwnBlock::Replace(TensorView BlockWeights::*member, std::span<const float> values) {
  weights_.*member = Store(NameOf(member), values, weights_.*member, storage_);
}

void OwnBlock::Replace(TensorView BlockWeights::*member, std::span<const double> values) {
  weights_.*member = Store(NameOf(member), values, weights_.*member, storage_);
}

void OwnBlock::Replace(TensorView BlockWeights::*member, const TensorView& tensor,
                       std::shared_ptr<const void> storage) {
  weights_.*member = tensor;
  storage_.push_back(std::move(storage));
}

std::shared_ptr<const BlockWeights> OwnBlock::Share(std::shared_ptr<const OwnBlock> block) {
  const BlockWeights* const weights = &block->weights_;
  return {std::move(block), weights};
}

OwnOutput::OwnOutput(const Weights& weights, const DepthPlan& plan) : weights_(plan.Output(weights)) {
  if (plan.output) storage_.push_back(plan.output);
}

void OwnOutput::Replace(TensorView OutputWeights::*member, std::span<const float> values) {
  weights_.*member = Store(NameOf(member), values, weights_.*member, storage_);
}

void OwnOutput::Replace(TensorView OutputWeights::*member, const TensorView& tensor,
                        std::shared_ptr<const void> storage) {
  weights_.*member = tensor;
  storage_.push_back(std::move(storage));
}

std::shared_ptr<const OutputWeights> OwnOutput::Share(std::shared_ptr<const OwnOutput> output) {
  const OutputWeights* const weights = &output->weights_;
  return {std::move(output), weights};
}

}  // namespace shiftrt
