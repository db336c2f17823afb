// SPDX-License-Identifier: Apache-2.0
#include "train/loop.h"

#include <chrono>
#include <thread>

#include "tests/runtime/refusal.h"
#include "tests/runtime/thread_link.h"
#include "tests/shift/small_model.h"

namespace shiftrt::test {
namespace {

// The loop alone: half the squared distance of the adapter's bias to a point that the tokens of a pass move.
class Distance : public Objective {
 public:
  static constexpr int32_t kSlow = 100;  // validations of sequences that begin with such tokens take their time

  explicit Distance(TrainingArrays& arrays) : arrays_(arrays) {}
  LossSum Step(const TrainingBatch& batch, uint64_t, double scale) override {
    LossSum sum = Validate(batch, 0);
    for (int64_t i = 0; i < arrays_.count; ++i)
      arrays_.gradients.all().host()(0, i) += static_cast<float>(factor * scale * static_cast<double>(batch.targets)) *
                                              (arrays_.values.all().host()(0, i) - Goal(batch));
    return sum;
  }
  LossSum Validate(const TrainingBatch& batch, int64_t) override {
    if (batch.batch.tokens[0] >= kSlow) std::this_thread::sleep_for(std::chrono::milliseconds(20));
    double squares = 0;
    for (int64_t i = 0; i < arrays_.count; ++i)
      squares += 0.5 * std::pow(arrays_.values.all().host()(0, i) - Goal(batch), 2);
    return {squares * static_cast<double>(batch.targets), static_cast<double>(batch.targets)};
  }
  double factor = 1;

 private:
  static float Goal(const TrainingBatch& batch) { return 1 + 0.01f * static_cast<float>(batch.batch.tokens[0]); }
  TrainingArrays& arrays_;
};

class LoopTest : public SmallModel {
 protected:
  LoopTest() {
    auto bias = std::make_shared<Lra>();
    bias->p = Matrix<float>(kWidth, 0);
    bias->q = Matrix<float>(0, kWidth);
    bias->b = Matrix<float>::Zeros(1, kWidth);
    const std::vector<AdapterStage> sites = {{{2}, bias}};
    plan_ = DepthPlan::Corrected(kLayers, sites);
    for (int32_t s = 0; s < 10; ++s) texts_.training.Add(std::vector<int32_t>(4 + s % 3, s), 1);
    for (int32_t s = 0; s < 2; ++s) texts_.validation.Add(std::vector<int32_t>(6, s), 1);
    settings_.batch = 4;
    settings_.pass_tokens = 8;
    settings_.validate_every = 10;
    settings_.method = Method::kAdapters;
  }

  // The trained values.
  std::vector<float> Run(const TrainingObserver& observer = {}, double factor = 1, float initial = 0) {
    const auto ops = MakeOps(context_, model_.weights);
    const Parameters parameters(*model_.weights, plan_, settings_);
    TrainingArrays arrays(*ops, std::vector<float>(parameters.count(), initial));
    Distance objective(arrays);
    objective.factor = factor;
    const CheckpointFile checkpoint(directory_ / "checkpoint", {{"model", "a"}});
    history_ = Train({texts_, parameters, settings_, schedule_, checkpoint, observer, context_}, objective, arrays);
    const float* const values = arrays.values.all().host().data;
    return {values, values + arrays.count};
  }
  void RemoveCheckpoint() const { std::filesystem::remove(directory_ / "checkpoint"); }

