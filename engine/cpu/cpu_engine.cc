// The layer loop on the CPU: prefill, decode, scoring and calibration all run through CpuEngine::Run.
#include <algorithm>
#include <cmath>
#include <numeric>

#include "engine/engine.h"
#include "kernels/attention.h"
#include "kernels/elementwise.h"
#include "kernels/logprob.h"
#include "kernels/lra.h"
#include "kernels/matmul.h"
#include "kernels/rmsnorm.h"
#include "kernels/rope.h"
#include "runtime/parallel.h"

namespace shiftrt {

namespace {

constexpr size_t kGatheredRows = 512;  // rows that are copied together for the head at once

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

struct CpuKv : KvStorage {
  struct Layer {
    Matrix<float> keys, values;  // (capacity, kv_dim)
  };
  std::vector<Layer> layers;  // one a block stage, in plan order
};

class CpuEngine : public Engine {
 public:
  explicit CpuEngine(const EngineSetup& setup)
      : context(setup.context),
        weights(setup.weights),
        plan(setup.plan),
        taps(setup.taps),
        rope(MakeRopeFrequencies(weights->config)),
        attention_shape{weights->config.heads, weights->config.kv_heads, weights->config.head_dim,
                        1.0f / std::sqrt(static_cast<float>(weights->config.head_dim))} {}

  std::unique_ptr<KvStorage> MakeCache(int64_t capacity) override {
    auto cache = std::make_unique<CpuKv>();
    for (int64_t i = 0; i < plan.blocks(); ++i)
      cache->layers.push_back(
          {Matrix<float>(capacity, weights->config.kv_dim()), Matrix<float>(capacity, weights->config.kv_dim())});
    return cache;
  }
  Rows Run(const EngineCall& call) override;

  int32_t RunAndSample(const EngineCall& call, const SamplingOptions& sampling, double uniform) override {
    const Rows h = Run(call);
    return SampleToken(Logits(h.Slice(h.count() - 1, 1)).span(), sampling, uniform);
  }

  Matrix<float> Logits(const Rows& rows) override {
    Matrix<float> logits(rows.count(), weights->config.vocab);
    MatMul(context, FinalNorm(rows.host()), weights->head, {}, false, logits.view());
    return logits;
  }
  std::vector<float> LogProbs(const ScoredRows& scored, std::span<int32_t> argmax) override;

 private:
  Context context;
  std::shared_ptr<const Weights> weights;
  DepthPlan plan;
  TapSet taps;
  RopeFrequencies rope;
  AttentionShape attention_shape;

  Workspace residual, normed, query, keys, values, attended, update, mlp_update, gate, up;
  RopeAngles angles;                         // of the current call, as are
  CallLayout layout;                         // this
  std::vector<AttentionSequence> sequences;  // and these; keys and values are set block by block
  Workspace joined_keys, joined_values;      // of layout.joined_rows
  Workspace gathered;                        // rows of a stream that are scored together

  // Where this call's keys and values live: the cache's rows for the new tokens, or the workspace.
  struct KeysValues {
    MatrixView<float> keys, values;
  };

  void SetPositions(const EngineCall& call);
  KeysValues Place(const EngineCall& call, CpuKv::Layer* slot);
  void JoinBranches(const KeysValues& kv);
  void Attend(const BlockWeights& block, MatrixView<float> h, const KeysValues& kv);
  void FeedForward(const BlockWeights& block, MatrixView<float> h, bool add_to_update);
  MatrixView<const float> FinalNorm(MatrixView<const float> rows) {
    const MatrixView<float> x = normed.Get(rows.rows, weights->config.hidden);
    RmsNorm(context, rows, weights->final_norm, static_cast<float>(weights->config.rms_eps), x);
    return x;
  }
};

void CpuEngine::SetPositions(const EngineCall& call) {
  std::vector<int64_t> positions(call.batch.tokens.size());
  layout = LayOut(call);
  sequences.clear();
  for (const CallLayout::Sequence& s : layout.sequences) {
    std::iota(positions.begin() + s.begin, positions.begin() + s.begin + s.count, s.past);
    sequences.push_back({s.begin, s.count, s.past, {}, {}});
  }
  angles = MakeRopeAngles(context, positions, rope.inverse, rope.scale);
}

// Where a block's keys and values go, which every sequence is told. Without a slot of a cache they live for one block.
CpuEngine::KeysValues CpuEngine::Place(const EngineCall& call, CpuKv::Layer* slot) {
  const int64_t count = call.batch.size();
  if (slot != nullptr) {
    sequences[0].keys = slot->keys.view();
    sequences[0].values = slot->values.view();
    return {slot->keys.view().Rows(call.past, count), slot->values.view().Rows(call.past, count)};
  }
  const KeysValues kv{keys.Get(count, weights->config.kv_dim()), values.Get(count, weights->config.kv_dim())};
  for (AttentionSequence& s : sequences) {
    s.keys = kv.keys.Rows(s.begin, s.count);
    s.values = kv.values.Rows(s.begin, s.count);
  }
  return kv;
}

// Attention reads a sequence's keys and values in one piece, so a branch gets a copy of what it continues.
void CpuEngine::JoinBranches(const KeysValues& kv) {
  const auto& rows = layout.joined_rows;
  const int64_t width = kv.keys.cols;
  const MatrixView<float> all_keys = joined_keys.Get(std::ssize(rows), width),
                          all_values = joined_values.Get(std::ssize(rows), width);
  ParallelFor(context, std::ssize(rows), 64, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) {
      std::copy_n(kv.keys.row(rows[i]), width, all_keys.row(i));
      std::copy_n(kv.values.row(rows[i]), width, all_values.row(i));
    }
  });
  for (size_t s = 0; s < sequences.size(); ++s) {
    const CallLayout::Sequence& sequence = layout.sequences[s];
    if (sequence.joined < 0) continue;
    sequences[s].keys = all_keys.Rows(sequence.joined, sequence.past + sequence.count);
    sequences[s].values = all_values.Rows(sequence.joined, sequence.past + sequence.count);
  }
}

