// SPDX-License-Identifier: Apache-2.0
#include "engine/cuda/operands.h"

#include "kernels/widen.h"
#include "models/block_tensors.h"
#include "runtime/check.h"

namespace shiftrt {

using gpu::ConstDeviceArray;
using gpu::DeviceBuffer;

DeviceOperands::DeviceOperands(std::shared_ptr<const Weights> weights, std::shared_ptr<DeviceWeights> device)
    : weights_(std::move(weights)), device_(std::move(device)) {
  for (size_t layer = 0; layer < weights_->blocks.size(); ++layer)
    ForEachTensor(weights_->blocks[layer], [&](const BlockTensor& row, const TensorView& tensor) {
      homes_[tensor.data] = {static_cast<int64_t>(layer), row.half, row.HasNormOffset()};
    });
  Place(weights_->embedding, device_->embedding().parts[0].array);
  Place(weights_->head, device_->head().parts[0].array);
  Place(weights_->final_norm, {device_->final_norm().weight.data(), DType::kFloat32});
  Place(weights_->final_norm_bias, {device_->final_norm().bias.data(), DType::kFloat32});
}

void DeviceOperands::Place(const TensorView& tensor, ConstDeviceArray at) {
  if (!tensor.empty()) placed_[tensor.data] = {at, tensor.rows(), 0};
}

void DeviceOperands::PlaceRows(const TensorView& tensor, const DeviceWeight& joined, int64_t part, int64_t first) {
  if (tensor.empty()) return;
  const gpu::WeightPart& of = joined.rows.parts[part];
  StoredMatrix at{of.array, of.matrix_rows, of.first + first};
  if (!gpu::TakesBlocks(of.array.dtype)) {
    const int64_t bytes = at.first * tensor.cols() * static_cast<int64_t>(SizeOf(of.array.dtype));
    at.array = {static_cast<const std::byte*>(of.array.data) + bytes, of.array.dtype};
  }
  placed_[tensor.data] = at;
}

// Matrices lie one below the other and vectors one after the other, as engine/cuda/weights.h joins them.
void DeviceOperands::PlaceAttention(int64_t layer) {
  const BlockWeights& block = weights_->blocks[layer];
  const DeviceAttention& half = device_->Attention(*weights_, layer);
  const int64_t q_dim = Size(weights_->config, Axis::kQueries), kv_dim = weights_->config.kv_dim();
  Place(block.q, half.qkv.rows.parts[0].array);
  Place(block.k, half.qkv.rows.parts[1].array);
  Place(block.v, half.qkv.rows.parts[2].array);
  Place(block.o, half.last.rows.parts[0].array);
  if (half.delta) PlaceDelta(block, *half.delta);
  const auto place = [&](const TensorView& tensor, const float* at) { Place(tensor, {at, DType::kFloat32}); };
  for (const TensorView* norm : {&block.input_norm, &block.shared_norm}) place(*norm, half.norm.weight.data());
  for (const TensorView* bias : {&block.input_norm_bias, &block.shared_norm_bias}) place(*bias, half.norm.bias.data());
  place(block.attention_update_norm, half.update_norm.data());
  place(block.sinks, half.sinks.data());
  place(block.q_norm, half.q_norm.data());
  place(block.k_norm, half.k_norm.data());
  place(block.q_bias, half.qkv_bias.data());
  place(block.k_bias, half.qkv_bias.data() + q_dim);
  place(block.v_bias, half.qkv_bias.data() + q_dim + kv_dim);
  place(block.o_bias, half.last_bias.data());
}

void DeviceOperands::PlaceDelta(const BlockWeights& block, const DeviceDelta& delta) {
  PlaceRows(block.delta_qkv, delta.qkvz, 0);
  PlaceRows(block.delta_z, delta.qkvz, 1);
  PlaceRows(block.delta_b, delta.gates, 0);
  PlaceRows(block.delta_a, delta.gates, 1);
  const auto place = [&](const TensorView& tensor, const float* at) { Place(tensor, {at, DType::kFloat32}); };
  place(block.delta_conv, delta.conv.data());
  place(block.delta_a_log, delta.a_log.data());
  place(block.delta_dt_bias, delta.dt_bias.data());
  place(block.delta_norm, delta.norm.data());
}

// The experts' matrices stand one below the other, of gate and up an expert's gate and then its up.
void DeviceOperands::PlaceMixture(const BlockWeights& block, const DeviceMixture& mixture) {
  const auto place = [&](const TensorView& tensor, const float* at) { Place(tensor, {at, DType::kFloat32}); };
  PlaceRows(block.router, mixture.router);
  place(block.router_bias, mixture.router_bias.data());
  for (int64_t e = 0; e < mixture.experts; ++e) {
    const ExpertWeights& expert = block.experts[e];
    PlaceRows(expert.gate, mixture.gate_up, 0, 2 * e * mixture.units);
    PlaceRows(expert.up, mixture.gate_up, 0, (2 * e + 1) * mixture.units);
    PlaceRows(expert.down, mixture.down, 0, e * expert.down.rows());
    if (expert.gate_bias.empty()) continue;
    place(expert.gate_bias, mixture.gate_up_bias.data() + 2 * e * mixture.units);
    place(expert.up_bias, mixture.gate_up_bias.data() + (2 * e + 1) * mixture.units);
    place(expert.down_bias, mixture.down_bias.data() + e * expert.down.rows());
  }
  PlaceRows(block.shared_gate, mixture.shared_gate_up, 0);
  PlaceRows(block.shared_up, mixture.shared_gate_up, 1);
  PlaceRows(block.shared_down, mixture.shared_down);
  PlaceRows(block.shared_weight, mixture.shared_weight);
}

void DeviceOperands::PlaceMlp(int64_t layer) {
  const BlockWeights& block = weights_->blocks[layer];
  const DeviceMlp& half = device_->Mlp(*weights_, layer);
  const bool gated = weights_->config.block.gated;
  if (half.mixture) PlaceMixture(block, *half.mixture);
  Place(block.gate, half.gate_up.rows.parts[0].array);
  Place(block.up, half.gate_up.rows.parts[gated ? 1 : 0].array);
  Place(block.down, half.last.rows.parts[0].array);
  const auto place = [&](const TensorView& tensor, const float* at) { Place(tensor, {at, DType::kFloat32}); };
  place(block.post_norm, half.norm.weight.data());
  place(block.post_norm_bias, half.norm.bias.data());
  place(block.mlp_update_norm, half.update_norm.data());
  place(block.gate_bias, half.gate_up_bias.data());
  place(block.up_bias, half.gate_up_bias.data() + (gated ? half.inputs : 0));
  place(block.down_bias, half.last_bias.data());
}

void DeviceOperands::Upload(const TensorView& tensor) {
  const auto home = homes_.find(tensor.data);
  if (home != homes_.end()) {
    if (home->second.half == Halves::kMlp) {
      PlaceMlp(home->second.layer);
    } else {
      PlaceAttention(home->second.layer);
    }
    return;
  }
  const bool matrix = tensor.shape.size() == 2 && tensor.rows() > 1;
  if (matrix && IsQuantised(tensor.dtype)) {
    device_->CheckType("a tensor of the plan", tensor.dtype);
    own_quantised_.push_back(device_->UploadMatrix(tensor));
    return Place(tensor, own_quantised_.back().rows.parts[0].array);
  }
  Check(!matrix || tensor.dtype == device_->dtype() || tensor.dtype == DType::kFloat32,
        "a tensor of the plan is {}, the model {}: on the GPU all matrices have one type, or are float32",
        Name(tensor.dtype), Name(device_->dtype()));
  // Vectors are read in float32.
  const std::vector<float> wide = matrix ? std::vector<float>() : Widened(tensor);
  const auto* bytes =
      matrix ? static_cast<const std::byte*>(tensor.data) : reinterpret_cast<const std::byte*>(wide.data());
  const size_t size = matrix ? static_cast<size_t>(tensor.bytes()) : wide.size() * sizeof(float);
  own_.emplace_back(device_->stream(), std::span<const std::byte>(bytes, size), "tensors of the plan");
  Place(tensor, {own_.back().data(), matrix ? tensor.dtype : DType::kFloat32});
}

const StoredMatrix& DeviceOperands::Find(const TensorView& tensor) {
  if (!placed_.contains(tensor.data)) Upload(tensor);
  return placed_.at(tensor.data);
}

StoredMatrix DeviceOperands::Matrix(const TensorView& stored) { return Find(stored); }

DeviceVector DeviceOperands::Vector(const Operand& operand) {
  if (operand.is_trained()) return {operand.trained().on_gpu().data, false};
  if (operand.stored().empty()) return {};
  const auto* data = static_cast<const float*>(Find(operand.stored()).array.data);
  const auto home = homes_.find(operand.stored().data);
  return {data, operand.stored().data == weights_->final_norm.data || (home != homes_.end() && home->second.norm)};
}

}  // namespace shiftrt
