// SPDX-License-Identifier: Apache-2.0
#include "models/own_tensors.h"

#include <cmath>
#include <utility>

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
  if (member == &OutputWeights::table) return "model.embed_tokens.weight";
  return member == &OutputWeights::final_norm ? "model.norm.weight" : "model.norm.bias";
}

// Copies `values` to a new tensor with the type of `tensor`, or bfloat16 if that is quantised. `storage` keeps it
// alive. Errors begin with `what`.
template <typename Value>
TensorView Store(const char* what, std::span<const Value> values, TensorView tensor,
                 std::vector<std::shared_ptr<const void>>& storage) {
  Check(std::ssize(values) == tensor.elements(), "{}: {} values for a tensor of [{}]", what, values.size(),
        fmt::join(tensor.shape, ", "));
  tensor.dtype = ExpandedType(tensor.dtype);
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

double SquaredDistance(std::span<const float> exact, const TensorView& tensor) {
  double sum = 0;
  ForEachWidenedRow(tensor, [&](int64_t row, const std::vector<float>& values) {
    const std::span<const float> of = exact.subspan(row * values.size(), values.size());
    for (size_t i = 0; i < of.size(); ++i) {
      const double difference = static_cast<double>(of[i]) - values[i];
      sum += difference * difference;
    }
  });
  return sum;
}

}  // namespace

void RoundingError::Add(std::span<const float> exact, const TensorView& before, const TensorView& after) {
  change_ += SquaredDistance(exact, before);
  lost_ += SquaredDistance(exact, after);
}

double RoundingError::share() const { return change_ == 0 ? 0 : std::sqrt(lost_ / change_); }

template <typename Tensors>
void OwnCopy<Tensors>::Replace(TensorView Tensors::*member, std::span<const float> values) {
  weights_.*member = Store(NameOf(member), values, weights_.*member, storage_);
}

template <typename Tensors>
void OwnCopy<Tensors>::Replace(TensorView Tensors::*member, std::span<const double> values) {
  weights_.*member = Store(NameOf(member), values, weights_.*member, storage_);
}

template <typename Tensors>
void OwnCopy<Tensors>::Replace(TensorView Tensors::*member, std::span<const float> values,
                               const std::vector<int64_t>& shape) {
  (weights_.*member).shape = shape;
  Replace(member, values);
}

void OwnBlock::Replace(const BlockTensor& row, const TensorView& tensor, std::shared_ptr<const void> storage) {
  row.In(weights_) = tensor;
  storage_.push_back(std::move(storage));
}

void OwnBlock::Replace(const BlockTensor& row, std::span<const double> values) {
  row.In(weights_) = Store(row.name, values, row.In(weights_), storage_);
}

template class OwnCopy<BlockWeights>;
template class OwnCopy<OutputWeights>;

}  // namespace shiftrt
