// SPDX-License-Identifier: Apache-2.0
#include "shift/criteria/taylor.h"

#include <algorithm>
#include <cmath>

#include "engine/gradients.h"
#include "engine/loss.h"
#include "engine/ops.h"
#include "runtime/check.h"
#include "runtime/host_memory.h"
#include "shift/criteria/probes.h"
#include "shift/measure/loss.h"

namespace shiftrt {

namespace {

// The weights that count: projections, and norms of the stream. Biases and norms of heads do not, as in `magnitude`.
bool Counts(const BlockTensor& row) {
  const auto kind = row.kind;
  return kind == BlockTensor::Kind::kMatrix || (kind == BlockTensor::Kind::kNorm && !row.NormsHeads());
}

int64_t TokensOf(const std::vector<Batch>& batches) {
  int64_t tokens = 0;
  for (const Batch& batch : batches) tokens += batch.size();
  return tokens;
}

std::span<float> Floats(MatrixView<float> dense) { return {dense.data, static_cast<size_t>(dense.rows * dense.cols)}; }

// Gradients of one block at a time, all in one array.
class BlockGradient {
 public:
  BlockGradient(GradientEngine& engine, const Weights& weights) : engine_(engine), weights_(weights) {
    for (const BlockWeights& block : weights.blocks) {
      int64_t elements = 0;
      ForEachTensor(block, [&](const BlockTensor& row, const TensorView& tensor) {
        if (Counts(row)) elements += tensor.elements();
      });
      size_ = std::max(size_, elements);
    }
    memory_ = engine.Allocate(size_);
  }

  // Zeroed, and the one that the engine adds to.
  void Begin(int64_t layer) {
    engine_.ops().Zero(memory_.all());
    layer_ = layer;
    TrainedParameters trained;
    trained.stages.resize(weights_.blocks.size());
    StageParameters& of = trained.stages[layer];
    of.tensors.resize(BlockTensors().size());
    of.experts.resize(weights_.blocks[layer].experts.size());
    ForEach([&](const BlockTensor& row, const TensorView&, DeviceMatrix<float> gradient) {
      if (row.expert < 0) {
        of.tensors[&row - BlockTensors().data()].gradient = gradient;
      } else {
        of.experts[row.expert].*ExpertGradients::Of(row) = gradient;
      }
    });
    engine_.Set(std::move(trained));
  }
  double Score(Halves halves) const {
    double score = 0;
    ForEach([&](const BlockTensor& row, const TensorView& tensor, DeviceMatrix<float> gradient) {
      if (row.half == Halves::kMlp ? !RunsMlp(halves) : !RunsAttention(halves)) return;
      score += engine_.ops().SumOfAbsoluteProducts(tensor, gradient);
    });
    return score;
  }

 private:
  template <typename Visit>
  void ForEach(const Visit& visit) const {
    int64_t next = 0;
    ForEachTensor(weights_.blocks[layer_], [&](const BlockTensor& row, const TensorView& tensor) {
      if (!Counts(row)) return;
      const bool vector = row.kind == BlockTensor::Kind::kNorm;
      const DeviceMatrix<float> gradient =
          memory_.Part(next, vector ? 1 : tensor.rows(), vector ? tensor.elements() : tensor.cols());
      next += tensor.elements();
      visit(row, tensor, gradient);
    });
  }

