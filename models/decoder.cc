#include "models/decoder.h"

#include <algorithm>
#include <cmath>
#include <numeric>

#include "kernels/attention.h"
#include "kernels/elementwise.h"
#include "kernels/logprob.h"
#include "kernels/lra.h"
#include "kernels/matmul.h"
#include "kernels/rmsnorm.h"
#include "kernels/rope.h"
#include "runtime/check.h"

namespace shiftrt {

void Batch::Add(std::span<const int32_t> sequence) {
  tokens.insert(tokens.end(), sequence.begin(), sequence.end());
  offsets.push_back(size());
}

KvCache::KvCache(const ModelConfig& config, const DepthPlan& plan, int64_t capacity) : capacity_(capacity) {
  for (int64_t i = 0; i < plan.blocks(); ++i)
    layers_.push_back({Matrix<float>(capacity, config.kv_dim()), Matrix<float>(capacity, config.kv_dim())});
}

void KvCache::Truncate(int64_t size) {
  Check(size >= 0 && size <= size_, "cannot keep {} of {} cached positions", size, size_);
  size_ = size;
}

int64_t KvCache::bytes() const {
  int64_t elements = 0;
  for (const Layer& layer : layers_) elements += layer.keys.size() + layer.values.size();
  return elements * static_cast<int64_t>(sizeof(float));
}

namespace {

// A buffer that grows to the largest batch seen, handed out as a matrix of the current one.
class Workspace {
 public:
  MatrixView<float> Get(int64_t rows, int64_t cols) {
    buffer_.Reserve(rows * cols);
    return {buffer_.data(), rows, cols};
  }

 private:
  Buffer<float> buffer_;
};

void CheckStages(const Weights& weights, std::span<const Stage> stages) {
  int64_t last = -1;
  for (const Stage& stage : stages) {
    if (const auto* block = std::get_if<BlockStage>(&stage)) {
      Check(block->layer > last && block->layer < weights.config.layers,
            "depth plan: block {} after block {} in a model of {} layers", block->layer, last, weights.config.layers);
      last = block->layer;
    } else {
      const Lra& lra = *std::get<AdapterStage>(stage).lra;
      Check(lra.hidden() == weights.config.hidden,
            "depth plan: an adapter of hidden size {} in a model of hidden size {}", lra.hidden(),
            weights.config.hidden);
    }
  }
}

}  // namespace

const BlockWeights& TensorsOf(const Weights& weights, const BlockStage& stage) {
  return stage.folded ? *stage.folded : weights.blocks[stage.layer];
}

struct Decoder::Impl {
  Context context;
  std::shared_ptr<const Weights> weights;
  DepthPlan plan;
  std::vector<Tap> taps;
  RopeFrequencies rope;
  AttentionShape attention_shape;

  Workspace residual, normed, query, keys, values, attended, update, mlp_update, gate, up;
  RopeAngles angles;                         // of the current call, as are
  std::vector<AttentionSequence> sequences;  // these; keys and values are set block by block

  // Where this call's keys and values live: the cache's rows for the new tokens, or the workspace.
  struct KeysValues {
    MatrixView<float> keys, values;
  };

  void Attend(const BlockWeights& block, MatrixView<float> h, const KeysValues& kv);
  void FeedForward(const BlockWeights& block, MatrixView<float> h, bool add_to_update);
  MatrixView<float> Embedded(std::span<const int32_t> tokens);
  void LayOut(const Batch& batch);
  void Run(std::span<const Stage> stages, MatrixView<float> h, KvCache* cache, bool taps_only);
  void SetPositions(std::span<const int64_t> positions) {
    angles = MakeRopeAngles(context, positions, rope.inverse, rope.scale);
  }

