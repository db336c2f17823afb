// SPDX-License-Identifier: Apache-2.0
#include "engine/cuda/mixture.h"

#include <vector>

#include "engine/cuda/expert_slots.h"
#include "kernels/cuda/rowwise.h"

namespace shiftrt {

using gpu::ConstDeviceArray;
using gpu::DeviceArray;

namespace {

// From element `first` on.
DeviceArray From(DeviceArray array, int64_t first) {
  return {static_cast<std::byte*>(array.data) + first * static_cast<int64_t>(SizeOf(array.dtype)), array.dtype};
}

// Gate and up side by side, (rows, 2 units).
void Activate(CudaState& s, DeviceArray gate_up, int64_t rows, int64_t units, DeviceArray to) {
  gpu::GateRows(s.stream(), s.spec().activation,
                {.gate = {gate_up, rows, units, 2 * units}, .up = {From(gate_up, units), rows, units, 2 * units}},
                {to, rows, units});
}

}  // namespace

void CudaMixture::Multiply(const DeviceWeight& w, ConstDeviceArray x, int64_t n, int64_t k, DeviceArray y) const {
  if (s_.step().count == 1 && x.dtype == DType::kFloat32 && y.dtype == DType::kFloat32)
    return gpu::MatVec(
        s_.stream(),
        {.w = w.rows, .rows = n, .cols = k, .x = static_cast<const float*>(x.data), .y = static_cast<float*>(y.data)},
        s_.cores());
  s_.MatMul({.x = x, .y = y, .m = s_.step().count, .n = n, .k = k}, w.rows);
}

void CudaMixture::Run(const DeviceMixture& w, ConstDeviceArray x) {
  Choose(w, x);
  if (s_.step().count <= gpu::kFewTokens) {
    RunFew(w, x);
  } else {
    RunGrouped(w, x);
  }
  if (w.shared_units > 0) RunShared(w, x);
}

void CudaMixture::Choose(const DeviceMixture& w, ConstDeviceArray x) {
  const int64_t count = s_.step().count, slots = count * w.active;
  float* const logits = s_.Floats(CudaArray::kRouterLogits, count * w.experts);
  // The choices and then the weights.
  auto* const chosen = static_cast<int32_t*>(s_.Get(CudaArray::kChosenExperts, 2 * slots, DType::kFloat32).data);
  auto* const weights = reinterpret_cast<float*>(chosen + slots);
  Multiply(w.router, x, w.experts, s_.hidden(), {logits, DType::kFloat32});
  if (w.router_bias.size() > 0) gpu::AddRows(s_.stream(), {}, {logits, count, w.experts}, w.router_bias.data());
  gpu::ChooseExperts(s_.stream(), {logits, count, w.experts}, w.active, s_.spec().mixture.normalised, chosen, weights);
  chosen_ = chosen;
  sum_ = {.weights = weights, .active = w.active, .bias = w.down_bias.data(), .experts = chosen};
}

void CudaMixture::RunFew(const DeviceMixture& w, ConstDeviceArray x) {
  const int64_t count = s_.step().count, slots = count * w.active;
  const auto* wide = static_cast<const float*>(x.data);
  if (x.dtype != DType::kFloat32) {
    float* const copy = s_.Floats(CudaArray::kWidened, count * s_.hidden());
    gpu::CopyRows(s_.stream(), {x, count, s_.hidden()}, MatrixView<float>(copy, count, s_.hidden()));
    wide = copy;
  }
  float* const activation = s_.Floats(CudaArray::kActivation, slots * w.units);
  float* const rows = s_.Floats(CudaArray::kExpertRows, slots * s_.hidden());
  gpu::MatVecProblem product{.w = w.gate_up.rows, .rows = 2 * w.units, .cols = s_.hidden(), .x = wide, .y = activation};
  if (clamped()) {
    product.y = s_.Floats(CudaArray::kGateUp, slots * 2 * w.units);
    gpu::MatVecOfExperts(s_.stream(), product, {chosen_, slots, w.active}, s_.cores());
    gpu::ActivateExperts(s_.stream(), s_.spec().clamped, {product.y, DType::kFloat32}, w.gate_up_bias.data(), chosen_,
                         slots, w.units, {activation, DType::kFloat32});
  } else {
    gpu::MatVecGatedOfExperts(s_.stream(), s_.spec().activation, product, {chosen_, slots, w.active}, s_.cores());
  }
  product = {.w = w.down.rows, .rows = s_.hidden(), .cols = w.units, .x = activation, .y = rows};
  gpu::MatVecOfExperts(s_.stream(), product, {chosen_, slots, 1}, s_.cores());
  sum_.rows = rows;
}

void CudaMixture::RunGrouped(const DeviceMixture& w, ConstDeviceArray x) {
  const int64_t count = s_.step().count, slots = count * w.active;
  std::vector<int32_t> chosen(slots);
  gpu::CopyToHost(s_.stream(), chosen.data(), chosen_, slots * static_cast<int64_t>(sizeof(int32_t)));
  const ExpertSlots grouping = SlotsOf(chosen, w.experts, w.active);
  int32_t* const there = numbers_.Reserve(s_.stream(), 3 * slots, kActivations);
  const auto upload = [&](const std::vector<int32_t>& numbers, int32_t* to) {
    gpu::CopyToDevice(s_.stream(), to, numbers.data(), slots * static_cast<int64_t>(sizeof(int32_t)));
  };
  upload(grouping.token_of, there);
  upload(grouping.slots_of, there + slots);

  const DeviceArray gathered = s_.Get(CudaArray::kExpertInputs, slots * s_.hidden(), x.dtype),
                    gate_up = s_.Get(CudaArray::kGateUp, slots * 2 * w.units, x.dtype),
                    activation = s_.Get(CudaArray::kActivation, slots * w.units, x.dtype),
                    rows = s_.Get(CudaArray::kExpertRows, slots * s_.hidden(), DType::kFloat32);
  gpu::GatherRows(s_.stream(), there, {x, count, s_.hidden()}, {gathered, slots, s_.hidden()});
  // y (slots, n) = x (slots, k) times the matrix of each slot's expert, (n, k).
  const auto multiply = [&](const DeviceWeight& of_all, DeviceArray from, int64_t n, int64_t k, DeviceArray to) {
    for (int64_t e = 0; e < w.experts; ++e) {
      const int64_t first = grouping.offsets[e], m = grouping.offsets[e + 1] - first;
      if (m > 0)
        s_.device()->MatMul({.x = From(from, first * k), .y = From(to, first * n), .m = m, .n = n, .k = k},
                            of_all.rows.Rows(e * n, n, k));
    }
  };
  multiply(w.gate_up, gathered, 2 * w.units, s_.hidden(), gate_up);
  if (clamped()) {
    std::vector<int32_t> experts(slots);
    for (int64_t i = 0; i < slots; ++i) experts[grouping.slots_of[i]] = chosen[i];
    upload(experts, there + 2 * slots);
    gpu::ActivateExperts(s_.stream(), s_.spec().clamped, gate_up, w.gate_up_bias.data(), there + 2 * slots, slots,
                         w.units, activation);
  } else {
    Activate(s_, gate_up, slots, w.units, activation);
  }
  multiply(w.down, activation, s_.hidden(), w.units, rows);
  sum_.rows = static_cast<const float*>(rows.data);
  sum_.slots = there + slots;
}

void CudaMixture::RunShared(const DeviceMixture& w, ConstDeviceArray x) {
  const int64_t count = s_.step().count, units = w.shared_units;
  const DeviceArray gate_up = s_.Get(CudaArray::kGateUp, count * 2 * units, x.dtype),
                    activation = s_.Get(CudaArray::kActivation, count * units, x.dtype);
  float* const out = s_.Floats(CudaArray::kSharedRows, count * s_.hidden());
  float* const gate = s_.Floats(CudaArray::kSharedGate, count);
  Multiply(w.shared_gate_up, x, 2 * units, s_.hidden(), gate_up);
  Activate(s_, gate_up, count, units, activation);
  Multiply(w.shared_down, activation, s_.hidden(), units, {out, DType::kFloat32});
  Multiply(w.shared_weight, x, 1, s_.hidden(), {gate, DType::kFloat32});
  sum_.shared = out;
  sum_.shared_gate = gate;
}

}  // namespace shiftrt
