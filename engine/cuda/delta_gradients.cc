// SPDX-License-Identifier: Apache-2.0
#include "engine/cuda/delta_gradients.h"

#include "kernels/cuda/rowwise.h"
#include "runtime/check.h"

namespace shiftrt {

gpu::DeltaCall DeltaGradients::CallOf(const DeltaActivations& a, const DeltaOperands& operands) {
  for (const DeviceMatrix<float>& view : {a.channels, a.mixed, a.a, a.b, a.out})
    Check(view.dense(), "a gated delta network on the GPU takes dense rows, not rows {} apart", view.stride);
  const GatedDeltaShape& shape = call_.spec().delta;
  const int64_t tokens = a.channels.rows;
  return {.shape = shape,
          .sequences = call_.step().delta_ranges,
          .sequence_count = call_.step().sequence_count,
          .longest = call_.step().longest,
          .x = {a.channels.on_gpu().data, DType::kFloat32},
          .x_stride = shape.channels(),
          .b = a.b.on_gpu().data,
          .a = a.a.on_gpu().data,
          .gates_stride = shape.value_heads,
          .conv = operands_.Vector(operands.conv).data,
          .a_log = operands_.Vector(operands.a_log).data,
          .dt_bias = operands_.Vector(operands.dt_bias).data,
          .mixed = a.mixed.on_gpu().data,
          .decays = Get(decays_, tokens * 2 * shape.value_heads),
          .out = a.out.on_gpu().data,
          .chunks = Get(chunks_, tokens * shape.chunk_floats())};
}

void DeltaGradients::Forward(const DeltaActivations& a, const DeltaOperands& operands) {
  const gpu::DeltaCall call = CallOf(a, operands);
  gpu::ConvolveDelta(call_.stream(), call);
  gpu::ApplyDeltaRule(call_.stream(), call);
}

void DeltaGradients::Backward(const DeltaActivations& a, const DeltaOperands& operands, DeviceMatrix<const float> dout,
                              DeviceMatrix<float> dmixed, const DeltaActivations& gradients,
                              const DeltaOperandGradients& of_operands) {
  for (const DeviceMatrix<const float>& view :
       {dout, DeviceMatrix<const float>(dmixed), DeviceMatrix<const float>(gradients.channels),
        DeviceMatrix<const float>(gradients.a), DeviceMatrix<const float>(gradients.b)})
    Check(view.dense(), "a gated delta network on the GPU takes dense rows, not rows {} apart", view.stride);
  gpu::DeltaCall call = CallOf(a, operands);
  const int64_t tokens = a.channels.rows, heads = call.shape.value_heads,
                states = gpu::DeltaChunks(tokens, call.sequence_count) * call.shape.state_floats();
  call.out = Get(added_, tokens * call.shape.values());
  float* const da_log = Get(of_decays_, tokens * heads);
  gpu::DeltaGradient(call_.stream(), {.call = call,
                                      .tokens = tokens,
                                      .out = a.out.on_gpu().data,
                                      .dout = dout.on_gpu().data,
                                      .changes = Get(changes_, tokens * call.shape.values()),
                                      .starts = Get(starts_, states),
                                      .ends = Get(ends_, states),
                                      .dmixed = dmixed.on_gpu().data,
                                      .dx = gradients.channels.on_gpu().data,
                                      .da = gradients.a.on_gpu().data,
                                      .db = gradients.b.on_gpu().data,
                                      .da_log = da_log,
                                      .dconv = of_operands.conv.on_gpu().data});
  if (!of_operands.a_log.empty())
    gpu::AddColumnSums(call_.stream(), {da_log, tokens, heads}, of_operands.a_log.on_gpu());
  if (!of_operands.dt_bias.empty())
    gpu::AddColumnSums(call_.stream(), gradients.a.on_gpu(), of_operands.dt_bias.on_gpu());
}

}  // namespace shiftrt
