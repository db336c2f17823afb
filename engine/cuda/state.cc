// SPDX-License-Identifier: Apache-2.0
#include "engine/cuda/state.h"

#include <algorithm>

#include "kernels/cuda/gated_product.h"
#include "kernels/cuda/rowwise.h"
#include "runtime/check.h"

namespace shiftrt {

using gpu::ConstDeviceArray;
using gpu::DeviceArray;
using gpu::DeviceBuffer;
using gpu::Stream;

namespace {

constexpr int64_t kRankStep = 8;  // ranks are padded to multiples of it

// m (rows, cols) transposed into (cols, rows), padded by zeros to `out_rows` x `out_cols`.
DeviceBuffer<float> UploadTransposed(Stream stream, const Matrix<float>& m, int64_t out_rows, int64_t out_cols) {
  std::vector<float> out(out_rows * out_cols, 0.0f);
  for (int64_t i = 0; i < m.rows(); ++i)
    for (int64_t j = 0; j < m.cols(); ++j) out[j * out_cols + i] = m(i, j);
  return {stream, std::span<const float>(out), "an adapter"};
}

DeviceLra UploadLra(Stream stream, const Lra& lra, float norm_offset) {
  DeviceLra out;
  if (lra.normed()) {
    std::vector<float> weight(lra.norm.data(), lra.norm.data() + lra.norm.size());
    for (float& w : weight) w += norm_offset;
    out.norm = DeviceBuffer<float>(stream, std::span<const float>(weight), "an adapter");
  }
  out.bias = DeviceBuffer<float>(stream, std::span<const float>(lra.b.data(), lra.b.size()), "an adapter");
  if (lra.low_rank()) {
    // A bias alone is factors of zeros.
    out.rank = std::max(kRankStep, (lra.rank() + kRankStep - 1) / kRankStep * kRankStep);
    out.p = UploadTransposed(stream, lra.p, out.rank, lra.hidden());
    out.q = UploadTransposed(stream, lra.q, lra.hidden(), out.rank);
  } else {
    out.a = UploadTransposed(stream, lra.a, lra.hidden(), lra.hidden());
  }
  return out;
}

}  // namespace

CudaState::CudaState(const BackendSetup& setup)
    : CudaCall(setup.context, setup.weights),
      tapped_(setup.tapped),
      gates_at_once_(gpu::WantsGatedProduct() && spec().gated &&
                     gpu::TakesGatedProduct(stream().device, dtype(), hidden(), config().intermediate)),
      output_(device()->UploadOutput(weights(), setup.plan)) {
  for (const Stage& stage : setup.plan.stages) {
    stage.Visit(
        [&](const BlockStage& block) {
          if (RunsAttention(block.halves)) AttentionOf(block);
          if (RunsMlp(block.halves)) MlpOf(block);
        },
        [&](const AdapterStage& adapter) { AdapterOf(adapter); });
  }
}

const DeviceAttention& CudaState::AttentionOf(const BlockStage& stage) {
  if (stage.own == nullptr) return device()->Attention(weights(), stage.layer);
  std::optional<DeviceAttention>& half = own_[stage.own].attention;
  if (!half) half = device()->UploadAttention(config(), stage);
  return *half;
}

const DeviceMlp& CudaState::MlpOf(const BlockStage& stage) {
  if (stage.own == nullptr) return device()->Mlp(weights(), stage.layer);
  std::optional<DeviceMlp>& half = own_[stage.own].mlp;
  if (!half) half = device()->UploadMlp(config(), stage);
  return *half;
}

const DeviceLra& CudaState::AdapterOf(const AdapterStage& stage) {
  const auto at = adapters_.find(stage.lra);
  if (at != adapters_.end()) return at->second;
  return adapters_.emplace(stage.lra, UploadLra(stream(), *stage.lra, spec().norm_offset)).first->second;
}

float* CudaState::InputOf(const DeviceLra& lra, MatrixView<float> h) {
  if (lra.norm.size() == 0) return h.data;
  float* const normed = Floats(CudaArray::kNormed, h.rows * h.cols);
  const gpu::Norm norm{.weight = lra.norm.data(), .eps = eps(), .centred = spec().layer_norm};
  gpu::AddNorm(stream(), h, {}, norm, DeviceArray{normed, DType::kFloat32});
  return normed;
}

void CudaState::Start(const LayerCall& call) {
  Check(!call.on_chosen || chosen_.size() > 0, "no token was chosen that a step could follow");
  const bool moved = call.on_chosen ? BeginOnChosen(call, chosen_.data(), request_.data()) : Begin(call);
  if (moved) ResetGraphs();
}

KeysValues CudaState::Place(int64_t slot) {
  if (caches() != nullptr) {
    const KvPool::Slot& there = caches()->slot(slot);
    return {{there.keys.data(), dtype()}, {there.values.data(), dtype()}, caches()->rows()};
  }
  const int64_t rows = step().count + step().joined_count, size = rows * config().kv_dim();
  return {Get(CudaArray::kKeys, size, dtype()), Get(CudaArray::kValues, size, dtype()), rows};
}

void CudaState::Rotate(int64_t layer, const DeviceAttention& attention, DeviceArray qkv, DeviceArray q,
                       const KeysValues& kv) {
  const bool whole = spec().qk_norm_whole;
  if (whole)
    gpu::NormQueriesKeys(stream(), {.qkv = qkv,
                                    .bias = attention.qkv_bias.data(),
                                    .q_norm = attention.q_norm.data(),
                                    .k_norm = attention.k_norm.data(),
                                    .eps = eps(),
                                    .tokens = step().count,
                                    .q_dim = config().query_dim(),
                                    .kv_dim = config().kv_dim()});
  gpu::RopeAndStore(stream(), {.qkv = qkv,
                               .gated = spec().attention_gate,
                               .bias = whole ? nullptr : attention.qkv_bias.data(),
                               .q_norm = whole ? nullptr : attention.q_norm.data(),
                               .k_norm = whole ? nullptr : attention.k_norm.data(),
                               .eps = eps(),
                               .table = rope(layer),
                               .positions = step().rotations,
                               .cache_rows = step().cache_rows,
                               .tokens = step().count,
                               .heads = static_cast<int>(config().heads),
                               .kv_heads = static_cast<int>(config().kv_heads),
                               .head_dim = static_cast<int>(config().head_dim),
                               .q = q,
                               .keys = kv.keys,
                               .values = kv.values});
}

void CudaState::GateHeads(ConstDeviceArray qkv, DeviceArray attended) {
  if (!spec().attention_gate) return;
  gpu::GateHeads(stream(), {qkv, step().count, qkv_dim()}, config().head_dim,
                 {attended, step().count, config().query_dim()});
}

void CudaState::GatedDelta(const DeviceDelta& w, int64_t slot, ConstDeviceArray qkvz, const float* gates,
                           DeviceArray to) {
  const GatedDeltaShape& shape = spec().delta;
  const int64_t count = step().count;
  auto* const cached = caches() != nullptr ? reinterpret_cast<float*>(caches()->slot(slot).states.data()) : nullptr;
  float* const own = Floats(CudaArray::kDeltaStates, delta_ranges().states * shape.sequence_floats());
  gpu::DeltaCall call{.shape = shape,
                      .states = cached != nullptr ? cached : own,
                      .x = qkvz,
                      .x_stride = shape.channels() + shape.values(),
                      .b = gates,
                      .a = gates + shape.value_heads,
                      .gates_stride = 2 * shape.value_heads,
                      .conv = w.conv.data(),
                      .a_log = w.a_log.data(),
                      .dt_bias = w.dt_bias.data(),
                      .mixed = Floats(CudaArray::kDeltaMixed, count * shape.channels()),
                      .decays = Floats(CudaArray::kDeltaDecays, count * 2 * shape.value_heads),
                      .out = Floats(CudaArray::kDeltaHeads, count * shape.values())};
  if (step().longest > gpu::kFewDeltaTokens)
    call.chunks = Floats(CudaArray::kDeltaChunks, count * shape.chunk_floats());
  for (const DeltaGeneration& generation : delta_ranges().generations) {
    call.sequences = step().delta_ranges + generation.first;
    call.sequence_count = generation.count;
    call.longest = generation.longest;
    gpu::ConvolveDelta(stream(), call);
    gpu::ApplyDeltaRule(stream(), call);
  }
  gpu::NormDelta(stream(), call, count, w.norm.data(), eps(), to);
}

const float* CudaState::Here(const Rows& rows) {
  if (!rows.on_host()) {
    Check(rows.device() == device()->rows(), "rows of GPU {} or of another model for a decoder on GPU {}", rows.gpu(),
          stream().device);
    return rows.there().on_gpu().data;
  }
  const MatrixView<const float> from = rows.host();
  float* const to = Floats(CudaArray::kGiven, from.rows * hidden());
  const int64_t together = from.stride == hidden() ? from.rows : 1;  // rows that lie without gaps
  for (int64_t i = 0; i < from.rows; i += together)
    gpu::CopyToDevice(stream(), to + i * hidden(), from.row(i),
                      together * hidden() * static_cast<int64_t>(sizeof(float)));
  return to;
}

void CudaState::AddNormed(MatrixView<float> h, float* update, const DeviceHalf& half) {
  gpu::AddNormedUpdate(stream(), h, update, half.last_bias.data(), half.update_norm.data(), eps(),
                       spec().residual_multiplier);
}

gpu::MatVecProblem CudaState::OfNormed(float* h, const gpu::Norm& norm, bool apart, CudaArray into) {
  if (!norm.centred && !apart) return {.x = h, .norm_weight = norm.weight, .eps = norm.eps};
  float* const x = Floats(into, hidden());
  gpu::AddNorm(stream(), {h, 1, hidden()}, {}, norm, {x, DType::kFloat32});
  return {.x = x};
}

void CudaState::Head(const float* row, float* logits) {
  // Nothing is pending, so the norm leaves the row as it is.
  gpu::MatVecProblem product = OfNormed(const_cast<float*>(row), FinalNorm(), false);
  product.w = HeadWeights();
  product.rows = config().vocab;
  product.cols = hidden();
  product.y = logits;
  gpu::MatVec(stream(), product, cores());
  if (spec().logit_cap > 0) gpu::SoftCapRows(stream(), spec().logit_cap, {logits, 1, config().vocab});
}

void CudaState::Ask(const Draw& draw) {
  const gpu::SampleRequest request = RequestOf(draw);
  gpu::CopyToDevice(stream(), request_.Reserve(stream(), 1, kActivations), &request, sizeof(request));
}

void CudaState::Choose(const float* row) {
  float* const logits = chosen_from_.Reserve(stream(), config().vocab, kActivations);
  Head(row, logits);
  Sample(logits, request_.data(), chosen_.Reserve(stream(), 1, kActivations));
}

void CudaState::Sample(const float* logits, const gpu::SampleRequest* request, int32_t* token) {
  gpu::SampleToken(stream(), logits, config().vocab, request, cores(),
                   choice_scratch_.Reserve(stream(), gpu::SampleScratch(config().vocab, cores()), kActivations), token);
}

int64_t CudaState::ScratchBytes() const {
  int64_t bytes = shares_.bytes();
  for (const Scratch& array : arrays_) bytes += array.bytes();
  return bytes;
}

int64_t CudaState::ReleaseScratch() {
  const int64_t bytes = ScratchBytes();
  for (Scratch& array : arrays_) array.Release();
  shares_.Release();
  ResetGraphs();
  return bytes;
}

void CudaState::ResetGraphs(const gpu::LaunchGraph* but) {
  for (gpu::LaunchGraph& graph : graphs_)
    if (&graph != but) graph.Reset();
}

}  // namespace shiftrt