  bool Tapped(int64_t layer, TapPoint point) const {
    return std::any_of(taps.begin(), taps.end(),
                       [&](const Tap& tap) { return tap.layer == layer && tap.point == point; });
  }
  // Returns how many taps heard it.
  int64_t Fire(int64_t layer, TapPoint point, MatrixView<const float> view) const {
    int64_t heard = 0;
    for (const Tap& tap : taps) {
      if (tap.layer != layer || tap.point != point) continue;
      tap.sink(view);
      ++heard;
    }
    return heard;
  }
};

Decoder::Decoder(const Context& context, std::shared_ptr<const Weights> weights, DepthPlan plan, std::vector<Tap> taps)
    : impl_(std::make_unique<Impl>()) {
  CheckStages(*weights, plan.stages);
  const ModelConfig& config = weights->config;
  const std::vector<int64_t> kept = plan.KeptLayers();
  for (const Tap& tap : taps) {
    const bool stream_end = tap.layer == config.layers && tap.point == TapPoint::kInput;
    Check(stream_end || std::binary_search(kept.begin(), kept.end(), tap.layer),
          "a tap on layer {}, which this depth plan does not run", tap.layer);
  }
  impl_->context = context;
  impl_->rope = MakeRopeFrequencies(config);
  impl_->attention_shape = {config.heads, config.kv_heads, config.head_dim,
                            1.0f / std::sqrt(static_cast<float>(config.head_dim))};
  impl_->weights = std::move(weights);
  impl_->plan = std::move(plan);
  impl_->taps = std::move(taps);
}

Decoder::~Decoder() = default;
Decoder::Decoder(Decoder&&) noexcept = default;

// h += attention(norm(h)); the sum's second term stays in `update`.
void Decoder::Impl::Attend(const BlockWeights& block, MatrixView<float> h, const KeysValues& kv) {
  const ModelConfig& config = weights->config;
  const float eps = static_cast<float>(config.rms_eps);
  const MatrixView<float> x = normed.Get(h.rows, config.hidden), q = query.Get(h.rows, config.query_dim()),
                          attention = attended.Get(h.rows, config.query_dim()), out = update.Get(h.rows, config.hidden);
  RmsNorm(context, h, block.input_norm, eps, x);
  MatMul(context, x, block.q, block.q_bias, false, q);
  MatMul(context, x, block.k, block.k_bias, false, kv.keys);
  MatMul(context, x, block.v, block.v_bias, false, kv.values);
  if (config.qk_norm) {
    RmsNormHeads(context, q, config.head_dim, block.q_norm, eps);
    RmsNormHeads(context, kv.keys, config.head_dim, block.k_norm, eps);
  }
  Rope(context, q, config.head_dim, angles);
  Rope(context, kv.keys, config.head_dim, angles);
  Attention(context, attention_shape, sequences, q, attention);
  MatMul(context, attention, block.o, block.o_bias, false, out);
  AddTo(context, out, h);
}

// h += mlp(norm(h)); with `add_to_update` the second term is added to `update` too, which then holds the block's Delta.
void Decoder::Impl::FeedForward(const BlockWeights& block, MatrixView<float> h, bool add_to_update) {
  const ModelConfig& config = weights->config;
  const MatrixView<float> x = normed.Get(h.rows, config.hidden), g = gate.Get(h.rows, config.intermediate),
                          u = up.Get(h.rows, config.intermediate), out = mlp_update.Get(h.rows, config.hidden);
  RmsNorm(context, h, block.post_norm, static_cast<float>(config.rms_eps), x);
  MatMul(context, x, block.gate, block.gate_bias, false, g);
  MatMul(context, x, block.up, block.up_bias, false, u);
  SwiGlu(context, g, u);
  MatMul(context, g, block.down, block.down_bias, false, out);
  AddTo(context, out, h);
  if (add_to_update) AddTo(context, out, update.Get(h.rows, config.hidden));
}

MatrixView<float> Decoder::Impl::Embedded(std::span<const int32_t> tokens) {
  const MatrixView<float> h = residual.Get(static_cast<int64_t>(tokens.size()), weights->config.hidden);
  Embed(context, tokens, weights->embedding, h);
  return h;
}

// The layer loop, in place on the stream `h`. `angles` and `sequences` describe the tokens; without a cache, keys and
// values live for one block.
void Decoder::Impl::Run(std::span<const Stage> stages, MatrixView<float> h, KvCache* cache, bool taps_only) {
  const ModelConfig& config = weights->config;
  const int64_t count = h.rows;
  auto taps_left = static_cast<int64_t>(taps.size());
  size_t cache_layer = 0;
  for (const Stage& stage : stages) {
    if (taps_only && taps_left == 0) return;
    if (const auto* adapter = std::get_if<AdapterStage>(&stage)) {
      const Lra& lra = *adapter->lra;
      if (lra.low_rank()) {
        ApplyLowRankLra(context, lra.p.view(), lra.q.view(), lra.b.view(), h);
      } else {
        ApplyFullLra(context, lra.a.view(), lra.b.view(), h);
      }
      continue;
    }
    const auto& block_stage = std::get<BlockStage>(stage);
    const int64_t layer = block_stage.layer;
    taps_left -= Fire(layer, TapPoint::kInput, h);
    if (taps_only && taps_left == 0) return;

    KeysValues kv;
    if (cache != nullptr) {
      const KvCache::Layer& slot = cache->layers_[cache_layer++];
      kv = {slot.keys.view().Rows(cache->size_, count), slot.values.view().Rows(cache->size_, count)};
      sequences[0].keys = slot.keys.view();
      sequences[0].values = slot.values.view();
    } else {
      kv = {keys.Get(count, config.kv_dim()), values.Get(count, config.kv_dim())};
      for (AttentionSequence& s : sequences) {
        s.keys = kv.keys.Rows(s.begin, s.count);
        s.values = kv.values.Rows(s.begin, s.count);
      }
    }
    const BlockWeights& block = TensorsOf(*weights, block_stage);
    const bool update_tapped = Tapped(layer, TapPoint::kUpdate);
    Attend(block, h, kv);
    FeedForward(block, h, update_tapped);
    if (Tapped(layer, TapPoint::kMlp)) taps_left -= Fire(layer, TapPoint::kMlp, mlp_update.Get(count, config.hidden));
    if (update_tapped) taps_left -= Fire(layer, TapPoint::kUpdate, update.Get(count, config.hidden));
    taps_left -= Fire(layer, TapPoint::kOutput, h);
  }
}

// Positions and sequences of a packed batch.
void Decoder::Impl::LayOut(const Batch& batch) {
  const int64_t context_length = weights->config.max_positions;
  std::vector<int64_t> positions(batch.size());
  sequences.clear();
  for (int64_t s = 0; s < batch.sequences(); ++s) {
    const int64_t begin = batch.offsets[s], count = batch.offsets[s + 1] - begin;
    Check(count <= context_length, "a sequence of {} tokens exceeds the model's context of {}", count, context_length);
    std::iota(positions.begin() + begin, positions.begin() + begin + count, int64_t{0});
    sequences.push_back({begin, count, 0, {}, {}});
  }
  SetPositions(positions);
}

MatrixView<const float> Decoder::Forward(const Batch& batch, bool taps_only) {
  impl_->LayOut(batch);
  const MatrixView<float> h = impl_->Embedded(batch.tokens);
  impl_->Run(plan().stages, h, nullptr, taps_only);
  impl_->Fire(config().layers, TapPoint::kInput, h);
  return h;
}

MatrixView<const float> Decoder::Resume(const Batch& batch, MatrixView<const float> residual,
                                        std::span<const Stage> stages) {
  Check(residual.rows == batch.size() && residual.cols == config().hidden,
        "a stream of ({}, {}) for {} tokens of hidden size {}", residual.rows, residual.cols, batch.size(),
        config().hidden);
  CheckStages(weights(), stages);
  impl_->LayOut(batch);
  const MatrixView<float> h = impl_->residual.Get(residual.rows, residual.cols);
  if (h.data != residual.data)
    for (int64_t t = 0; t < h.rows; ++t) std::copy_n(residual.row(t), h.cols, h.row(t));
  impl_->Run(stages, h, nullptr, false);
  return h;
}

MatrixView<const float> Decoder::Forward(std::span<const int32_t> tokens, KvCache& cache) {
  const auto count = static_cast<int64_t>(tokens.size());
  Check(static_cast<int64_t>(cache.layers_.size()) == plan().blocks(), "a cache of {} blocks for a plan of {}",
        cache.layers_.size(), plan().blocks());
  Check(cache.size_ + count <= cache.capacity_, "the KV cache holds {} of {} positions; {} more do not fit",
        cache.size_, cache.capacity_, count);
  std::vector<int64_t> positions(tokens.size());
  std::iota(positions.begin(), positions.end(), cache.size_);
  impl_->SetPositions(positions);
  impl_->sequences.assign(1, {0, count, cache.size_, {}, {}});
  const MatrixView<float> h = impl_->Embedded(tokens);
  impl_->Run(plan().stages, h, &cache, false);
  impl_->Fire(config().layers, TapPoint::kInput, h);
  cache.size_ += count;
  return h;
}

Matrix<float> Decoder::Logits(MatrixView<const float> residual) {
  const MatrixView<float> x = impl_->normed.Get(residual.rows, config().hidden);
  RmsNorm(impl_->context, residual, weights().final_norm, static_cast<float>(config().rms_eps), x);
  Matrix<float> logits(residual.rows, config().vocab);
  MatMul(impl_->context, x, weights().head, {}, false, logits.view());
  return logits;
}

std::vector<float> Decoder::LogProbs(MatrixView<const float> residual, std::span<const int32_t> targets,
                                     std::span<int32_t> argmax) {
  const MatrixView<float> x = impl_->normed.Get(residual.rows, config().hidden);
  RmsNorm(impl_->context, residual, weights().final_norm, static_cast<float>(config().rms_eps), x);
  std::vector<float> log_probs(targets.size());
  TokenLogProbs(impl_->context, x, weights().head, targets, log_probs, argmax);
  return log_probs;
}

const Weights& Decoder::weights() const { return *impl_->weights; }
const DepthPlan& Decoder::plan() const { return impl_->plan; }

int64_t Decoder::Parameters() const {
  const Weights& w = weights();
  int64_t total = w.embedding.elements() + w.final_norm.elements() + (config().tied_head ? 0 : w.head.elements());
  for (const Stage& stage : plan().stages) {
    if (const auto* block = std::get_if<BlockStage>(&stage)) {
      Weights::ForEachInBlock(TensorsOf(w, *block),
                              [&](const std::string&, const TensorView& tensor) { total += tensor.elements(); });
    } else {
      total += std::get<AdapterStage>(stage).lra->parameters();
    }
  }
  return total;
}

int64_t Decoder::BytesPerToken() const {
  const Weights& w = weights();
  int64_t total = w.embedding.bytes() / config().vocab + w.final_norm.bytes() + w.head.bytes();
  for (const Stage& stage : plan().stages) {
    if (const auto* block = std::get_if<BlockStage>(&stage)) {
      Weights::ForEachInBlock(TensorsOf(w, *block),
                              [&](const std::string&, const TensorView& tensor) { total += tensor.bytes(); });
    } else {
      total += std::get<AdapterStage>(stage).lra->parameters() * static_cast<int64_t>(sizeof(float));
    }
  }
  return total;
}

}  // namespace shiftrt
