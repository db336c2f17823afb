// SPDX-License-Identifier: Apache-2.0
// The layers on the CPU.
#include "engine/backend.h"

#include <algorithm>

#include "engine/cpu/kv.h"
#include "engine/ops_layers.h"
#include "kernels/elementwise.h"
#include "kernels/logprob.h"
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

class CpuBackend : public Backend, private OpsLayers {
 public:
  explicit CpuBackend(const BackendSetup& setup)
      : OpsLayers(MakeCpuOps(setup.context, setup.weights), setup.weights, setup.tapped),
        context_(setup.context),
        plan_output_(setup.plan.output),
        output_(setup.plan.Output(*setup.weights)),
        config_(setup.weights->config),
        plan_(setup.plan) {}

  std::unique_ptr<KvStorage> MakeCache(int64_t capacity) override {
    auto cache = std::make_unique<CpuKv>(capacity);
    for (const BlockStage* block : plan_.Blocks()) {
      if (!RunsAttention(block->halves)) continue;
      CpuKv::Slot& slot = cache->slots.emplace_back();
      if (config_.block.MixerOf(block->layer) != Mixer::kAttention) {
        slot.state = Buffer<float>(config_.block.StateFloats());
        slot.rows = Buffer<float>(config_.block.RowFloats());
      } else {
        slot.keys = Matrix<float>(capacity, config_.kv_dim());
        slot.values = Matrix<float>(capacity, config_.kv_dim());
      }
    }
    return cache;
  }

  Rows Run(const LayerCall& call, const std::function<void(Layers&)>& loop) override {
    draw_ = call.draw;
    Begin(call, {.stream = residual_.Get(call.batch.size(), config_.hidden)});
    loop(*this);
    return call.taps_only ? Rows() : Stream();
  }

  int32_t Chosen() override { return chosen_; }
  std::vector<int32_t> ChooseAfter(const Rows& stream, std::span<const ChoosingRow> rows) override;
  Matrix<float> Logits(const Rows& residual) override {
    Matrix<float> logits(residual.count(), config_.vocab);
    ops().MatMul(FinalNorm(residual.host()), output_.head, {}, false, logits.view());
    if (config_.block.logit_cap > 0) SoftCap(context_, config_.block.logit_cap, logits.view());
    return logits;
  }
  std::vector<float> LogProbs(const ScoredRows& scored, std::span<int32_t> argmax) override;

 private:
  void Choose() override {
    const Rows stream = Stream();
    chosen_ = SampleToken(Logits(stream.Slice(stream.count() - 1, 1)).span(), draw_->sampling, draw_->uniform);
  }
  MatrixView<const float> FinalNorm(MatrixView<const float> rows) {
    const MatrixView<float> x = normed_.Get(rows.rows, config_.hidden);
    ops().Norm(rows, {output_.final_norm, output_.final_norm_bias}, x);
    if (config_.block.logit_scale != 1) ops().Scale(config_.block.logit_scale, x);
    return x;
  }

  Context context_;
  std::shared_ptr<const OutputWeights> plan_output_;  // keeps the tensors of output_ alive
  OutputWeights output_;
  const ModelConfig& config_;
  const DepthPlan plan_;  // its blocks with a mixer have a slot each in a cache

  Workspace residual_, normed_;
  Workspace gathered_;  // rows of a stream that are scored together

  const Draw* draw_ = nullptr;  // that of the call in progress
  int32_t chosen_ = -1;
};

std::vector<int32_t> CpuBackend::ChooseAfter(const Rows& stream, std::span<const ChoosingRow> rows) {
  Matrix<float> last(std::ssize(rows), stream.hidden());
  for (int64_t i = 0; i < last.rows(); ++i) std::copy_n(stream.host().row(rows[i].row), last.cols(), last.row(i));
  const Matrix<float> logits = Logits(last.view());
  std::vector<int32_t> chosen(rows.size());
  ParallelForEach(context_, logits.rows(), [&](int64_t i) {
    const Draw& draw = rows[i].draw;
    chosen[i] = SampleToken({logits.row(i), static_cast<size_t>(logits.cols())}, draw.sampling, draw.uniform);
  });
  return chosen;
}

std::vector<float> CpuBackend::LogProbs(const ScoredRows& scored, std::span<int32_t> argmax) {
  const MatrixView<const float> stream = scored.stream.host();
  const OutputHead head(output_.head, config_.block.logit_cap);
  std::vector<float> log_probs(scored.targets.size());
  if (!scored.which) {
    TokenLogProbs(context_, FinalNorm(stream), head, scored.targets, log_probs, argmax);
    return log_probs;
  }
  for (size_t first = 0; first < log_probs.size(); first += kGatheredRows) {
    const size_t count = std::min(kGatheredRows, log_probs.size() - first);
    const MatrixView<float> rows = gathered_.Get(static_cast<int64_t>(count), stream.cols);
    ops().Gather(scored.which->subspan(first, count), stream, rows);
    TokenLogProbs(context_, FinalNorm(rows), head, scored.targets.subspan(first, count),
                  std::span(log_probs).subspan(first, count), argmax.empty() ? argmax : argmax.subspan(first, count));
  }
  return log_probs;
}

}  // namespace

std::unique_ptr<Backend> MakeCpuBackend(const BackendSetup& setup) { return std::make_unique<CpuBackend>(setup); }

}  // namespace shiftrt
