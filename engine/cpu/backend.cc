// SPDX-License-Identifier: Apache-2.0
// The layers on the CPU.
#include "engine/backend.h"

#include <algorithm>
#include <numeric>

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
  struct Slot {
    Matrix<float> keys, values;  // (capacity, kv_dim)
  };
  std::vector<Slot> slots;  // one per block whose attention runs, in plan order
};

class CpuBackend : public Backend, private Layers {
 public:
  explicit CpuBackend(const BackendSetup& setup)
      : context_(setup.context),
        weights_(setup.weights),
        plan_output_(setup.plan.output),
        output_(setup.plan.Output(*weights_)),
        config_(weights_->config),
        spec_(config_.block),
        slots_(setup.plan.attention_blocks()),
        eps_(static_cast<float>(config_.rms_eps)),
        rope_(MakeRopeFrequencies(config_)),
        attention_shape_{.heads = config_.heads,
                         .kv_heads = config_.kv_heads,
                         .head_dim = config_.head_dim,
                         .scale = spec_.attention_scale,
                         .soft_cap = spec_.attention_cap} {}

  std::unique_ptr<KvStorage> MakeCache(int64_t capacity) override {
    auto cache = std::make_unique<CpuKv>();
    for (int64_t i = 0; i < slots_; ++i)
      cache->slots.push_back({Matrix<float>(capacity, config_.kv_dim()), Matrix<float>(capacity, config_.kv_dim())});
    return cache;
  }

  Rows Run(const LayerCall& call, const std::function<void(Layers&)>& loop) override {
    Prepare(call);
    loop(*this);
    return call.taps_only ? Rows() : Stream();
  }

  int32_t Chosen() override { return chosen_; }
  Matrix<float> Logits(const Rows& residual) override {
    Matrix<float> logits(residual.count(), config_.vocab);
    MatMul(context_, FinalNorm(residual.host()), output_.head, {}, false, logits.view());
    if (spec_.logit_cap > 0) SoftCap(context_, spec_.logit_cap, logits.view());
    return logits;
  }
  std::vector<float> LogProbs(const ScoredRows& scored, std::span<int32_t> argmax) override;

 private:
  // Where the call's keys and values go: the cache's rows for the new tokens, or the workspace.
  struct KeysValues {
    MatrixView<float> keys, values;
  };

  void Embed() override {
    shiftrt::Embed(context_, call_->batch.tokens, weights_->embedding, h_, weights_->EmbeddingScale());
  }
  void Resume(const Rows& residual) override {
    const MatrixView<const float> from = residual.host();
    if (from.data == h_.data) return;
    for (int64_t t = 0; t < h_.rows; ++t) std::copy_n(from.row(t), h_.cols, h_.row(t));
  }
  void Attention(const BlockStage& block, int64_t slot) override;
  void Mlp(const BlockStage& block) override;
  void Adapter(const AdapterStage& adapter) override;
  Rows Stream() override { return h_; }
  Rows Update(const BlockStage& block, Halves halves) override;
  Rows Heads() override { return attended_.Get(h_.rows, config_.query_dim()); }
  Rows Activation() override { return gate_.Get(h_.rows, config_.intermediate); }
  void Choose() override {
    chosen_ = SampleToken(Logits(h_.Rows(h_.rows - 1, 1)).span(), call_->draw->sampling, call_->draw->uniform);
  }

  void Prepare(const LayerCall& call);
  KeysValues Place(int64_t slot);
  void JoinBranches(const KeysValues& kv);
  MatrixView<const float> FinalNorm(MatrixView<const float> rows) {
    const MatrixView<float> x = normed_.Get(rows.rows, config_.hidden);
    Norm(rows, output_.final_norm, x);
    return x;
  }
  void Norm(MatrixView<const float> x, const TensorView& weight, MatrixView<float> out) {
    RmsNorm(context_, x, weight, eps_, out, spec_.norm_offset);
  }
  // h += update, which a family may norm first: `update` is then what was added.
  void Add(MatrixView<float> update, const TensorView& norm) {
    if (spec_.update_norms) Norm(update, norm, update);
    AddTo(context_, update, h_);
  }
  MatrixView<float> Hidden(Workspace& workspace) { return workspace.Get(h_.rows, config_.hidden); }

