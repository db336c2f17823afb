// SPDX-License-Identifier: Apache-2.0
#include "train/loop.h"

#include <chrono>
#include <cmath>
#include <numeric>

#include "runtime/check.h"
#include "runtime/files.h"
#include "runtime/stopwatch.h"
#include "train/gradient_sum.h"

namespace shiftrt {

namespace {

class Loop {
 public:
  Loop(const TrainingJob& job, Objective& objective, TrainingArrays& arrays)
      : job_(job),
        options_(job.options),
        objective_(objective),
        arrays_(arrays),
        processes_(*job.processes),
        sum_(arrays, processes_),
        order_(job.texts.training.sequences(), job.options.batch, job.options.seed) {
    std::vector<int64_t> all(job.texts.validation.sequences());
    std::iota(all.begin(), all.end(), 0);
    validation_ = PackBatches(job.texts.validation, all, options_.pass_tokens);
  }

  TrainingHistory Run() {
    std::optional<TrainingState> state = job_.checkpoint.Read(arrays_.count);
    processes_.CheckSame(
        fmt::format("state of {}, which is to be in a directory of all hosts,", job_.checkpoint.path().string()),
        state ? fmt::format("{} steps", state->history.steps()) : "no such file");
    if (state) {
      arrays_.Set(*state);
      state_ = std::move(*state);
      saved_ = history().steps();
    }
    try {
      for (;;) {
        if (ValidationIsDue()) Validate();
        if (history().steps() == options_.schedule.steps) break;
        Step();
        if (processes_.OfFirst(Clock::now() - written_ >= std::chrono::duration<double>(options_.checkpoint_seconds)))
          Save();
      }
      Save();
    } catch (const Interrupted&) {
      SaveUnsaved();
      throw;
    } catch (const PeerFailed&) {
      SaveUnsaved();
      throw;
    }
    return history();
  }

 private:
  using Clock = std::chrono::steady_clock;

  TrainingHistory& history() { return state_.history; }

  void Step() {
    const int64_t step = history().steps();
    LossSum sum;
    int64_t tokens = 0;
    double seconds = 0, squares = 0;
    {
      const Stopwatch watch(seconds);
      const std::vector<TrainingBatch> batches =
          PackBatches(job_.texts.training, order_.Step(step), options_.pass_tokens);
      double weight = 0;
      for (const TrainingBatch& batch : batches) weight += static_cast<double>(objective_.Weight(batch));
      std::vector<LossSum> losses(batches.size());
      sum_.Begin(std::ssize(batches));
      processes_.InRounds(std::ssize(batches), [&](const Round& round) {
        CheckInterrupted();
        if (round.mine) {
          const int64_t pass = *round.mine;
          arrays_.ops.Zero(arrays_.gradients.all());
          losses[pass] = objective_.Step(batches[pass], (static_cast<uint64_t>(step) << 20) + pass, 1 / weight);
          Count(batches[pass]);
        }
        sum_.EndRound(round.present);
      });
      gradients_ = sum_.Finish();
      Share(losses);
      for (size_t i = 0; i < batches.size(); ++i) {
        sum += losses[i];
        tokens += batches[i].batch.size();
      }
      squares = arrays_.ops.SumOfSquares(gradients_.all());
      CheckNumbers(step, sum.loss / sum.weight, squares);
      Update(step, std::sqrt(squares));
    }
    history().losses.push_back(sum.loss / sum.weight);
    history().gradient_norms.push_back(std::sqrt(squares));
    history().tokens += tokens;
    history().seconds += seconds;
    CheckDivergence();
    if (job_.observer) job_.observer(history(), options_.schedule.steps);
  }

  // Makes the losses of this process's passes known to all.
  void Share(std::vector<LossSum>& losses) {
    processes_.Share(
        std::ssize(losses), [&](Packer& out, int64_t i) { out.Put(losses[i]); },
        [&](Unpacker& in, int64_t i) { losses[i] = in.Get<LossSum>(); });
  }

  void Count(const TrainingBatch& batch) {
    ++processes_.work.batches;
    processes_.work.tokens += batch.batch.size();
  }

  void Update(int64_t step, double norm) {
    AdamW settings;
    settings.rate = static_cast<float>(options_.schedule.Rate(step));
    settings.beta1 = options_.beta1;
    settings.beta2 = options_.beta2;
    settings.epsilon = options_.epsilon;
    settings.gradient_scale = options_.clip > 0 && norm > options_.clip ? static_cast<float>(options_.clip / norm) : 1;
    settings.step = step + 1;
    const auto part = [](const DeviceMemory& array, int64_t begin, int64_t end) {
      return array.Part(begin, 1, end - begin);
    };
    const auto update = [&](int64_t begin, int64_t end, float decay) {
      if (begin == end) return;
      settings.decay = decay;
      arrays_.ops.AdamWStep(settings, part(gradients_, begin, end), part(arrays_.values, begin, end),
                            part(arrays_.first, begin, end), part(arrays_.second, begin, end));
    };
    update(0, job_.parameters.decaying(), options_.weight_decay);
    update(job_.parameters.decaying(), arrays_.count, 0);
  }

