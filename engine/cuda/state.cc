// SPDX-License-Identifier: Apache-2.0
#include "engine/cuda/state.h"

#include <algorithm>
#include <cstring>

#include "kernels/cuda/elementwise.h"
#include "kernels/cuda/gated_product.h"
#include "kernels/cuda/matvec.h"
#include "kernels/cuda/rmsnorm.h"
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

DeviceLra UploadLra(Stream stream, const Lra& lra) {
  DeviceLra out;
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
    : weights(setup.weights),
      config(weights->config),
      spec(config.block),
      device(OnDevice(setup.context, weights, setup.context.gpus.front())),
      stream(device->stream()),
      dtype(device->dtype()),
      hidden(config.hidden),
      eps(static_cast<float>(config.rms_eps)),
      cores(device->info().multiprocessors),
      shape{.heads = static_cast<int>(config.heads),
            .kv_heads = static_cast<int>(config.kv_heads),
            .head_dim = static_cast<int>(config.head_dim),
            .scale = spec.attention_scale,
            .soft_cap = spec.attention_cap},
      tapped(setup.tapped),
      gates_at_once(gpu::WantsGatedProduct() &&
                    gpu::TakesGatedProduct(stream.device, dtype, hidden, config.intermediate)),
      rope_(stream, config) {
  output_ = device->UploadOutput(*weights, setup.plan);
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
  if (stage.own == nullptr) return device->Attention(*weights, stage.layer);
  std::optional<DeviceAttention>& half = own_[stage.own].attention;
  if (!half) half = device->UploadAttention(config, stage);
  return *half;
}

const DeviceMlp& CudaState::MlpOf(const BlockStage& stage) {
  if (stage.own == nullptr) return device->Mlp(*weights, stage.layer);
  std::optional<DeviceMlp>& half = own_[stage.own].mlp;
  if (!half) half = device->UploadMlp(config, stage);
  return *half;
}

const DeviceLra& CudaState::AdapterOf(const AdapterStage& stage) {
  const auto at = adapters_.find(stage.lra);
  if (at != adapters_.end()) return at->second;
  return adapters_.emplace(stage.lra, UploadLra(stream, *stage.lra)).first->second;
}

// In one copy.
void CudaState::Begin(const LayerCall& call) {
  cache = static_cast<const CudaKv*>(call.cache);
  const auto count = call.batch.size();
  const int64_t vocab = config.vocab;
  const CallLayout layout = LayOut(call);
  constexpr int64_t kSequenceWords = sizeof(gpu::PackedSequence) / sizeof(int32_t);
  const auto joined_count = std::ssize(layout.joined_rows), sequence_count = std::ssize(layout.sequences);
  const int64_t total = 5 * count + joined_count + kSequenceWords * sequence_count;
  std::vector<int32_t> host(total);
  int32_t *tokens = host.data(), *positions = tokens + count, *cache_rows = positions + count,
          *first_row = cache_rows + count, *visible = first_row + count;
  int32_t* sequence = visible + count + joined_count;
  step = {};
  step.count = count;
  for (int64_t t = 0; t < count; ++t) {
    tokens[t] = call.batch.tokens[t];
    Check(tokens[t] >= 0 && tokens[t] < vocab, "token {} at position {} is outside the vocabulary of {}", tokens[t], t,
          vocab);
  }
  for (const CallLayout::Sequence& s : layout.sequences) {
    const auto begin = static_cast<int32_t>(s.begin), past = static_cast<int32_t>(s.past);
    const int64_t first_key = cache != nullptr ? 0 : s.joined < 0 ? s.begin : count + s.joined;
    const auto kv_begin = static_cast<int32_t>(first_key);
    const gpu::PackedSequence packed{begin, static_cast<int32_t>(s.count), past, kv_begin};
    std::memcpy(sequence, &packed, sizeof(packed));
    sequence += kSequenceWords;
    step.longest = std::max(step.longest, s.count);
    step.longest_keys = std::max(step.longest_keys, s.past + s.count);
    for (int32_t t = begin; t < s.begin + s.count; ++t) {
      positions[t] = past + t - begin;
      cache_rows[t] = cache != nullptr ? positions[t] : t;
      first_row[t] = kv_begin;
      visible[t] = positions[t] + 1;
    }
  }
  std::copy(layout.joined_rows.begin(), layout.joined_rows.end(), visible + count);
  if (cache != nullptr) step.longest_keys = cache->capacity;
  if (rope_.Extend(step.longest_keys)) graph.Reset();
  if (total > indices_.size()) graph.Reset();  // its launches read from here
  step.tokens = indices_.Reserve(stream, total, kActivations);
  gpu::CopyToDevice(stream, indices_.data(), host.data(), total * static_cast<int64_t>(sizeof(int32_t)));
  step.positions = step.tokens + count;
  step.cache_rows = step.positions + count;
  step.first_row = step.cache_rows + count;
  step.visible = step.first_row + count;
  step.joined_rows = step.visible + count;
  step.joined_count = joined_count;
  step.sequences = reinterpret_cast<const gpu::PackedSequence*>(step.joined_rows + joined_count);
  step.sequence_count = sequence_count;
}

void CudaState::BeginOnChosen(const LayerCall& call) {
  Check(chosen.size() > 0, "no token was chosen that a step could follow");
  cache = static_cast<const CudaKv*>(call.cache);
  if (rope_.Extend(cache->capacity)) graph.Reset();
  if (indices_.size() < gpu::kStepNumbers) graph.Reset();
  int32_t* const numbers = indices_.Reserve(stream, gpu::kStepNumbers, kActivations);
  gpu::StepOnChosen(stream, {.chosen = chosen.data(),
                             .position = static_cast<int32_t>(call.past),
                             .asked = RequestOf(*call.draw),
                             .numbers = numbers,
                             .request = request.data()});
  step = {.count = 1,
          .tokens = numbers,
          .positions = numbers + 1,
          .cache_rows = numbers + 2,
          .first_row = numbers + 3,
          .visible = numbers + 4,
          .longest = 1,
          .longest_keys = cache->capacity};
}

KeysValues CudaState::Place(int64_t slot) {
  if (cache != nullptr) {
    const CudaKv::Slot& there = cache->slots[slot];
    return {{there.keys.data(), dtype}, {there.values.data(), dtype}, cache->capacity};
  }
  const int64_t rows = step.count + step.joined_count, size = rows * config.kv_dim();
  return {keys.Get(stream, size, dtype), values.Get(stream, size, dtype), rows};
}

void CudaState::Rotate(const DeviceAttention& attention, ConstDeviceArray qkv, DeviceArray q, const KeysValues& kv) {
  gpu::RopeAndStore(stream, {.qkv = qkv,
                             .bias = attention.qkv_bias.data(),
                             .q_norm = attention.q_norm.data(),
                             .k_norm = attention.k_norm.data(),
                             .eps = eps,
                             .table = rope_.table(),
                             .positions = step.positions,
                             .cache_rows = step.cache_rows,
                             .tokens = step.count,
                             .heads = shape.heads,
                             .kv_heads = shape.kv_heads,
                             .head_dim = shape.head_dim,
                             .q = q,
                             .keys = kv.keys,
                             .values = kv.values});
}

const float* CudaState::Here(const Rows& rows) {
  if (!rows.on_host()) {
    Check(rows.device() == device->rows(), "rows of GPU {} or of another model for a decoder on GPU {}", rows.gpu(),
          stream.device);
    return rows.there().on_gpu().data;
  }
  const MatrixView<const float> from = rows.host();
  float* const to = given.Floats(stream, from.rows * hidden);
  const int64_t together = from.stride == hidden ? from.rows : 1;  // rows that lie without gaps
  for (int64_t i = 0; i < from.rows; i += together)
    gpu::CopyToDevice(stream, to + i * hidden, from.row(i), together * hidden * static_cast<int64_t>(sizeof(float)));
  return to;
}

gpu::AttentionShape CudaState::ShapeOf(int64_t layer) const {
  gpu::AttentionShape own = shape;
  own.window = static_cast<int>(spec.Window(layer));
  return own;
}

void CudaState::AddNormed(MatrixView<float> h, float* update, const DeviceBuffer<float>& bias,
                          const DeviceBuffer<float>& norm) {
  gpu::AddNormedUpdate(stream, h, update, bias.data(), norm.data(), eps);
}

void CudaState::Head(const float* row, float* logits) {
  gpu::MatVec(stream,
              {.w = HeadWeights(),
               .rows = config.vocab,
               .cols = hidden,
               .x = row,
               .norm_weight = FinalNorm(),
               .eps = eps,
               .y = logits},
              cores);
  if (spec.logit_cap > 0) gpu::SoftCap(stream, spec.logit_cap, config.vocab, logits);
}

void CudaState::Choose(const float* row) {
  float* const logits = chosen_from_.Reserve(stream, config.vocab, kActivations);
  Head(row, logits);
  gpu::SampleToken(stream, logits, config.vocab, request.data(), cores,
                   choice_scratch_.Reserve(stream, gpu::SampleScratch(config.vocab, cores), kActivations),
                   chosen.Reserve(stream, 1, kActivations));
}

int64_t CudaState::ReleaseScratch() {
  int64_t bytes = 0;
  for (Scratch* scratch : {&residual, &normed, &qkv, &q, &keys, &values, &attended, &attention_update, &mlp_update,
                           &delta, &gate_up, &activation, &widened, &inner, &logits, &given, &gathered}) {
    bytes += scratch->bytes();
    scratch->Release();
  }
  bytes += shares.bytes();
  shares.Release();
  graph.Reset();
  return bytes;
}

}  // namespace shiftrt
