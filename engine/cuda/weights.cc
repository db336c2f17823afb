// SPDX-License-Identifier: Apache-2.0
#include "engine/cuda/weights.h"

#include <fmt/format.h>

#include <algorithm>

#include "kernels/cuda/experts.h"
#include "kernels/cuda/gated_delta.h"
#include "kernels/widen.h"
#include "models/block_tensors.h"
#include "models/split.h"
#include "runtime/block_types.h"
#include "runtime/check.h"
#include "runtime/device_copies.h"

namespace shiftrt {

namespace {

using gpu::ConstDeviceArray;
using gpu::DeviceBuffer;

constexpr int64_t kHeadDims[] = {64, 80, 96, 128, 256};

// The one type of matrices that are not quantised, bfloat16 if all are; throws where a kernel would have to refuse
// later.
DType CheckSupported(const Weights& weights) {
  const ModelConfig& config = weights.config;
  const GatedDeltaShape& delta = config.block.delta;
  Check(!config.block.attention ||
            std::find(std::begin(kHeadDims), std::end(kHeadDims), config.head_dim) != std::end(kHeadDims),
        "the GPU kernels take heads of 64, 80, 96, 128 or 256; this model's have {}: use --device cpu",
        config.head_dim);
  Check(config.hidden % 8 == 0 && config.intermediate % 8 == 0,
        "the GPU kernels take hidden and intermediate sizes that are multiples of 8, not {} and {}: use --device cpu",
        config.hidden, config.intermediate);
  Check(!config.block.gated_delta ||
            (std::max(delta.key_dim, delta.value_dim) <= gpu::kMostDeltaDim && delta.values() % 8 == 0),
        "the GPU kernels take gated delta networks with heads of at most {}, and with values that are a multiple of 8; "
        "this model's have {} and {}, and {} values: use --device cpu",
        gpu::kMostDeltaDim, delta.key_dim, delta.value_dim, delta.values());
  const MixtureSpec& mixture = config.block.mixture;
  Check(!config.block.mixed || (mixture.units % 8 == 0 && mixture.shared_units % 8 == 0 &&
                                mixture.experts <= gpu::kMostExperts && mixture.active <= gpu::kMostActiveExperts),
        "the GPU kernels take up to {} of {} experts, whose units are multiples of 8; this model has {} of {}, of {} "
        "units and {} shared ones: use --device cpu",
        gpu::kMostActiveExperts, gpu::kMostExperts, mixture.active, mixture.experts, mixture.units,
        mixture.shared_units);
  Check(!config.block.layer_norm || !config.block.update_norms,
        "the GPU kernels have no LayerNorm of updates: use --device cpu");
  DType dtype = weights.embedding.dtype;
  bool quantised = false;
  weights.ForEach([&](const std::string&, const TensorView& tensor) {
    if (tensor.shape.size() == 2) quantised |= IsQuantised(tensor.dtype);
  });
  if (quantised) dtype = DType::kBFloat16;
  weights.ForEach([&](const std::string& name, const TensorView& tensor) {
    if (tensor.shape.size() != 2 || tensor.dtype == dtype) return;  // others are widened
    Check(quantised, "{} is {}, the embedding {}: on the GPU all matrices have one type; choose it with --dtype", name,
          Name(tensor.dtype), Name(dtype));
    Check(IsQuantised(tensor.dtype),
          "{} is {}, and others are quantised: on the GPU the others must be bfloat16; --dtype bfloat16 converts all",
          name, Name(tensor.dtype));
  });
  return dtype;
}

// The type that a matrix has on the device.
DType TypeThere(const TensorView& matrix) {
  return gpu::TakesBlocks(matrix.dtype) ? matrix.dtype : ExpandedType(matrix.dtype);
}

// Matrices of one type that are one below the other.
using Stack = std::vector<const TensorView*>;

int64_t RowsOf(const Stack& stack) {
  int64_t rows = 0;
  for (const TensorView* matrix : stack) rows += matrix->rows();
  return rows;
}

// Blocks to planes, through host memory for `kAtOnce` blocks.
void CopyPlanes(gpu::Uploader& uploader, const Stack& stack, std::byte* to) {
  constexpr int64_t kAtOnce = int64_t{1} << 16;
  const DType type = stack.front()->dtype;
  const int64_t block_bytes = LayoutOf(type).bytes;
  std::vector<std::byte> gathered;
  for (const gpu::BlockPlane& plane : gpu::PlanesOf(type)) {
    for (const TensorView* matrix : stack) {
      const auto* const from = static_cast<const std::byte*>(matrix->data);
      const int64_t blocks = matrix->bytes() / block_bytes;
      for (int64_t first = 0; first < blocks && plane.bytes > 0; first += kAtOnce) {
        const int64_t count = std::min(kAtOnce, blocks - first);
        gathered.resize(count * plane.bytes);
        gpu::GatherPlane(type, plane, from + first * block_bytes, count, gathered.data());
        uploader.Copy(to + first * plane.bytes, gathered.data(), std::ssize(gathered));
      }
      to += blocks * plane.bytes;
    }
  }
}

// Rows of a quantised type that the kernels do not read, in bfloat16.
void CopyExpanded(gpu::Uploader& uploader, const TensorView& matrix, std::byte* to) {
  const int64_t cols = matrix.cols(), row_bytes = BytesOf(matrix.dtype, cols);
  std::vector<float> wide(cols);
  std::vector<BFloat16> narrow(cols);
  const int64_t bytes = cols * static_cast<int64_t>(sizeof(BFloat16));
  for (int64_t row = 0; row < matrix.rows(); ++row) {
    Widen(matrix.dtype, static_cast<const std::byte*>(matrix.data) + row * row_bytes, cols, wide.data());
    std::transform(wide.begin(), wide.end(), narrow.begin(), [](float x) { return BFloat16(x); });
    uploader.Copy(to + row * bytes, narrow.data(), bytes);
  }
}

// Matrices one below the other, a part for each stack. Those of planes begin where 16 bytes can be loaded.
DeviceWeight JoinStacks(gpu::Stream stream, gpu::Uploader& uploader, const std::vector<Stack>& parts) {
  constexpr int64_t kAlignment = 256;
  const bool plain =
      std::none_of(parts.begin(), parts.end(), [](const Stack& part) { return IsQuantised(TypeThere(*part.front())); });
  std::vector<int64_t> starts;
  int64_t bytes = 0;
  for (const Stack& part : parts) {
    starts.push_back(plain ? bytes : (bytes + kAlignment - 1) / kAlignment * kAlignment);
    bytes = starts.back() + BytesOf(TypeThere(*part.front()), RowsOf(part) * part.front()->cols());
  }
  DeviceWeight joined{DeviceBuffer<std::byte>(stream, bytes, "the weights"), {}};
  for (const Stack& part : parts) {
    const DType type = TypeThere(*part.front());
    std::byte* to = joined.memory.data() + starts[joined.rows.count];
    joined.rows.parts[joined.rows.count++] = {{to, type}, RowsOf(part), 0, RowsOf(part)};
    if (IsQuantised(type)) {
      CopyPlanes(uploader, part, to);
      continue;
    }
    for (const TensorView* matrix : part) {
      if (IsQuantised(matrix->dtype)) {
        CopyExpanded(uploader, *matrix, to);
      } else {
        uploader.Copy(to, matrix->data, matrix->bytes());
      }
      to += BytesOf(type, matrix->rows() * matrix->cols());
    }
  }
  if (plain) joined.rows.plain = joined.rows.parts[0].array;
  return joined;
}

DeviceWeight Join(gpu::Stream stream, gpu::Uploader& uploader, std::initializer_list<const TensorView*> parts) {
  std::vector<Stack> stacks;
  for (const TensorView* part : parts) stacks.push_back({part});
  return JoinStacks(stream, uploader, stacks);
}

// Vectors one after the other, widened; nothing where all are absent, zeros where one is.
DeviceBuffer<float> JoinWide(gpu::Stream stream, std::initializer_list<std::pair<const TensorView*, int64_t>> parts) {
  std::vector<float> joined;
  bool any = false;
  for (const auto& [part, size] : parts) {
    const std::vector<float> values = part->empty() ? std::vector<float>(size, 0.0f) : Widened(*part);
    joined.insert(joined.end(), values.begin(), values.end());
    any |= !part->empty();
  }
  return any ? DeviceBuffer<float>(stream, std::span<const float>(joined), "the weights") : DeviceBuffer<float>();
}

// A norm's weights as the kernels multiply by them, times `scale`; nothing where it is absent.
DeviceBuffer<float> Norm(gpu::Stream stream, const ModelConfig& config, const TensorView& weight, float scale = 1) {
  if (weight.empty()) return {};
  std::vector<float> values = Widened(weight);
  for (float& value : values) value = (value + config.block.norm_offset) * scale;
  return {stream, std::span<const float>(values), "the weights"};
}

DeviceNorm NormWithBias(gpu::Stream stream, const ModelConfig& config, const TensorView& weight, const TensorView& bias,
                        float scale = 1) {
  DeviceNorm norm{Norm(stream, config, weight, scale), {}};
  if (bias.empty()) return norm;
  std::vector<float> values = Widened(bias);
  for (float& value : values) value *= scale;
  norm.bias = DeviceBuffer<float>(stream, std::span<const float>(values), "the weights");
  return norm;
}

// The norm before a half.
DeviceNorm InputNorm(gpu::Stream stream, const ModelConfig& config, const BlockWeights& from, const TensorView& weight,
                     const TensorView& bias) {
  return config.block.shared_norm ? NormWithBias(stream, config, from.shared_norm, from.shared_norm_bias)
                                  : NormWithBias(stream, config, weight, bias);
}

DeviceBuffer<float> Upload(gpu::Stream stream, const std::vector<float>& values) {
  return {stream, std::span<const float>(values), "the weights"};
}

DeviceDelta MakeDelta(gpu::Stream stream, gpu::Uploader& uploader, const BlockWeights& from) {
  return {Join(stream, uploader, {&from.delta_qkv, &from.delta_z}),
          Join(stream, uploader, {&from.delta_b, &from.delta_a}),
          Upload(stream, Widened(from.delta_conv)),
          Upload(stream, Widened(from.delta_a_log)),
          Upload(stream, Widened(from.delta_dt_bias)),
          Upload(stream, Widened(from.delta_norm))};
}

DeviceAttention MakeAttention(gpu::Stream stream, gpu::Uploader& uploader, const ModelConfig& config,
                              const BlockWeights& from) {
  const int64_t q_dim = Size(config, Axis::kQueries), kv_dim = config.kv_dim();
  DeviceAttention half;
  half.last = Join(stream, uploader, {&from.o});
  half.inputs = from.o.cols();
  half.norm = InputNorm(stream, config, from, from.input_norm, from.input_norm_bias);
  half.update_norm = Norm(stream, config, from.attention_update_norm);
  half.last_bias = JoinWide(stream, {{&from.o_bias, 0}});
  if (!from.delta_qkv.empty()) {
    half.delta = MakeDelta(stream, uploader, from);
    return half;
  }
  half.qkv = Join(stream, uploader, {&from.q, &from.k, &from.v});
  half.q_norm = Norm(stream, config, from.q_norm);
  half.k_norm = Norm(stream, config, from.k_norm);
  half.sinks = JoinWide(stream, {{&from.sinks, 0}});
  half.qkv_bias = JoinWide(stream, {{&from.q_bias, q_dim}, {&from.k_bias, kv_dim}, {&from.v_bias, kv_dim}});
  return half;
}

DeviceMixture MakeMixture(gpu::Stream stream, gpu::Uploader& uploader, const MixtureSpec& spec, int64_t layer,
                          const BlockWeights& from) {
  Stack gate_up, down;
  for (const ExpertWeights& expert : from.experts) {
    gate_up.insert(gate_up.end(), {&expert.gate, &expert.up});
    down.push_back(&expert.down);
  }
  for (const Stack* stack : {&gate_up, &down})
    for (const TensorView* matrix : *stack)
      Check(matrix->dtype == stack->front()->dtype,
            "layer {}: experts have {} and {}: on the GPU gate and up of all experts have one type, and down of all; "
            "--dtype bfloat16 converts all",
            layer, Name(stack->front()->dtype), Name(matrix->dtype));
  DeviceMixture mixture;
  mixture.router = Join(stream, uploader, {&from.router});
  mixture.gate_up = JoinStacks(stream, uploader, {gate_up});
  mixture.down = JoinStacks(stream, uploader, {down});
  mixture.experts = std::ssize(from.experts);
  mixture.active = std::min(spec.active, mixture.experts);
  mixture.units = from.AnyUp().rows();
  if (!from.router_bias.empty()) {
    std::vector<float> gate_up_bias, down_bias;
    const auto append = [](const TensorView& bias, std::vector<float>& to) {
      const std::vector<float> values = Widened(bias);
      to.insert(to.end(), values.begin(), values.end());
    };
    for (const ExpertWeights& expert : from.experts) {
      append(expert.gate_bias, gate_up_bias);
      append(expert.up_bias, gate_up_bias);
      append(expert.down_bias, down_bias);
    }
    mixture.router_bias = Upload(stream, Widened(from.router_bias));
    mixture.gate_up_bias = Upload(stream, gate_up_bias);
    mixture.down_bias = Upload(stream, down_bias);
  }
  if (from.shared_up.empty()) return mixture;
  mixture.shared_gate_up = Join(stream, uploader, {&from.shared_gate, &from.shared_up});
  mixture.shared_down = Join(stream, uploader, {&from.shared_down});
  mixture.shared_weight = Join(stream, uploader, {&from.shared_weight});
  mixture.shared_units = from.shared_up.rows();
  return mixture;
}

DeviceMlp MakeMlp(gpu::Stream stream, gpu::Uploader& uploader, const ModelConfig& config, int64_t layer,
                  const BlockWeights& from) {
  DeviceMlp half;
  half.norm = InputNorm(stream, config, from, from.post_norm, from.post_norm_bias);
  half.update_norm = Norm(stream, config, from.mlp_update_norm);
  if (from.IsMixture()) {
    half.mixture = MakeMixture(stream, uploader, config.block.mixture, layer, from);
    return half;
  }
  const int64_t units = half.inputs = MlpUnits(from);
  Check(units % 8 == 0, "layer {}: the GPU kernels take MLPs whose units are a multiple of 8, not {}: use --device cpu",
        layer, units);
  const bool gated = config.block.gated;
  half.gate_up = gated ? Join(stream, uploader, {&from.gate, &from.up}) : Join(stream, uploader, {&from.up});
  half.last = Join(stream, uploader, {&from.down});
  half.gate_up_bias = gated ? JoinWide(stream, {{&from.gate_bias, units}, {&from.up_bias, units}})
                            : JoinWide(stream, {{&from.up_bias, 0}});
  half.last_bias = JoinWide(stream, {{&from.down_bias, 0}});
  return half;
}

void CheckTypes(const DeviceWeights& device, const BlockStage& stage, Halves half) {
  ForEachTensor(*stage.own, half, [&](const BlockTensor& row, const TensorView& tensor) {
    if (row.kind == BlockTensor::Kind::kMatrix)
      device.CheckType(fmt::format("layer {}: {}", stage.layer, row.name), tensor.dtype);
  });
}

// The tensors outside the blocks that this process holds: the embedding, and norm and head.
ModelShare ShareOf(const Weights& weights) {
  return weights.split() ? weights.shares[weights.share] : ModelShare{0, weights.config.layers};
}

}  // namespace

DeviceWeights::DeviceWeights(const Weights& weights, int gpu)
    : rows_(std::make_shared<StreamRows>(gpu)),
      info_(gpu::QueryDevice(gpu)),
      products_(stream()),
      dtype_(CheckSupported(weights)) {
  const ModelShare share = ShareOf(weights);
  const bool tied = weights.head.data == weights.embedding.data;
  if (share.first || (share.last && tied)) embedding_ = Join(stream(), uploader_, {&weights.embedding});
  if (!share.last) return;
  final_norm_ = NormWithBias(stream(), weights.config, weights.final_norm, weights.final_norm_bias);
  if (!tied) head_ = Join(stream(), uploader_, {&weights.head});
}

const DeviceAttention& DeviceWeights::Attention(const Weights& weights, int64_t layer) {
  const std::lock_guard lock(uploading_);
  std::optional<DeviceAttention>& half = blocks_[layer].attention;
  if (!half) half = MakeAttention(stream(), uploader_, weights.config, weights.blocks[layer]);
  return *half;
}

const DeviceMlp& DeviceWeights::Mlp(const Weights& weights, int64_t layer) {
  const std::lock_guard lock(uploading_);
  std::optional<DeviceMlp>& half = blocks_[layer].mlp;
  if (!half) half = MakeMlp(stream(), uploader_, weights.config, layer, weights.blocks[layer]);
  return *half;
}

DeviceAttention DeviceWeights::UploadAttention(const ModelConfig& config, const BlockStage& stage) {
  CheckTypes(*this, stage, Halves::kAttention);
  const std::lock_guard lock(uploading_);
  return MakeAttention(stream(), uploader_, config, *stage.own);
}

DeviceMlp DeviceWeights::UploadMlp(const ModelConfig& config, const BlockStage& stage) {
  CheckTypes(*this, stage, Halves::kMlp);
  const std::lock_guard lock(uploading_);
  return MakeMlp(stream(), uploader_, config, stage.layer, *stage.own);
}

DeviceOutput DeviceWeights::UploadOutput(const Weights& weights, const DepthPlan& plan) {
  DeviceOutput out;
  if (!ShareOf(weights).last) return out;
  const auto [final_norm, head, final_norm_bias, table] = plan.Output(weights);
  const std::lock_guard lock(uploading_);
  const float scale = weights.config.block.logit_scale;
  if (final_norm.data != weights.final_norm.data || final_norm_bias.data != weights.final_norm_bias.data || scale != 1)
    out.final_norm = NormWithBias(stream(), weights.config, final_norm, final_norm_bias, scale);
  if (head.data != weights.head.data) {
    CheckType("the plan's head", head.dtype);
    out.head = Join(stream(), uploader_, {&head});
  }
  return out;
}

DeviceWeight DeviceWeights::UploadMatrix(const TensorView& matrix) {
  const std::lock_guard lock(uploading_);
  return Join(stream(), uploader_, {&matrix});
}

void DeviceWeights::CheckType(const std::string& what, DType type) const {
  Check(type == dtype_ || (IsQuantised(type) && dtype_ == DType::kBFloat16),
        "{} is {}, the model {}: on the GPU all matrices have one type; choose it with --dtype", what, Name(type),
        Name(dtype_));
}

ConstDeviceArray DeviceWeights::Expanded(const gpu::WeightPart& part, int64_t cols) {
  const gpu::DeviceArray to = expanded_.Get(stream(), part.rows * cols, DType::kBFloat16);
  gpu::ExpandRows(stream(), part, cols, to);
  return to;
}

void DeviceWeights::MatMul(gpu::MatMulProblem problem, const gpu::WeightRows& w, bool streamed) {
  const bool few = problem.m <= gpu::kFewTokens && problem.x.dtype == dtype_ && dtype_ != DType::kFloat32 &&
                   !problem.x_transposed && problem.x_stride == 0;
  const auto multiply_few = [&](const gpu::WeightPart& part) {
    gpu::MultiplyFew(stream(),
                     {.x = problem.x,
                      .w = part,
                      .y = problem.y,
                      .m = problem.m,
                      .k = problem.k,
                      .accumulate = problem.accumulate,
                      .y_stride = problem.y_stride},
                     info_.multiprocessors);
  };
  if (!w.quantised()) {
    if (few && streamed) return multiply_few({w.plain, problem.n, 0, problem.n});
    problem.w = w.plain;
    return products_.MatMul(problem);
  }
  Check(!problem.w_transposed, "a product with the transpose of quantised parts");  // they would divide its depth
  problem.y_stride = problem.YStride();
  for (int i = 0; i < w.count; ++i) {
    const gpu::WeightPart& part = w.parts[i];
    problem.n = part.rows;
    if (few && (streamed || gpu::TakesBlocks(part.array.dtype))) {
      multiply_few(part);
    } else if (!gpu::TakesBlocks(part.array.dtype)) {
      problem.w = {static_cast<const std::byte*>(part.array.data) +
                       part.first * problem.k * static_cast<int64_t>(SizeOf(part.array.dtype)),
                   part.array.dtype};
      products_.MatMul(problem);
    } else {
      problem.w = Expanded(part, problem.k);
      products_.MatMul(problem);
    }
    problem.y.data =
        static_cast<std::byte*>(problem.y.data) + part.rows * static_cast<int64_t>(SizeOf(problem.y.dtype));
  }
}

std::shared_ptr<DeviceWeights> OnDevice(const Context& context, const std::shared_ptr<const Weights>& weights,
                                        int gpu) {
  return context.device_copies->Get<DeviceWeights>(weights, gpu,
                                                   [&] { return std::make_shared<DeviceWeights>(*weights, gpu); });
}

}  // namespace shiftrt