  GradientEngine& engine_;
  const Weights& weights_;
  int64_t size_ = 0, layer_ = 0;
  DeviceMemory memory_;
};

}  // namespace

TaylorProbe::TaylorProbe(const CriterionInput& input, Progress& progress)
    : input_(input), progress_(progress), layers_(input.weights->config.layers), completed_(layers_ + 1) {}

void TaylorProbe::Want(int64_t tokens) {
  std::vector<Batch> batches = FirstSequences(*input_.calibration, tokens);
  const int64_t count = TokensOf(batches);
  // The streams, and the gradient of one.
  const int64_t a_token = 4 * input_.weights->config.hidden * (layers_ + 2), memory = UsableMemory(input_.context);
  if (count * a_token > memory)
    FailUsage(Field("prune"),
              "criterion taylor: the streams of {} tokens before {} blocks take {:.2f} GB, and {:.2f} GB may be used: "
              "choose fewer with tokens={} (whole samples are taken)",
              count, layers_, static_cast<double>(count * a_token) * 1e-9, static_cast<double>(memory) * 1e-9,
              std::max<int64_t>(1, memory / a_token));
  if (count > TokensOf(batches_)) batches_ = std::move(batches);
}

void TaylorProbe::Begin(Collector&, int64_t, int64_t) {
  received_ = completed_;
  const int64_t tokens = TokensOf(batches_);
  while (std::ssize(streams_) <= layers_) streams_.emplace_back(tokens, input_.weights->config.hidden);
}

std::vector<Tap> TaylorProbe::Taps() {
  std::vector<Tap> taps;
  for (int64_t layer = 0; layer <= layers_; ++layer)
    taps.push_back({layer, TapPoint::kInput, [this, layer](const Rows& h, const Batch&) { Take(layer, h); }});
  return taps;
}

// The batches come in their order. Of the last one that is wanted, only the first sequences may be.
void TaylorProbe::Take(int64_t layer, const Rows& h) {
  Received& received = received_[layer];
  if (received.batches == std::ssize(batches_)) return;
  const int64_t count = batches_[received.batches].size();
  const HostRows host = h.Slice(0, count).ToHost();
  const MatrixView<const float> rows = host.view();
  for (int64_t t = 0; t < count; ++t) std::copy_n(rows.row(t), rows.cols, streams_[layer].row(received.rows + t));
  ++received.batches;
  received.rows += count;
}

std::vector<double> TaylorProbe::Scores(int64_t tokens, Unit unit) {
  const std::vector<Batch> batches = FirstSequences(*input_.calibration, tokens);
  const int64_t predicted = PredictedTokens(batches), hidden = input_.weights->config.hidden;
  Check(predicted > 0, "criterion taylor: the calibration text has no token that another one precedes");
  GradientEngine engine(input_.context.WithGpu(0), input_.weights, DepthPlan::Original(layers_));
  Ops& ops = engine.ops();
  BlockGradient block(engine, *input_.weights);
  const auto largest = std::ranges::max(batches, {}, &Batch::size).size();
  const auto stream_memory = engine.Allocate(largest * hidden), gradient_memory = engine.Allocate(largest * hidden);
  const Matrix<float> gradients(TokensOf(batches), hidden);

  progress_.Begin("gradients", (layers_ + 1) * std::ssize(batches));
  // Calls pass(batch, stream, gradient) for each batch with the stream before `layer` and the gradient of that after
  // it, which becomes that of the stream before it.
  const auto for_each_batch = [&](int64_t layer, const auto& pass) {
    int64_t first = 0;
    for (const Batch& batch : batches) {
      const DeviceMatrix<float> stream = stream_memory.matrix(batch.size(), hidden),
                                gradient = gradient_memory.matrix(batch.size(), hidden);
      const MatrixView<float> kept = gradients.view().Rows(first, batch.size());
      ops.FromHost(Floats(Stream(layer, batch, first)), stream);
      if (layer < layers_) ops.FromHost(Floats(kept), gradient);
      pass(batch, stream, gradient);
      ops.ToHost(gradient, Floats(kept));
      first += batch.size();
      progress_.Advance(1);
    }
  };
  LossSum loss;
  for_each_batch(layers_, [&](const Batch& batch, DeviceMatrix<float> stream, DeviceMatrix<float> gradient) {
    loss += engine.Head(batch, {}, 1.0 / static_cast<double>(predicted), stream, gradient);
  });
  Check(std::isfinite(loss.loss),
        "criterion taylor: the loss of the calibration text is {}: {} contains NaN or infinity", loss.loss,
        input_.weights->directory.string());
  std::vector<double> scores(UnitsOf(unit, layers_));
  for (int64_t layer = layers_; layer-- > 0;) {
    block.Begin(layer);
    for_each_batch(layer, [&](const Batch& batch, DeviceMatrix<float> stream, DeviceMatrix<float> gradient) {
      engine.Backward(static_cast<size_t>(layer), batch, stream, gradient, /*stream_gradient=*/layer > 0);
    });
    const int64_t of_a_block = std::ssize(scores) / layers_;
    for (int64_t i = layer * of_a_block; i < (layer + 1) * of_a_block; ++i)
      scores[i] = block.Score(PartOf(unit, i).halves);
  }
  progress_.End();
  return scores;
}

void PlugTaylor(const CriterionTask& task) {
  CheckGradientType(task.input.context, *task.input.weights);  // not after the pass
  task.probes.Get<TaylorProbe>().Want(task.spec.Option("tokens"));
}

std::vector<double> TaylorScores(const CriterionTask& task) {
  return task.probes.Get<TaylorProbe>().Scores(task.spec.Option("tokens"), task.quota.unit());
}

}  // namespace shiftrt
