// SPDX-License-Identifier: Apache-2.0
#include "train/objectives.h"

#include <algorithm>
#include <utility>

#include "models/own_tensors.h"
#include "runtime/check.h"
#include "train/narrow_mlp.h"

namespace shiftrt {

namespace {

LossMix MixOf(TrainingLoss loss) {
  switch (loss) {
    case TrainingLoss::kCrossEntropy: break;
    case TrainingLoss::kDivergence: return {0, 1};
    case TrainingLoss::kBoth: return {0.5f, 0.5f};
  }
  return {1, 0};
}

constexpr int64_t kMostKept = int64_t{256} << 20;  // bytes of the teacher's streams over the text of the validation

// Runs of consecutive layers, as first and last.
std::vector<ReplacedRun> RunsOf(const std::vector<int64_t>& layers) {
  std::vector<ReplacedRun> runs;
  for (const int64_t layer : layers) {
    if (runs.empty() || runs.back().last + 1 != layer) runs.push_back({layer, layer, layer});
    runs.back().last = layer;
  }
  return runs;
}

// The first layer that a stage is or stands for.
int64_t FirstLayer(const Stage& stage) {
  return stage.Visit([](const BlockStage& block) { return block.layer; },
                     [](const AdapterStage& adapter) { return adapter.parts.front().layer; });
}
bool IsAdapter(const Stage& stage) {
  return stage.Visit([](const BlockStage&) { return false; }, [](const AdapterStage&) { return true; });
}

// Leading blocks of both plans that run with the same stored tensors, none of which is trained.
size_t SharedBlocks(const DepthPlan& plan, const DepthPlan& teacher, const TrainedParameters& trained) {
  const auto stored = [](const Stage& stage) { return !IsAdapter(stage) && stage.block().own == nullptr; };
  const size_t most = std::min({trained.LowestStage(plan.stages.size()), plan.stages.size(), teacher.stages.size()});
  size_t shared = 0;
  while (shared < most && stored(plan.stages[shared]) && stored(teacher.stages[shared]) &&
         plan.stages[shared].block().layer == teacher.stages[shared].block().layer &&
         plan.stages[shared].block().halves == teacher.stages[shared].block().halves)
    ++shared;
  return shared;
}

// A copy of the layer, or a part of it, that adds nothing to the stream yet.
BlockStage Silent(const Weights& weights, int64_t layer, Halves halves) {
  BlockStage stage{layer, halves};
  auto own = std::make_shared<OwnBlock>(weights, stage);
  const auto silence = [&](TensorView BlockWeights::*member) {
    const TensorView& tensor = own->weights().*member;
    if (!tensor.empty()) own->Replace(member, std::vector<float>(tensor.elements()));
  };
  for (TensorView BlockWeights::*member :
       {&BlockWeights::o, &BlockWeights::o_bias, &BlockWeights::down, &BlockWeights::down_bias})
    silence(member);
  stage.own = OwnBlock::Share(std::move(own));
  return stage;
}

// Extends a run, whose block is in the plan, to the stages before it that are its correction.
void TakeInCorrection(const std::vector<Stage>& stages, ReplacedRun& run) {
  const auto before = [&](int64_t layer) {
    return run.begin > 0 && FirstLayer(stages[run.begin - 1]) == layer ? &stages[run.begin - 1] : nullptr;
  };
  for (int64_t layer = run.last; layer >= run.first; --layer)
    if (const Stage* stage = before(layer); stage != nullptr && IsAdapter(*stage)) --run.begin;
  const Stage* const stage = before(run.first - 1);
  const bool whole = stage != nullptr && !IsAdapter(*stage) && stage->block().halves == Halves::kBoth;
  if (whole && stage->block().own != nullptr) {
    --run.begin;
    run.input = run.first - 1;
  }
  if (run.begin == run.stage)
    FailUsage(Field("keep_correction"), "nothing stands for layers {} to {} that could be kept", run.first, run.last);
}

}  // namespace

LanguageObjective::LanguageObjective(const Context& context, const std::shared_ptr<const Weights>& weights,
                                     GradientEngine& engine, TrainedParameters parameters, TrainingLoss loss,
                                     const DepthPlan& teacher)
    : engine_(engine), parameters_(std::move(parameters)), mix_(MixOf(loss)) {
  engine_.Set(parameters_);
  if (mix_.divergence == 0) return;
  shared_ = SharedBlocks(engine_.plan(), teacher, parameters_);
  std::vector<Tap> taps;
  if (shared_ > 0)
    taps.push_back(
        {teacher.stages[shared_ - 1].block().layer, TapPoint::kOutput, [this](const Rows& rows, const Batch&) {
           taught_->shared.Set(rows);
           taught_->shared_rows = taught_->shared.rows();
         }});
  teacher_ = std::make_unique<Decoder>(context, weights, teacher, std::move(taps));
}

LossSum LanguageObjective::Step(const TrainingBatch& batch, uint64_t pass, double scale) {
  if (parameters_.lora.dropout > 0) {
    parameters_.lora.step = pass;
    engine_.Set(parameters_);
  }
  Teach(batch.batch, passing_);
  return engine_.Step(batch.batch, batch.weights, scale, KindOf(mix_, passing_), From(passing_));
}

LossSum LanguageObjective::Validate(const TrainingBatch& batch, int64_t pass) {
  const auto measure = [&](const Streams& streams) {
    const LossMix measured = teacher_ == nullptr ? LossMix{1, 0} : LossMix{0, 1};
    return engine_.Loss(batch.batch, batch.weights, KindOf(measured, streams), From(streams));
  };
  if (const auto known = validation_.find(pass); known != validation_.end()) return measure(known->second);
  Teach(batch.batch, passing_);
  if (teacher_ == nullptr) return measure(passing_);
  const Rows& last = passing_.last;
  const int64_t bytes = (shared_ > 0 ? 2 : 1) * last.count() * last.hidden() * int64_t{sizeof(float)};
  if (kept_bytes_ + bytes > kMostKept) return measure(passing_);
  kept_bytes_ += bytes;
  Streams& streams = validation_[pass] = std::exchange(passing_, {});
  streams.kept.Set(streams.last);
  streams.last = streams.kept.rows();
  return measure(streams);
}

void LanguageObjective::Teach(const Batch& batch, Streams& streams) {
  if (teacher_ == nullptr) return;
  taught_ = &streams;
  streams.last = teacher_->Forward(batch);
}

LossKind LanguageObjective::KindOf(const LossMix& mix, const Streams& streams) const {
  return {mix.cross_entropy, mix.divergence, teacher_ != nullptr ? &streams.last : nullptr};
}

ReplacementPlan WithReplacements(const Weights& weights, const DepthPlan& plan, const Replacement& replacement,
                                 bool keep_correction) {
  const Halves halves = replacement.halves;
  if (plan.half_blocks() > 0)
    FailUsage(Field("method"), "replacement: it stands for whole blocks, and of {} blocks of this model one half runs",
              plan.half_blocks());
  ReplacementPlan result;
  result.runs = RunsOf(plan.RemovedLayers(weights.config.layers));
  if (result.runs.empty())
    FailUsage(Field("method"),
              "replacement: the model has no layer to replace: it runs all {} of its checkpoint. Save the pruned model "
              "without its weights, so that it refers to the original",
              weights.config.layers);
  std::vector<Stage>& stages = result.plan.stages;
  result.plan.output = plan.output;
  const auto stand_for = [&](const Stage& stage) {
    return IsAdapter(stage) && std::any_of(result.runs.begin(), result.runs.end(), [&](const ReplacedRun& run) {
             return FirstLayer(stage) >= run.first && FirstLayer(stage) <= run.last;
           });
  };
  size_t next = 0;
  const auto put_runs_before = [&](int64_t layer) {
    for (; next < result.runs.size() && result.runs[next].last < layer; ++next) {
      ReplacedRun& run = result.runs[next];
      run.begin = run.stage = stages.size();
      if (replacement.units > 0) {
        stages.emplace_back(NarrowMlp(weights, run.first, FirstUnits(weights, run, replacement.units)));
      } else {
        stages.emplace_back(keep_correction ? Silent(weights, run.first, halves) : BlockStage{run.first, halves});
      }
      if (keep_correction) TakeInCorrection(stages, run);
    }
  };
  for (const Stage& stage : plan.stages) {
    if (!keep_correction && stand_for(stage)) continue;
    put_runs_before(FirstLayer(stage));
    stages.push_back(stage);
  }
  put_runs_before(weights.config.layers);
  return result;
}

ReplacementObjective::ReplacementObjective(const Context& context, std::shared_ptr<const Weights> weights,
                                           GradientEngine& engine, std::vector<ReplacedRun> runs)
    : engine_(engine), runs_(std::move(runs)), before_(runs_.size()), after_(runs_.size()) {
  std::vector<Tap> taps;
  for (size_t i = 0; i < runs_.size(); ++i) {
    taps.push_back(
        {runs_[i].input, TapPoint::kInput, [this, i](const Rows& rows, const Batch&) { before_[i].Set(rows); }});
    taps.push_back(
        {runs_[i].last, TapPoint::kOutput, [this, i](const Rows& rows, const Batch&) { after_[i].Set(rows); }});
  }
  const DepthPlan original = DepthPlan::Original(weights->config.layers);
  original_ = std::make_unique<Decoder>(context, std::move(weights), original, std::move(taps));
}

LossSum ReplacementObjective::Pass(const Batch& batch, double scale) {
  original_->Forward(batch, /*taps_only=*/true);
  Ops& ops = engine_.ops();
  const int64_t tokens = batch.size(), hidden = original_->config().hidden;
  if (tokens > capacity_) {
    input_ = ops.Allocate(tokens * hidden);
    output_ = ops.Allocate(tokens * hidden);
    gradient_ = ops.Allocate(tokens * hidden);
    capacity_ = tokens;
  }
  const DeviceMatrix<float> input = input_.matrix(tokens, hidden), output = output_.matrix(tokens, hidden),
                            gradient = gradient_.matrix(tokens, hidden);
  LossSum sum;
  for (size_t i = 0; i < runs_.size(); ++i) {
    {
      DeviceMemory copy;
      ops.Copy(ops.Here(before_[i].rows(), copy), input);
    }
    for (size_t stage = runs_[i].begin; stage < runs_[i].stage; ++stage) engine_.Forward(stage, batch, input);
    ops.Copy(input, output);
    engine_.Forward(runs_[i].stage, batch, output);
    {
      DeviceMemory target_copy;
      ops.Copy(ops.Here(after_[i].rows(), target_copy), gradient);
    }
    ops.Scale(-1, gradient);
    ops.AddTo(output, gradient);
    sum += {ops.SumOfSquares(gradient) / static_cast<double>(hidden), static_cast<double>(tokens)};
    if (scale == 0) continue;
    ops.Scale(static_cast<float>(2 * scale / static_cast<double>(hidden)), gradient);
    engine_.Backward(runs_[i].stage, batch, input, gradient, /*stream_gradient=*/false);
  }
  return sum;
}

LossSum ReplacementObjective::Step(const TrainingBatch& batch, uint64_t, double scale) {
  return Pass(batch.batch, scale);
}

LossSum ReplacementObjective::Validate(const TrainingBatch& batch, int64_t) { return Pass(batch.batch, 0); }

}  // namespace shiftrt