// h += attention(norm(h)); the sum's second term stays in `update`.
void CpuEngine::Attend(const BlockWeights& block, MatrixView<float> h, const KeysValues& kv) {
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
  JoinBranches(kv);
  Attention(context, attention_shape, sequences, q, attention);
  MatMul(context, attention, block.o, block.o_bias, false, out);
  AddTo(context, out, h);
}

// h += mlp(norm(h)); with `add_to_update` the second term is added to `update` too, which then holds the block's Delta.
void CpuEngine::FeedForward(const BlockWeights& block, MatrixView<float> h, bool add_to_update) {
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

Rows CpuEngine::Run(const EngineCall& call) {
  const ModelConfig& config = weights->config;
  const int64_t count = call.batch.size();
  SetPositions(call);
  const MatrixView<float> h = residual.Get(count, config.hidden);
  int64_t taps_left = taps.size();
  if (call.residual == nullptr) {
    Embed(context, call.batch.tokens, weights->embedding, h);
  } else if (const MatrixView<const float> from = call.residual->host(); h.data != from.data) {
    for (int64_t t = 0; t < count; ++t) std::copy_n(from.row(t), h.cols, h.row(t));
  }
  const auto fire = [&](int64_t layer, TapPoint point, MatrixView<const float> rows) {
    taps_left -= taps.Fire(layer, point, rows, call.batch);
  };
  auto* const cache = static_cast<CpuKv*>(call.cache);
  size_t cache_layer = 0;
  const auto run_adapter = [&](const AdapterStage& stage) {
    const Lra& lra = *stage.lra;
    if (lra.low_rank()) {
      ApplyLowRankLra(context, lra.p.view(), lra.q.view(), lra.b.view(), h);
    } else {
      ApplyFullLra(context, lra.a.view(), lra.b.view(), h);
    }
  };
  const auto run_block = [&](const BlockStage& stage) {
    const int64_t layer = stage.layer;
    fire(layer, TapPoint::kInput, h);
    if (call.taps_only && taps_left == 0) return;
    const KeysValues kv = Place(call, cache != nullptr ? &cache->layers[cache_layer++] : nullptr);
    const BlockWeights& block = TensorsOf(*weights, stage);
    const bool update_tapped = taps.Has(layer, TapPoint::kUpdate);
    Attend(block, h, kv);
    FeedForward(block, h, update_tapped);
    fire(layer, TapPoint::kMlp, mlp_update.Get(count, config.hidden));
    if (update_tapped) fire(layer, TapPoint::kUpdate, update.Get(count, config.hidden));
    fire(layer, TapPoint::kOutput, h);
  };
  for (const Stage& stage : call.stages) {
    if (call.taps_only && taps_left == 0) return {};
    stage.Visit(run_block, run_adapter);
  }
  if (call.residual == nullptr) fire(config.layers, TapPoint::kInput, h);
  if (call.taps_only) return {};
  return h;
}

std::vector<float> CpuEngine::LogProbs(const ScoredRows& scored, std::span<int32_t> argmax) {
  const MatrixView<const float> stream = scored.stream.host();
  std::vector<float> log_probs(scored.targets.size());
  if (!scored.which) {
    TokenLogProbs(context, FinalNorm(stream), weights->head, scored.targets, log_probs, argmax);
    return log_probs;
  }
  for (size_t first = 0; first < log_probs.size(); first += kGatheredRows) {
    const size_t count = std::min(kGatheredRows, log_probs.size() - first);
    const MatrixView<float> rows = gathered.Get(static_cast<int64_t>(count), stream.cols);
    for (size_t i = 0; i < count; ++i)
      std::copy_n(stream.row((*scored.which)[first + i]), stream.cols, rows.row(static_cast<int64_t>(i)));
    TokenLogProbs(context, FinalNorm(rows), weights->head, scored.targets.subspan(first, count),
                  std::span(log_probs).subspan(first, count), argmax.empty() ? argmax : argmax.subspan(first, count));
  }
  return log_probs;
}

}  // namespace

std::unique_ptr<Engine> MakeCpuEngine(const EngineSetup& setup) { return std::make_unique<CpuEngine>(setup); }

}  // namespace shiftrt
