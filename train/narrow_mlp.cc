// SPDX-License-Identifier: Apache-2.0
#include "train/narrow_mlp.h"

#include <algorithm>
#include <map>
#include <utility>

#include "engine/decoder.h"
#include "kernels/widen.h"
#include "models/block_tensors.h"
#include "models/own_tensors.h"
#include "runtime/check.h"
#include "runtime/elements.h"

namespace shiftrt {

namespace {

constexpr int64_t kUnitStep = 32;  // a block of most quantised types
constexpr int64_t kTokens = 8192;

// The gain of the norm before a block's MLP.
std::vector<float> GainOf(const Weights& weights, int64_t layer) {
  const TensorView& norm = weights.blocks[layer].post_norm;
  std::vector<float> gain(weights.config.hidden, 1.0f);
  if (norm.empty()) return gain;
  gain = Widened(norm);
  for (float& value : gain) value += weights.config.block.norm_offset;
  return gain;
}

// The rows `units` of the tensor `member` of their blocks, one after another; a bias is a column.
std::vector<float> RowsOf(const Weights& weights, TensorView BlockWeights::*member, std::span<const MlpUnit> units) {
  std::map<int64_t, std::map<int64_t, size_t>> places;  // by layer and row
  for (size_t i = 0; i < units.size(); ++i) places[units[i].layer][units[i].unit] = i;
  const bool matrix = (weights.blocks[units.front().layer].*member).shape.size() == 2;
  const int64_t columns = matrix ? weights.config.hidden : 1;
  std::vector<float> rows(units.size() * columns);
  for (const auto& [layer, of_layer] : places) {
    const std::vector<float> gain = GainOf(weights, layer), all = Widened(weights.blocks[layer].*member);
    for (const auto& [row, place] : of_layer)
      for (int64_t j = 0; j < columns; ++j) rows[place * columns + j] = all[row * columns + j] * (matrix ? gain[j] : 1);
  }
  return rows;
}

// The squared norms of the columns of a down projection.
std::vector<double> ColumnSquares(const TensorView& down) {
  std::vector<double> squares(down.cols());
  ForEachWidenedRow(down, [&](int64_t, const std::vector<float>& row) {
    for (size_t j = 0; j < row.size(); ++j) squares[j] += static_cast<double>(row[j]) * row[j];
  });
  return squares;
}

// The mean square of each row.
std::vector<double> MeanSquares(const Rows& rows) {
  const HostRows host = rows.ToHost();
  const MatrixView<const float> view = host.view();
  std::vector<double> squares(view.rows);
  for (int64_t i = 0; i < view.rows; ++i)
    for (int64_t j = 0; j < view.cols; ++j)
      squares[i] += static_cast<double>(view(i, j)) * view(i, j) / static_cast<double>(view.cols);
  return squares;
}

// Chooses the units of the MLP at the end of one run.
class UnitChoice {
 public:
  UnitChoice(const Context& context, const std::shared_ptr<const Weights>& weights, const ReplacedRun& run,
             const std::function<void()>& poll)
      : context_(context), weights_(weights), run_(run), poll_(poll) {}

  // In the order of depth. `stages`: those of the plan.
  std::vector<MlpUnit> Choose(const std::vector<Stage>& stages, const std::vector<TrainingBatch>& batches,
                              int64_t count) {
    std::vector<std::pair<double, MlpUnit>> scores;
    const std::vector<KeptRows> inputs = Inputs(stages, batches);
    for (int64_t layer = run_.first; layer <= run_.last; ++layer) {
      const std::vector<double> energies = Energies(layer, inputs, batches),
                                squares = ColumnSquares(weights_->blocks[layer].down);
      for (size_t j = 0; j < energies.size(); ++j)
        scores.push_back({energies[j] * squares[j], {layer, static_cast<int64_t>(j)}});
    }
    std::stable_sort(scores.begin(), scores.end(), [](const auto& a, const auto& b) { return a.first > b.first; });
    std::vector<MlpUnit> chosen;
    for (int64_t i = 0; i < count; ++i) chosen.push_back(scores[i].second);
    std::sort(chosen.begin(), chosen.end());
    return chosen;
  }

 private:
  Decoder Tapped(std::vector<Tap> taps = {}) const {
    return {context_, weights_, DepthPlan::Original(weights_->config.layers), std::move(taps)};
  }

  // The stream that the MLP reads, by batch.
  std::vector<KeptRows> Inputs(const std::vector<Stage>& stages, const std::vector<TrainingBatch>& batches) const {
    KeptRows before;
    Decoder original =
        Tapped({{run_.input, TapPoint::kInput, [&](const Rows& rows, const Batch&) { before.Set(rows); }}});
    Decoder correction = Tapped();
    const std::span<const Stage> corrected = std::span(stages).subspan(run_.begin, run_.stage - run_.begin);
    std::vector<KeptRows> inputs(batches.size());
    for (size_t b = 0; b < batches.size(); ++b) {
      if (poll_) poll_();
      const Batch& batch = batches[b].batch;
      original.Forward(batch, /*taps_only=*/true);
      inputs[b].Set(corrected.empty() ? before.rows() : correction.Resume(batch, before.rows(), corrected));
    }
    return inputs;
  }