  // Says what to do about a training that went wrong, and what is left of it.
  std::string Advice() const {
    return fmt::format(
        "Lower the learning rate ({:g}), lengthen the warm-up ({} steps) or clip the gradient's norm ({:g}); {}",
        options_.schedule.rate, options_.schedule.warmup, options_.clip,
        saved_ > 0 ? fmt::format("the checkpoint {} of step {} stands", job_.checkpoint.path().string(), saved_)
                   : "no checkpoint was written yet");
  }

  // Before the step is taken: nothing that is no number reaches the parameters.
  void CheckNumbers(int64_t step, double loss, double squares) const {
    Check(std::isfinite(loss), "step {}: the loss is {}. {}", step + 1, loss, Advice());
    Check(std::isfinite(squares), "step {}: the loss is {:.4g}, but the norm of its gradient is {}. {}", step + 1, loss,
          std::sqrt(squares), Advice());
  }

  void CheckDivergence() {
    constexpr int64_t kSteps = 10;
    const int64_t steps = history().steps();
    if (steps < kSteps) return;
    const double first = history().losses.front(), last = history().MeanLoss(steps - kSteps, steps);
    Check(!objective_.Diverged(first, last),
          "step {}: the training diverges: the mean loss of the last {} steps is {:.4g}, that of the first step was "
          "{:.4g}. {}",
          steps, kSteps, last, first, Advice());
  }

  bool ValidationIsDue() {
    const int64_t steps = history().steps();
    const bool at = steps == 0 || steps == options_.schedule.steps ||
                    (options_.validate_every > 0 && steps % options_.validate_every == 0);
    return at && (history().validations.empty() || history().validations.back().step != steps);
  }

  void Validate() {
    if (validation_.empty()) return;
    std::vector<LossSum> losses(validation_.size());
    processes_.InRounds(std::ssize(losses), [&](const Round& round) {
      CheckInterrupted();
      if (!round.mine) return;
      losses[*round.mine] = objective_.Validate(validation_[*round.mine]);
      Count(validation_[*round.mine]);
    });
    Share(losses);
    LossSum sum;
    for (const LossSum& loss : losses) sum += loss;
    Check(std::isfinite(sum.loss), "the validation loss after {} steps is {}. {}", history().steps(), sum.loss,
          Advice());
    history().validations.push_back({history().steps(), sum.loss / sum.weight});
    if (job_.observer) job_.observer(history(), options_.schedule.steps);
  }

  // The parameters are those of the last whole step: a step changes them at its end, when no process waits any more.
  void SaveUnsaved() {
    if (history().steps() > saved_) Save();
  }

  void Save() {
    if (!processes_.first()) return;
    arrays_.Get(state_);
    const double squares = arrays_.ops.SumOfSquares(arrays_.values.all());
    Check(std::isfinite(squares), "after {} steps the parameters hold numbers that are not finite. {}",
          history().steps(), Advice());
    job_.checkpoint.Write(state_);
    saved_ = history().steps();
    written_ = Clock::now();
  }

  const TrainingJob& job_;
  const TrainingOptions& options_;
  Objective& objective_;
  TrainingArrays& arrays_;
  Processes& processes_;
  GradientSum sum_;
  DeviceMemory gradients_;  // of the step
  ReadingOrder order_;
  std::vector<TrainingBatch> validation_;
  TrainingState state_;
  int64_t saved_ = 0;  // steps of the checkpoint
  Clock::time_point written_ = Clock::now();
};

}  // namespace

TrainingArrays::TrainingArrays(Ops& ops, std::span<const float> initial)
    : ops(ops),
      count(std::ssize(initial)),
      values(ops.Allocate(count)),
      gradients(ops.Allocate(count)),
      first(ops.Allocate(count)),
      second(ops.Allocate(count)) {
  ops.FromHost(initial, values.all());
}

void TrainingArrays::Set(const TrainingState& state) {
  ops.FromHost(state.values, values.all());
  ops.FromHost(state.first, first.all());
  ops.FromHost(state.second, second.all());
}

void TrainingArrays::Get(TrainingState& state) const {
  const auto get = [&](const DeviceMemory& array, std::vector<float>& to) {
    to.resize(count);
    ops.ToHost(array.all(), to);
  };
  get(values, state.values);
  get(first, state.first);
  get(second, state.second);
}

TrainingHistory Train(const TrainingJob& job, Objective& objective, TrainingArrays& arrays) {
  return Loop(job, objective, arrays).Run();
}

}  // namespace shiftrt