  Context context_;
  std::shared_ptr<const Weights> weights_;
  std::shared_ptr<const OutputWeights> plan_output_;  // keeps the tensors of output_ alive
  OutputWeights output_;
  const ModelConfig& config_;
  const BlockSpec& spec_;
  int64_t slots_;  // of a cache
  float eps_;
  RopeFrequencies rope_;
  AttentionShape attention_shape_;

  Workspace residual_, normed_, query_, keys_, values_, attended_, attention_update_, mlp_update_, gate_, up_;
  Workspace joined_keys_, joined_values_;  // of layout_.joined_rows
  Workspace gathered_;                     // rows of a stream that are scored together

  // Of the call in progress.
  const LayerCall* call_ = nullptr;
  MatrixView<float> h_;  // the stream
  CallLayout layout_;
  RopeAngles angles_;
  std::vector<AttentionSequence> sequences_;  // keys and values are set block by block
  int32_t chosen_ = -1;
};

void CpuBackend::Prepare(const LayerCall& call) {
  call_ = &call;
  h_ = residual_.Get(call.batch.size(), config_.hidden);
  layout_ = LayOut(call);
  sequences_.clear();
  std::vector<int64_t> positions(call.batch.tokens.size());
  for (const CallLayout::Sequence& s : layout_.sequences) {
    std::iota(positions.begin() + s.begin, positions.begin() + s.begin + s.count, s.past);
    sequences_.push_back({s.begin, s.count, s.past, {}, {}});
  }
  angles_ = MakeRopeAngles(context_, positions, rope_.inverse, rope_.scale);
}

// Where a block's keys and values go, which every sequence is told. Without a cache they live for one block.
CpuBackend::KeysValues CpuBackend::Place(int64_t slot) {
  const int64_t count = h_.rows;
  if (call_->cache != nullptr) {
    const CpuKv::Slot& kv = static_cast<CpuKv*>(call_->cache)->slots[slot];
    sequences_[0].keys = kv.keys.view();
    sequences_[0].values = kv.values.view();
    return {kv.keys.view().Rows(call_->past, count), kv.values.view().Rows(call_->past, count)};
  }
  const KeysValues kv{keys_.Get(count, config_.kv_dim()), values_.Get(count, config_.kv_dim())};
  for (AttentionSequence& s : sequences_) {
    s.keys = kv.keys.Rows(s.begin, s.count);
    s.values = kv.values.Rows(s.begin, s.count);
  }
  return kv;
}

// Attention reads a sequence's keys and values in one piece, so a branch gets a copy of what it continues.
void CpuBackend::JoinBranches(const KeysValues& kv) {
  const auto& rows = layout_.joined_rows;
  const int64_t width = kv.keys.cols;
  const MatrixView<float> all_keys = joined_keys_.Get(std::ssize(rows), width),
                          all_values = joined_values_.Get(std::ssize(rows), width);
  ParallelFor(context_, std::ssize(rows), 64, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) {
      std::copy_n(kv.keys.row(rows[i]), width, all_keys.row(i));
      std::copy_n(kv.values.row(rows[i]), width, all_values.row(i));
    }
  });
  for (size_t s = 0; s < sequences_.size(); ++s) {
    const CallLayout::Sequence& sequence = layout_.sequences[s];
    if (sequence.joined < 0) continue;
    sequences_[s].keys = all_keys.Rows(sequence.joined, sequence.past + sequence.count);
    sequences_[s].values = all_values.Rows(sequence.joined, sequence.past + sequence.count);
  }
}