  // The sums over the tokens of (a_j / |x|)^2, times the hidden size, of the units of a block.
  std::vector<double> Energies(int64_t layer, const std::vector<KeptRows>& inputs,
                               const std::vector<TrainingBatch>& batches) const {
    std::vector<double> energies(MlpUnits(weights_->blocks[layer]));
    const Stage mlp = BlockStage{layer, Halves::kMlp};
    KeptRows activation;
    Decoder tapped =
        Tapped({{layer, TapPoint::kActivation, [&](const Rows& rows, const Batch&) { activation.Set(rows); }}});
    for (size_t b = 0; b < batches.size() && !energies.empty(); ++b) {
      if (poll_) poll_();
      tapped.Resume(batches[b].batch, inputs[b].rows(), {&mlp, 1});
      const std::vector<double> squares = MeanSquares(inputs[b].rows());
      const HostRows host = activation.rows().ToHost();
      const MatrixView<const float> a = host.view();
      for (int64_t t = 0; t < a.rows; ++t)
        for (int64_t j = 0; j < a.cols && squares[t] > 0; ++j)
          energies[j] += static_cast<double>(a(t, j)) * a(t, j) / squares[t];
    }
    return energies;
  }

  const Context& context_;
  const std::shared_ptr<const Weights>& weights_;
  const ReplacedRun& run_;
  const std::function<void()>& poll_;
};

// The first sequences that a training reads.
std::vector<TrainingBatch> FirstBatches(const TrainingText& text, const FinetuneSettings& settings) {
  std::vector<TrainingBatch> batches;
  ReadingOrder order(text.sequences(), settings.batch, settings.seed);
  int64_t tokens = 0;
  for (int64_t step = 0; step < order.steps_per_epoch() && tokens < kTokens; ++step)
    for (TrainingBatch& batch : PackBatches(text, order.Step(step), settings.pass_tokens)) {
      tokens += batch.batch.size();
      batches.push_back(std::move(batch));
    }
  return batches;
}

}  // namespace

std::vector<MlpUnit> FirstUnits(const Weights& weights, const ReplacedRun& run, int64_t count) {
  const ModelConfig& config = weights.config;
  if (count < kUnitStep || count > config.intermediate || count % kUnitStep != 0)
    FailUsage(Field("replacement"), "mlp:{}: expected a multiple of {} from {} to {}, the width of the model's MLPs",
              count, kUnitStep, kUnitStep, config.intermediate / kUnitStep * kUnitStep);
  const BlockSpec& block = config.block;
  if (block.mixed)
    FailUsage(Field("replacement"),
              "mlp:{}: the model has mixtures of experts, and no MLP can be made of units of several of them", count);
  if (block.update_norms || block.norm_bias || block.shared_norm)
    FailUsage(Field("replacement"), "mlp:{}: the norms of family {} {}, which rows of other blocks cannot take in",
              count, config.family,
              block.update_norms ? "stand after the MLP, too"
              : block.norm_bias  ? "have biases"
                                 : "are shared by attention and MLP");
  std::vector<MlpUnit> units;
  for (int64_t layer = run.first; layer <= run.last; ++layer)
    for (int64_t unit = 0; unit < MlpUnits(weights.blocks[layer]) && std::ssize(units) < count; ++unit)
      units.push_back({layer, unit});
  if (std::ssize(units) < count)
    FailUsage(Field("replacement"), "mlp:{}: the MLPs of layers {} to {} have {} units together", count, run.first,
              run.last, units.size());
  return units;
}

BlockStage NarrowMlp(const Weights& weights, int64_t layer, std::span<const MlpUnit> units) {
  using B = BlockWeights;
  const int64_t hidden = weights.config.hidden, count = std::ssize(units);
  BlockStage stage{layer, Halves::kMlp};
  const auto own = std::make_shared<OwnBlock>(weights, stage);
  for (TensorView B::*member : {&B::gate, &B::up, &B::gate_bias, &B::up_bias}) {
    const TensorView& tensor = own->weights().*member;
    if (tensor.empty()) continue;
    const bool matrix = tensor.shape.size() == 2;
    own->Replace(member, RowsOf(weights, member, units),
                 matrix ? std::vector<int64_t>{count, hidden} : std::vector<int64_t>{count});
  }
  own->Replace(&B::down, std::vector<float>(hidden * count), {hidden, count});
  if (!own->weights().down_bias.empty()) own->Replace(&B::down_bias, std::vector<float>(hidden));
  if (!own->weights().post_norm.empty())
    own->Replace(&B::post_norm, std::vector<float>(hidden, 1 - weights.config.block.norm_offset));
  stage.own = OwnBlock::Share(own);
  return stage;
}

DepthPlan WithChosenUnits(const Context& context, const std::shared_ptr<const Weights>& weights,
                          const ReplacementPlan& replaced, const TrainingText& text, const FinetuneSettings& settings,
                          const std::function<void()>& poll) {
  const std::vector<TrainingBatch> batches = FirstBatches(text, settings);
  DepthPlan plan = replaced.plan;
  for (const ReplacedRun& run : replaced.runs) {
    UnitChoice choice(context, weights, run, poll);
    plan.stages[run.stage] =
        NarrowMlp(*weights, run.first, choice.Choose(replaced.plan.stages, batches, settings.replacement.units));
  }
  return plan;
}

}  // namespace shiftrt