  DepthPlan plan_;
  TrainingTexts texts_;
  FinetuneSettings settings_;
  Schedule schedule_ = {Decay::kConstant, 0.05, 0, 40};
  TrainingHistory history_;
};

TEST_F(LoopTest, ComesToTheGoal) {
  const std::vector<float> values = Run();
  for (const float value : values) EXPECT_NEAR(value, 1.045, 0.1);
  EXPECT_EQ(history_.steps(), 40);
  ASSERT_EQ(history_.validations.size(), size_t{5});
  EXPECT_EQ(history_.validations[3].step, 30);
  EXPECT_LT(history_.validations.back().loss, 0.05 * history_.validations.front().loss);
  // Three steps read the ten sequences, which have 49 tokens; the last step four of them.
  EXPECT_GE(history_.tokens, 13 * 49 + 16);
  EXPECT_LE(history_.tokens, 13 * 49 + 24);
  // The first step: AdamW moves every value by the rate, whatever the gradient.
  RemoveCheckpoint();
  schedule_.steps = 1;
  EXPECT_NEAR(Run()[0], 0.05, 1e-6);
  EXPECT_NEAR(history_.gradient_norms[0], 4 * 1.045, 0.2);  // the parameter has sixteen values
}

// A tenth of the time at most goes to validations, whatever was held out; a training that continues reads the same.
TEST_F(LoopTest, ABudgetInSecondsBuysSteps) {
  texts_.validation = {};
  for (int32_t s = 0; s < 200; ++s) texts_.validation.Add(std::vector<int32_t>(6, Distance::kSlow), 1);
  settings_.validate_every = 0;
  settings_.budget.seconds = 2;  // 0.1 s per validation, of 20 ms per sequence
  int64_t stop = 5;
  const auto stops = [&](const TrainingHistory& history, int64_t) {
    if (history.steps() == stop) throw Interrupted();
  };
  EXPECT_THROW(Run(stops), Interrupted);
  stop = -1;
  Run(stops);
  ASSERT_EQ(history_.validations.size(), size_t{2});
  EXPECT_GE(history_.validation_sequences, 1);
  EXPECT_LE(history_.validation_sequences, 5);
  EXPECT_GT(history_.steps(), 5);
  EXPECT_LE(history_.validation_seconds, 0.1 * history_.validation_sequences);
  RemoveCheckpoint();
  settings_.budget.seconds = 0;
  texts_.validation = {};
  for (int32_t s = 0; s < 20; ++s) texts_.validation.Add(std::vector<int32_t>(6, s), 1);
  Run();
  EXPECT_EQ(history_.validation_sequences, 20) << "without such a budget, all that is held out is read";
}

// A step has two passes, which two processes share, while a third one has none.
TEST_F(LoopTest, ProcessesShareTheWorkToTheSameBits) {
  const std::vector<float> alone = Run();
  const TrainingHistory history = history_;
  for (const int size : {2, 3}) {
    RemoveCheckpoint();
    InProcesses(size, [&](const std::shared_ptr<Processes>& processes) {
      Context context = context_;
      context.processes = processes;
      const auto ops = MakeOps(context, model_.weights);
      const Parameters parameters(*model_.weights, plan_, settings_);
      TrainingArrays arrays(*ops, std::vector<float>(parameters.count(), 0));
      Distance objective(arrays);
      const CheckpointFile checkpoint(directory_ / "checkpoint", {{"model", "a"}});
      const TrainingHistory found =
          Train({texts_, parameters, settings_, schedule_, checkpoint, {}, context}, objective, arrays);
      const float* const values = arrays.values.all().host().data;
      EXPECT_EQ(std::vector<float>(values, values + arrays.count), alone);
      EXPECT_EQ(found.losses, history.losses);
      ASSERT_EQ(found.validations.size(), history.validations.size());
      EXPECT_EQ(found.validations.back().loss, history.validations.back().loss);
    });
  }
}

TEST_F(LoopTest, StoppedAnywhereItContinuesToTheSameBits) {
  const std::vector<float> whole = Run();
  const TrainingHistory history = history_;
  RemoveCheckpoint();
  int64_t stop = 3;
  for (;; stop += 7) {
    try {
      const std::vector<float> values = Run([&](const TrainingHistory& now, int64_t) {
        if (now.steps() == stop) throw Interrupted();
      });
      EXPECT_EQ(values, whole);
      break;
    } catch (const Interrupted&) {
    }
  }
  EXPECT_GT(stop, 35);
  EXPECT_EQ(history_.losses, history.losses);
  EXPECT_EQ(history_.gradient_norms, history.gradient_norms);
  ASSERT_EQ(history_.validations.size(), history.validations.size());
  for (size_t i = 0; i < history.validations.size(); ++i)
    EXPECT_EQ(history_.validations[i].loss, history.validations[i].loss);
}

TEST_F(LoopTest, AnyExceptionOfTheObserverLeavesACheckpoint) {
  const std::vector<float> whole = Run();
  RemoveCheckpoint();
  EXPECT_THROW(Run([](const TrainingHistory& now, int64_t) {
                 if (now.steps() == 13) throw std::runtime_error("stopped");
               }),
               std::runtime_error);
  EXPECT_EQ(Run(), whole);
  EXPECT_EQ(history_.resumed, 13);
}

// At this rate the values jump over the goal, so the loss falls and rises again.
TEST_F(LoopTest, TheBestStateIsKeptAndContinuesToTheSameBits) {
  schedule_.rate = 1.5;
  schedule_.steps = 6;
  settings_.validate_every = 1;
  const std::vector<float> last = Run();
  const TrainingHistory history = history_;
  const int64_t best = history.BestStep();
  ASSERT_LT(best, 6);
  RemoveCheckpoint();
  settings_.keep_best = true;
  const std::vector<float> kept = Run();
  EXPECT_NE(kept, last);
  // They are the values that a training of so many steps ends with.
  RemoveCheckpoint();
  settings_.keep_best = false;
  schedule_.steps = std::max<int64_t>(best, 1);
  if (best > 0) {
    EXPECT_EQ(kept, Run());
  } else {
    EXPECT_EQ(kept, std::vector<float>(kept.size(), 0));
  }
  // Stopped after the best state, the training still has it.
  RemoveCheckpoint();
  settings_.keep_best = true;
  schedule_.steps = 6;
  EXPECT_THROW(Run([&](const TrainingHistory& now, int64_t) {
                 if (now.steps() == 5 && now.validations.back().step == 5) throw Interrupted();
               }),
               Interrupted);
  EXPECT_EQ(Run(), kept);
  EXPECT_EQ(history_.resumed, 5);
  EXPECT_EQ(Run(), kept);  // continues a finished training
}

TEST_F(LoopTest, ValidationsMayBeSharesOfTheTraining) {
  settings_.validate_every = 0.1;
  schedule_.steps = 30;
  Run();
  std::vector<int64_t> at;
  for (const auto& validation : history_.validations) at.push_back(validation.step);
  EXPECT_EQ(at, (std::vector<int64_t>{0, 3, 6, 9, 12, 15, 18, 21, 24, 27, 30}));
}

TEST_F(LoopTest, ABudgetInSecondsEndsTheTraining) {
  schedule_ = {Decay::kLinear, 0.05, 0, 1};
  settings_.budget.seconds = 0.3;
  settings_.warmup = 0.1;
  settings_.validate_every = 0.25;
  int64_t planned = 0;
  Run([&](const TrainingHistory&, int64_t steps) { planned = steps; });
  EXPECT_EQ(planned, history_.steps());
  EXPECT_GT(history_.steps(), 1);
  EXPECT_GE(history_.validations.size(), size_t{3});
  EXPECT_EQ(history_.validations.back().step, history_.steps());
  const double spent = history_.seconds + history_.validation_seconds;
  EXPECT_GT(spent, 0.1);
  EXPECT_LT(spent, 3);
  // The time before an interruption counts.
  const int64_t steps = history_.steps();
  Run();
  EXPECT_EQ(history_.steps(), steps);
  // At least one step is taken.
  RemoveCheckpoint();
  settings_.budget.seconds = 1e-9;
  Run();
  EXPECT_EQ(history_.steps(), 1);
}

TEST_F(LoopTest, StopsWhereNumbersFail) {
  settings_.clip = 0;
  settings_.checkpoint_seconds = 0;  // after every step
  int64_t steps = 0;
  const std::string message = Refusal([&] { Run({}, 1, std::numeric_limits<float>::quiet_NaN()); });
  EXPECT_NE(message.find("loss"), std::string::npos) << message;
  EXPECT_NE(message.find("Lower the learning rate (0.05)"), std::string::npos) << message;
  EXPECT_NE(message.find("no checkpoint was written yet"), std::string::npos) << message;

  // Against the gradient, the loss rises; the checkpoint of the last step before stands.
  const std::string diverged =
      Refusal([&] { Run([&](const TrainingHistory& now, int64_t) { steps = now.steps(); }, -1); });
  EXPECT_NE(diverged.find("the training diverges"), std::string::npos) << diverged;
  EXPECT_NE(diverged.find(fmt::format("of step {} stands", steps)), std::string::npos) << diverged;
  EXPECT_GE(steps, 9);
  EXPECT_EQ(CheckpointFile(directory_ / "checkpoint", {{"model", "a"}}).Read(kWidth)->history.steps(), steps);
}

// The mean of many sequences is not compared with one that is easier than most, with held-out text or without.
TEST_F(LoopTest, AnEasyFirstSequenceIsNoDivergence) {
  texts_ = {};
  for (int32_t s = 0; s < 10; ++s) texts_.training.Add(std::vector<int32_t>(4, s % 2 == 0 ? 0 : 15), 1);
  texts_.validation = {};
  settings_.batch = 1;
  settings_.pass_tokens = 4;  // a sequence each
  schedule_ = {Decay::kConstant, 1e-6, 0, 70};
  int easy = 0;
  for (settings_.seed = 0; settings_.seed < 6; ++settings_.seed) {
    Run();
    RemoveCheckpoint();
    easy += history_.losses.front() + 1 < history_.MeanLoss(0, 70) ? 1 : 0;
  }
  EXPECT_GT(easy, 0);
}

// A training too short for the mean of its losses is judged by the held-out loss at its end.
TEST_F(LoopTest, AShortTrainingThatDivergesIsRefused) {
  settings_.batch = 1;
  schedule_.steps = 8;
  schedule_.rate = 0.5;
  const std::string diverged = Refusal([&] { Run({}, -1); });
  EXPECT_NE(diverged.find("step 8: the training diverges: the held-out loss is"), std::string::npos) << diverged;
}

}  // namespace
}  // namespace shiftrt::test
