// The layer loop on a GPU: whole sequences, through products of many rows.
#include "engine/cuda/cuda_engine.h"

#include <algorithm>
#include <cmath>
#include <cstring>

#include "kernels/cuda/elementwise.h"
#include "kernels/cuda/matvec.h"
#include "kernels/cuda/rope.h"
#include "kernels/cuda/scores.h"
#include "models/block_tensors.h"
#include "runtime/check.h"

namespace shiftrt {

using gpu::ConstDeviceArray;
using gpu::DeviceArray;
using gpu::DeviceBuffer;
using gpu::Stream;

namespace {

constexpr const char* kActivations = "the activations";
constexpr int64_t kVocabChunk = 8192, kScoredRows = 1024;  // logits that exist at a time
constexpr int64_t kRankStep = 8;                           // ranks are padded to multiples of it

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

CudaEngine::CudaEngine(const EngineSetup& setup)
    : weights_(setup.weights),
      config_(weights_->config),
      device_(shiftrt::OnDevice(*weights_, setup.context.gpus.front())),
      stream_(device_->stream()),
      dtype_(device_->dtype),
      hidden_(config_.hidden),
      plan_(setup.plan),
      taps_(setup.taps),
      shape_{static_cast<int>(config_.heads), static_cast<int>(config_.kv_heads), static_cast<int>(config_.head_dim),
             1.0f / std::sqrt(static_cast<float>(config_.head_dim))} {
  const RopeFrequencies rope = MakeRopeFrequencies(config_);
  frequencies_ = DeviceBuffer<float>(stream_, std::span<const float>(rope.inverse), "RoPE");
  rope_scale_ = rope.scale;
  for (const Stage& stage : plan_.stages) {
    stage.Visit([&](const BlockStage& block) { BlockOf(block); },
                [&](const AdapterStage& adapter) { AdapterOf(adapter); });
  }
}

const DeviceBlock& CudaEngine::BlockOf(const BlockStage& stage) {
  if (stage.own == nullptr) return device_->Block(*weights_, stage.layer);
  const auto at = folded_.find(stage.own);
  if (at != folded_.end()) return at->second;
  ForEachTensor(*stage.own, [&](const BlockTensor& row, const TensorView& tensor) {
    Check(row.kind != BlockTensor::Kind::kMatrix || tensor.dtype == dtype_,
          "layer {}: {} is {}, the model {}: on the GPU all matrices have one type", stage.layer, row.name,
          Name(tensor.dtype), Name(dtype_));
  });
  return folded_.emplace(stage.own, UploadBlock(stream_, device_->uploader, config_, *stage.own)).first->second;
}

const DeviceLra& CudaEngine::AdapterOf(const AdapterStage& stage) {
  const auto at = adapters_.find(stage.lra);
  if (at != adapters_.end()) return at->second;
  return adapters_.emplace(stage.lra, UploadLra(stream_, *stage.lra)).first->second;
}

std::unique_ptr<KvStorage> CudaEngine::MakeCache(int64_t capacity) {
  auto cache = std::make_unique<CudaKv>(device_, capacity);
  const int64_t bytes = capacity * config_.kv_dim() * static_cast<int64_t>(SizeOf(dtype_));
  try {
    for (int64_t i = 0; i < plan_.blocks(); ++i)
      cache->layers.push_back({DeviceBuffer<std::byte>(stream_, bytes, "the KV cache"),
                               DeviceBuffer<std::byte>(stream_, bytes, "the KV cache")});
  } catch (const OutOfMemory& error) {
    const int64_t room = error.free_bytes + 2 * bytes * std::ssize(cache->layers);
    throw OutOfMemory(error, fmt::format("a cache of {} positions was asked for, about {} would fit", capacity,
                                         room * capacity / (2 * bytes * plan_.blocks())));
  }
  graph_.Reset();  // a new cache may stand where an old one did
  return cache;
}

void CudaEngine::ExtendRope(int64_t positions) {
  if (positions <= rope_positions_) return;
  const int64_t half = config_.head_dim / 2;
  rope_positions_ = 0;  // until both are there: there may be no room
  cosine_.Reserve(stream_, positions * half, "RoPE");
  sine_.Reserve(stream_, positions * half, "RoPE");
  gpu::MakeRopeTable(stream_, positions, frequencies_.data(), half, rope_scale_, cosine_.data(), sine_.data());
  rope_positions_ = positions;
  graph_.Reset();
}

// Everything a call's launches read that changes from call to call, in one copy.
CudaEngine::Step CudaEngine::Upload(const EngineCall& call, const CudaKv* cache) {
  const auto count = call.batch.size();
  const int64_t vocab = config_.vocab;
  const CallLayout layout = LayOut(call);
  constexpr int64_t kSequenceWords = sizeof(gpu::PackedSequence) / sizeof(int32_t);
  const auto joined_count = std::ssize(layout.joined_rows), sequence_count = std::ssize(layout.sequences);
  const int64_t total = 5 * count + joined_count + kSequenceWords * sequence_count;
  std::vector<int32_t> host(total);
  int32_t *tokens = host.data(), *positions = tokens + count, *cache_rows = positions + count,
          *first_row = cache_rows + count, *visible = first_row + count;
  int32_t* sequence = visible + count + joined_count;
  Step step;
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
  ExtendRope(step.longest_keys);
  if (total > indices_.size()) graph_.Reset();  // its launches read from here
  step.tokens = indices_.Reserve(stream_, total, kActivations);
  gpu::CopyToDevice(stream_, indices_.data(), host.data(), total * static_cast<int64_t>(sizeof(int32_t)));
  step.positions = step.tokens + count;
  step.cache_rows = step.positions + count;
  step.first_row = step.cache_rows + count;
  step.visible = step.first_row + count;
  step.joined_rows = step.visible + count;
  step.joined_count = joined_count;
  step.sequences = reinterpret_cast<const gpu::PackedSequence*>(step.joined_rows + joined_count);
  step.sequence_count = sequence_count;
  return step;
}

CudaEngine::KeysValues CudaEngine::Place(const Step& step, const CudaKv* cache, size_t layer) {
  if (cache != nullptr)
    return {{cache->layers[layer].keys.data(), dtype_}, {cache->layers[layer].values.data(), dtype_}};
  const int64_t size = (step.count + step.joined_count) * config_.kv_dim();
  return {keys_.Get(stream_, size, dtype_), values_.Get(stream_, size, dtype_)};
}

// Attention reads a sequence's keys and values in one piece, so a branch gets a copy of what it continues.
void CudaEngine::JoinBranches(const Step& step, const KeysValues& kv) {
  if (step.joined_count == 0) return;
  const int64_t width = config_.kv_dim(), behind = step.count * width * static_cast<int64_t>(SizeOf(dtype_));
  for (const DeviceArray& rows : {kv.keys, kv.values})
    gpu::Gather(stream_, step.joined_rows, step.joined_count, rows, width,
                {static_cast<std::byte*>(rows.data) + behind, dtype_});
}

void CudaEngine::Rotate(const Step& step, const DeviceBlock& block, ConstDeviceArray qkv, DeviceArray q,
                        const KeysValues& kv) {
  gpu::RopeAndStore(stream_, {.qkv = qkv,
                              .bias = block.qkv_bias.data(),
                              .q_norm = block.q_norm.data(),
                              .k_norm = block.k_norm.data(),
                              .eps = Eps(),
                              .table = {cosine_.data(), sine_.data()},
                              .positions = step.positions,
                              .cache_rows = step.cache_rows,
                              .tokens = step.count,
                              .heads = shape_.heads,
                              .kv_heads = shape_.kv_heads,
                              .head_dim = shape_.head_dim,
                              .q = q,
                              .keys = kv.keys,
                              .values = kv.values});
}

// Many tokens: products write their updates apart, and the next norm adds them.

void CudaEngine::Settle(MatrixView<float> h) {
  if (pending_.update != nullptr || pending_.bias != nullptr) gpu::AddPending(stream_, h, pending_);
  pending_ = {};
}

void CudaEngine::Attend(const Step& step, const DeviceBlock& block, const KeysValues& kv) {
  const int64_t q_dim = config_.query_dim(), qkv_dim = q_dim + 2 * config_.kv_dim();
  const MatrixView<float> h = Stream32(step.count);
  const DeviceArray x = normed_.Get(stream_, step.count * hidden_, dtype_);
  const DeviceArray qkv = qkv_.Get(stream_, step.count * qkv_dim, dtype_);
  const DeviceArray q = q_.Get(stream_, step.count * q_dim, dtype_);
  const DeviceArray attended = attended_.Get(stream_, step.count * q_dim, dtype_);
  const DeviceArray out = update_.Get(stream_, step.count * hidden_, DType::kFloat32);
  gpu::AddRmsNorm(stream_, h, pending_, block.input_norm.data(), Eps(), x);
  device_->products.MatMul(
      {.x = x, .w = {block.qkv.data(), dtype_}, .y = qkv, .m = step.count, .n = qkv_dim, .k = hidden_});
  Rotate(step, block, qkv, q, kv);
  JoinBranches(step, kv);
  if (dtype_ == DType::kFloat32) {
    const int splits = gpu::AttentionSplits(shape_, step.count, step.longest_keys, device_->info.multiprocessors);
    gpu::AttendSplit(stream_,
                     {.shape = shape_,
                      .q = static_cast<const float*>(q.data),
                      .keys = kv.keys,
                      .values = kv.values,
                      .first_row = step.first_row,
                      .visible = step.visible,
                      .tokens = step.count,
                      .splits = splits,
                      .scratch = shares_.Floats(stream_, gpu::SplitAttentionScratch(shape_, step.count, splits)),
                      .out = static_cast<float*>(attended.data)});
  } else {
    gpu::AttendPacked(stream_, {.shape = shape_,
                                .q = q,
                                .keys = kv.keys,
                                .values = kv.values,
                                .sequences = step.sequences,
                                .sequence_count = step.sequence_count,
                                .longest = step.longest,
                                .out = attended});
  }
  device_->products.MatMul(
      {.x = attended, .w = {block.o.data(), dtype_}, .y = out, .m = step.count, .n = hidden_, .k = q_dim});
  pending_ = {static_cast<const float*>(out.data), block.o_bias.data()};
}

void CudaEngine::FeedForward(const Step& step, const DeviceBlock& block) {
  const int64_t inter = config_.intermediate;
  const MatrixView<float> h = Stream32(step.count);
  const DeviceArray x = normed_.Get(stream_, step.count * hidden_, dtype_);
  const DeviceArray gate_up = gate_up_.Get(stream_, step.count * 2 * inter, dtype_);
  const DeviceArray activation = activation_.Get(stream_, step.count * inter, dtype_);
  const DeviceArray out = mlp_update_.Get(stream_, step.count * hidden_, DType::kFloat32);
  gpu::AddRmsNorm(stream_, h, pending_, block.post_norm.data(), Eps(), x);
  device_->products.MatMul(
      {.x = x, .w = {block.gate_up.data(), dtype_}, .y = gate_up, .m = step.count, .n = 2 * inter, .k = hidden_});
  gpu::SwiGlu(stream_, gate_up, block.gate_up_bias.data(), step.count, inter, activation);
  device_->products.MatMul(
      {.x = activation, .w = {block.down.data(), dtype_}, .y = out, .m = step.count, .n = hidden_, .k = inter});
  pending_ = {static_cast<const float*>(out.data), block.down_bias.data()};
}

// The block's Delta: both of its updates, each with its bias.
MatrixView<const float> CudaEngine::Update(const Step& step, const DeviceBlock& block) {
  const MatrixView<float> delta(delta_.Floats(stream_, step.count * hidden_), step.count, hidden_);
  gpu::Add(stream_, update_.Floats(stream_, step.count * hidden_), mlp_update_.Floats(stream_, step.count * hidden_),
           step.count * hidden_, delta.data);
  if (block.o_bias.size() > 0) gpu::AddPending(stream_, delta, {nullptr, block.o_bias.data()});
  if (block.down_bias.size() > 0) gpu::AddPending(stream_, delta, {nullptr, block.down_bias.data()});
  return delta;
}

// The MLP's part of it.
MatrixView<const float> CudaEngine::MlpUpdate(const Step& step, const DeviceBlock& block) {
  const int64_t size = step.count * hidden_;
  const MatrixView<float> update(mlp_update_.Floats(stream_, size), step.count, hidden_);
  if (block.down_bias.size() == 0) return update;
  const MatrixView<float> biased(delta_.Floats(stream_, size), step.count, hidden_);
  gpu::CopyOnDevice(stream_, biased.data, update.data, size * static_cast<int64_t>(sizeof(float)));
  gpu::AddPending(stream_, biased, {nullptr, block.down_bias.data()});
  return biased;
}

void CudaEngine::ManyTokensAdapter(const DeviceLra& lra, MatrixView<float> h) {
  const auto weight = [](const DeviceBuffer<float>& w) { return ConstDeviceArray(w.data(), DType::kFloat32); };
  const DeviceArray x{h.data, DType::kFloat32}, out = update_.Get(stream_, h.rows * hidden_, DType::kFloat32);
  if (lra.rank > 0) {
    const DeviceArray inner = inner_.Get(stream_, h.rows * lra.rank, DType::kFloat32);
    device_->products.MatMul({.x = x, .w = weight(lra.p), .y = inner, .m = h.rows, .n = lra.rank, .k = hidden_});
    device_->products.MatMul({.x = inner, .w = weight(lra.q), .y = out, .m = h.rows, .n = hidden_, .k = lra.rank});
  } else {
    device_->products.MatMul({.x = x, .w = weight(lra.a), .y = out, .m = h.rows, .n = hidden_, .k = hidden_});
  }
  pending_ = {static_cast<const float*>(out.data), lra.bias.data()};
}

void CudaEngine::RunMany(const Step& step, const EngineCall& call) {
  const auto* const cache = static_cast<const CudaKv*>(call.cache);
  const MatrixView<float> h = Stream32(step.count);
  graph_.Reset();  // buffers may move
  pending_ = {};
  if (call.residual == nullptr) {
    gpu::Embed(stream_, step.tokens, step.count, {device_->embedding.data(), dtype_}, hidden_, h.data);
  } else if (const float* const from = OnDevice(*call.residual); from != h.data) {
    gpu::CopyOnDevice(stream_, h.data, from, step.count * hidden_ * static_cast<int64_t>(sizeof(float)));
  }
  int64_t taps_left = taps_.size();
  const auto fire = [&](int64_t layer, TapPoint point, MatrixView<const float> rows) {
    taps_left -= taps_.Fire(layer, point, {rows, device_->rows}, call.batch);
  };
  size_t blocks_run = 0;
  const auto run_adapter = [&](const AdapterStage& stage) {
    Settle(h);
    ManyTokensAdapter(AdapterOf(stage), h);
  };
  const auto run_block = [&](const BlockStage& stage) {
    const int64_t layer = stage.layer;
    if (taps_.Has(layer, TapPoint::kInput)) Settle(h);
    fire(layer, TapPoint::kInput, h);
    if (call.taps_only && taps_left == 0) return;
    const DeviceBlock& block = BlockOf(stage);
    Attend(step, block, Place(step, cache, blocks_run++));
    FeedForward(step, block);
    if (taps_.Has(layer, TapPoint::kMlp)) fire(layer, TapPoint::kMlp, MlpUpdate(step, block));
    if (taps_.Has(layer, TapPoint::kUpdate)) fire(layer, TapPoint::kUpdate, Update(step, block));
    if (taps_.Has(layer, TapPoint::kOutput)) Settle(h);
    fire(layer, TapPoint::kOutput, h);
  };
  for (const Stage& stage : call.stages) {
    if (call.taps_only && taps_left == 0) break;
    stage.Visit(run_block, run_adapter);
  }
  Settle(h);
  if (call.residual == nullptr) fire(config_.layers, TapPoint::kInput, h);
}

// Gives back the memory of a batch; returns how many bytes.
int64_t CudaEngine::ReleaseActivations() {
  int64_t bytes = 0;
  for (Scratch* scratch :
       {&residual_, &normed_, &qkv_, &q_, &keys_, &values_, &attended_, &shares_, &update_, &mlp_update_, &delta_,
        &gate_up_, &activation_, &inner_, &logits_, &given_rows_, &gathered_}) {
    bytes += scratch->bytes();
    scratch->Release();
  }
  graph_.Reset();
  return bytes;
}

void CudaEngine::Compute(const EngineCall& call, bool sample) {
  try {
    Launch(call, sample);
  } catch (const OutOfMemory& error) {
    const int64_t room = error.free_bytes + ReleaseActivations(), fit = room / ActivationBytesPerToken(config_, dtype_);
    if (fit >= call.batch.size()) throw;  // it was not the batch
    throw OutOfMemory(error, fmt::format("this batch has {} tokens, about {} would fit", call.batch.size(), fit));
  }
}

void CudaEngine::Launch(const EngineCall& call, bool sample) {
  const auto* const cache = static_cast<const CudaKv*>(call.cache);
  const Step step = Upload(call, cache);
  if (step.count == 1 && cache != nullptr && taps_.size() == 0) return RunOneToken(step, cache, sample);
  RunMany(step, call);
  if (sample) Sample(Stream32(step.count).row(step.count - 1));
}

Rows CudaEngine::Run(const EngineCall& call) {
  Compute(call, /*sample=*/false);
  if (call.taps_only) return {};
  return {Stream32(call.batch.size()), device_->rows};
}

int32_t CudaEngine::RunAndSample(const EngineCall& call, const SamplingOptions& sampling, double uniform) {
  const gpu::SampleRequest request{sampling.temperature, sampling.top_p, uniform, sampling.top_k};
  gpu::CopyToDevice(stream_, request_.Reserve(stream_, 1, kActivations), &request, sizeof(request));
  Compute(call, /*sample=*/true);
  int32_t token = -1;
  gpu::CopyToHost(stream_, &token, sampled_.data(), sizeof(token));
  if (token < 0) FailOfNaN();
  return token;
}

// Rows in this GPU's memory: those of the host are copied over.
const float* CudaEngine::OnDevice(const Rows& rows) {
  const MatrixView<const float> from = rows.there();
  if (!rows.on_host()) {
    Check(rows.device() == device_->rows, "rows of GPU {} or of another model for a decoder on GPU {}", rows.gpu(),
          stream_.device);
    return from.data;
  }
  float* const to = given_rows_.Floats(stream_, from.rows * hidden_);
  const int64_t together = from.stride == hidden_ ? from.rows : 1;  // rows that lie without gaps
  for (int64_t i = 0; i < from.rows; i += together)
    gpu::CopyToDevice(stream_, to + i * hidden_, from.row(i), together * hidden_ * static_cast<int64_t>(sizeof(float)));
  return to;
}

// Final norm and head of one row.
void CudaEngine::Head(const float* row, float* logits) {
  gpu::MatVec(stream_,
              {.w = device_->head(),
               .rows = config_.vocab,
               .cols = hidden_,
               .x = row,
               .norm_weight = device_->final_norm.data(),
               .eps = Eps(),
               .y = logits},
              device_->info.multiprocessors);
}

// The token that follows `row`, as request_ says.
void CudaEngine::Sample(const float* row) {
  float* const logits = sampled_logits_.Reserve(stream_, config_.vocab, kActivations);
  Head(row, logits);
  const int cores = device_->info.multiprocessors;
  gpu::SampleToken(stream_, logits, config_.vocab, request_.data(), cores,
                   sample_scratch_.Reserve(stream_, gpu::SampleScratch(config_.vocab, cores), kActivations),
                   sampled_.Reserve(stream_, 1, kActivations));
}

Matrix<float> CudaEngine::Logits(const Rows& residual) {
  Matrix<float> out(residual.count(), config_.vocab);
  const float* const rows = OnDevice(residual);
  float* const logits = logits_.Floats(stream_, config_.vocab);
  for (int64_t i = 0; i < residual.count(); ++i) {
    Head(rows + i * hidden_, logits);
    gpu::CopyToHost(stream_, out.row(i), logits, config_.vocab * static_cast<int64_t>(sizeof(float)));
  }
  return out;
}

std::vector<float> CudaEngine::LogProbs(const ScoredRows& scored, std::span<int32_t> argmax) {
  const auto count = std::ssize(scored.targets);
  const int64_t vocab = config_.vocab;
  for (int32_t target : scored.targets)
    Check(target >= 0 && target < vocab, "target {} is outside the vocabulary of {}", target, vocab);
  const DeviceBuffer<int32_t> wanted(stream_, scored.targets, kActivations), best(stream_, count, kActivations);
  const DeviceBuffer<float> log_probs(stream_, count, kActivations);
  const DeviceBuffer<gpu::TokenScore> scores(stream_, std::min(count, kScoredRows), kActivations);
  const float* const stream = OnDevice(scored.stream);
  DeviceBuffer<int32_t> which;
  if (scored.which) {
    const std::vector<int32_t> narrow(scored.which->begin(), scored.which->end());
    which = DeviceBuffer<int32_t>(stream_, std::span<const int32_t>(narrow), kActivations);
  }
  const ConstDeviceArray head = device_->head();
  const auto* const head_bytes = static_cast<const std::byte*>(head.data);
  for (int64_t first = 0; first < count; first += kScoredRows) {
    const int64_t m = std::min(kScoredRows, count - first);
    // Nothing is pending, so the norm leaves the rows as they are.
    float* rows = const_cast<float*>(stream) + first * hidden_;
    if (scored.which) {
      rows = gathered_.Floats(stream_, m * hidden_);
      gpu::Gather(stream_, which.data() + first, m, {stream, DType::kFloat32}, hidden_, {rows, DType::kFloat32});
    }
    const DeviceArray x = normed_.Get(stream_, m * hidden_, dtype_);
    gpu::AddRmsNorm(stream_, {rows, m, hidden_}, {}, device_->final_norm.data(), Eps(), x);
    for (int64_t v = 0; v < vocab; v += kVocabChunk) {
      const int64_t n = std::min(kVocabChunk, vocab - v);
      const DeviceArray logits = logits_.Get(stream_, m * n, DType::kFloat32);
      const ConstDeviceArray w(head_bytes + v * hidden_ * static_cast<int64_t>(SizeOf(dtype_)), dtype_);
      device_->products.MatMul({.x = x, .w = w, .y = logits, .m = m, .n = n, .k = hidden_});
      gpu::UpdateScores(stream_, {static_cast<const float*>(logits.data), m, n, v, vocab}, wanted.data() + first,
                        scores.data(), log_probs.data() + first, best.data() + first);
    }
  }
  std::vector<float> out(count);
  gpu::CopyToHost(stream_, out.data(), log_probs.data(), count * static_cast<int64_t>(sizeof(float)));
  if (!argmax.empty())
    gpu::CopyToHost(stream_, argmax.data(), best.data(), count * static_cast<int64_t>(sizeof(int32_t)));
  return out;
}

std::unique_ptr<Engine> MakeCudaEngine(const EngineSetup& setup) {
  Check(gpu::WhyUnavailable().empty(), "CUDA: {}", gpu::WhyUnavailable());
  return std::make_unique<CudaEngine>(setup);
}

}  // namespace shiftrt