void CpuBackend::Attention(const BlockStage& block, int64_t slot) {
  const BlockWeights& w = TensorsOf(*weights_, block);
  const MatrixView<float> x = Hidden(normed_), q = query_.Get(h_.rows, config_.query_dim()),
                          attended = attended_.Get(h_.rows, config_.query_dim()), update = Hidden(attention_update_);
  const KeysValues kv = Place(slot);
  Norm(h_, w.input_norm, x);
  MatMul(context_, x, w.q, w.q_bias, false, q);
  MatMul(context_, x, w.k, w.k_bias, false, kv.keys);
  MatMul(context_, x, w.v, w.v_bias, false, kv.values);
  if (spec_.qk_norm) {
    RmsNormHeads(context_, q, config_.head_dim, w.q_norm, eps_, spec_.norm_offset);
    RmsNormHeads(context_, kv.keys, config_.head_dim, w.k_norm, eps_, spec_.norm_offset);
  }
  Rope(context_, q, config_.head_dim, angles_);
  Rope(context_, kv.keys, config_.head_dim, angles_);
  JoinBranches(kv);
  AttentionShape shape = attention_shape_;
  shape.window = spec_.Window(block.layer);
  shiftrt::Attention(context_, shape, sequences_, q, attended);
  MatMul(context_, attended, w.o, w.o_bias, false, update);
  Add(update, w.attention_update_norm);
}

void CpuBackend::Mlp(const BlockStage& block) {
  const BlockWeights& w = TensorsOf(*weights_, block);
  const MatrixView<float> x = Hidden(normed_), gate = gate_.Get(h_.rows, config_.intermediate),
                          up = up_.Get(h_.rows, config_.intermediate), update = Hidden(mlp_update_);
  Norm(h_, w.post_norm, x);
  MatMul(context_, x, w.gate, w.gate_bias, false, gate);
  MatMul(context_, x, w.up, w.up_bias, false, up);
  (spec_.activation == Activation::kSilu ? SwiGlu : GeGlu)(context_, gate, up);
  MatMul(context_, gate, w.down, w.down_bias, false, update);
  Add(update, w.mlp_update_norm);
}

void CpuBackend::Adapter(const AdapterStage& adapter) {
  const Lra& lra = *adapter.lra;
  if (lra.low_rank()) {
    ApplyLowRankLra(context_, lra.p.view(), lra.q.view(), lra.b.view(), h_);
  } else {
    ApplyFullLra(context_, lra.a.view(), lra.b.view(), h_);
  }
}

// Of both halves in the attention's place, whose own update nobody asks for any more.
Rows CpuBackend::Update(const BlockStage&, Halves halves) {
  if (halves == Halves::kMlp) return Hidden(mlp_update_);
  if (halves == Halves::kBoth) AddTo(context_, Hidden(mlp_update_), Hidden(attention_update_));
  return Hidden(attention_update_);
}

std::vector<float> CpuBackend::LogProbs(const ScoredRows& scored, std::span<int32_t> argmax) {
  const MatrixView<const float> stream = scored.stream.host();
  const OutputHead head(output_.head, spec_.logit_cap);
  std::vector<float> log_probs(scored.targets.size());
  if (!scored.which) {
    TokenLogProbs(context_, FinalNorm(stream), head, scored.targets, log_probs, argmax);
    return log_probs;
  }
  for (size_t first = 0; first < log_probs.size(); first += kGatheredRows) {
    const size_t count = std::min(kGatheredRows, log_probs.size() - first);
    const MatrixView<float> rows = gathered_.Get(static_cast<int64_t>(count), stream.cols);
    for (size_t i = 0; i < count; ++i)
      std::copy_n(stream.row((*scored.which)[first + i]), stream.cols, rows.row(static_cast<int64_t>(i)));
    TokenLogProbs(context_, FinalNorm(rows), head, scored.targets.subspan(first, count),
                  std::span(log_probs).subspan(first, count), argmax.empty() ? argmax : argmax.subspan(first, count));
  }
  return log_probs;
}

}  // namespace

std::unique_ptr<Backend> MakeCpuBackend(const BackendSetup& setup) { return std::make_unique<CpuBackend>(setup); }

}  // namespace shiftrt
