// SPDX-License-Identifier: Apache-2.0
#include "train/loop.h"

#include <chrono>
#include <cmath>
#include <numeric>
#include <utility>

#include "engine/gradient_sum.h"
#include "runtime/check.h"
#include "runtime/files.h"
#include "runtime/host_memory.h"
#include "runtime/shared_items.h"
#include "runtime/stopwatch.h"

namespace shiftrt {

namespace {

// The values at the lowest validation loss. They are read and written once per validation at most, so that they lie in
// a file (AllocateInFile) next to the checkpoint, or among the system's temporary files. They are moved in pieces,
// because the pages of a file count as memory of the process while it uses them.
class BestValues {
 public:
  explicit BestValues(const std::filesystem::path& checkpoint) {
    std::error_code none;
    directory_ = checkpoint.empty() ? std::filesystem::temp_directory_path(none) : checkpoint.parent_path();
    if (directory_.empty()) directory_ = ".";
  }

  void Keep(Ops& ops, const DeviceMemory& values) {
    Allocate(values.count());
    InPieces(
        [&](int64_t begin, std::span<float> piece) { ops.ToHost(values.Part(begin, 1, std::ssize(piece)), piece); });
  }
  void Keep(std::span<const float> values) {
    if (values.empty()) return;
    Allocate(std::ssize(values));
    InPieces([&](int64_t begin, std::span<float> piece) {
      std::copy_n(values.begin() + begin, piece.size(), piece.begin());
    });
  }
  void Restore(Ops& ops, const DeviceMemory& values) const {
    InPieces(
        [&](int64_t begin, std::span<float> piece) { ops.FromHost(piece, values.Part(begin, 1, std::ssize(piece))); });
  }
  // Empty before the first are kept.
  std::span<const float> all() const { return {values(), static_cast<size_t>(count_)}; }

 private:
  float* values() const { return reinterpret_cast<float*>(memory_.get()); }
  void Allocate(int64_t count) {
    if (count_ == count) return;
    memory_ = AllocateInFile(count * int64_t{sizeof(float)}, directory_);
    count_ = count;
  }
  template <typename Move>
  void InPieces(const Move& move) const {
    constexpr int64_t kPiece = int64_t{1} << 22;
    for (int64_t begin = 0; begin < count_; begin += kPiece) {
      const std::span<float> piece(values() + begin, std::min(kPiece, count_ - begin));
      move(begin, piece);
      ReleasePages(std::as_bytes(piece));
    }
  }

  std::filesystem::path directory_;
  std::shared_ptr<std::byte> memory_;
  int64_t count_ = 0;
};

// The share of a budget in seconds that validations may take: a budget is there for steps.
constexpr double kValidationTime = 0.1;
// Validations that are assumed of a training whose steps are not known, where there is one every so many steps.
constexpr double kAssumedValidations = 10;

class Loop {
 public:
  Loop(const TrainingJob& job, Objective& objective, TrainingArrays& arrays)
      : job_(job),
        settings_(job.settings),
        objective_(objective),
        arrays_(arrays),
        sum_(job.context, arrays.ops, arrays.gradients, arrays.count),
        order_(job.texts.training.sequences(), job.settings.batch, job.settings.seed),
        schedule_(job.schedule),
        best_(job.checkpoint.path()) {
    std::vector<int64_t> all(job.texts.validation.sequences());
    std::iota(all.begin(), all.end(), 0);
    validation_ = PackBatches(job.texts.validation, all, settings_.pass_tokens);
  }

  TrainingHistory Run() {
    if (WritesFiles(job_.context)) job_.checkpoint.Try();  // not after the steps, which would be lost
    std::optional<TrainingState> state = job_.checkpoint.Read(arrays_.count);
    CheckSame(job_.context,
              fmt::format("state of {}, which is to be in a directory of all hosts,", job_.checkpoint.path().string()),
              state ? fmt::format("{} steps", state->history.steps()) : "no such file");
    if (state) {
      arrays_.Set(*state);
      history_ = std::move(state->history);
      best_.Keep(state->best);
      saved_ = history().steps();
      state.reset();
      KeepValidation(history().validation_sequences);
    }
    try {
      for (;;) {
        Plan();
        if (ValidationIsDue()) Validate();
        if (history().steps() == schedule_.steps) break;
        Step();
        const bool due = Clock::now() - written_ >= std::chrono::duration<double>(settings_.checkpoint_seconds);
        if (DecidedByWriter(job_.context, due)) SaveIfPossible();
      }
      SaveIfPossible();
    } catch (const Interrupted&) {
      SaveUnsaved();
      throw;
    } catch (const PeerFailed&) {
      SaveUnsaved();
      throw;
    }
    if (settings_.keep_best && !history().validations.empty() && history().BestStep() != history().steps())
      best_.Restore(arrays_.ops, arrays_.values);
    return history();
  }

 private:
  using Clock = std::chrono::steady_clock;

  TrainingHistory& history() { return history_; }

  // Sets the number of steps of a budget in seconds: as many as it has time for at the speed so far, with one more
  // validation at the end, and at least one.
  void Plan() {
    if (settings_.budget.seconds <= 0) return;
    constexpr int64_t kUnknown = 1000;  // steps assumed until one is timed; with so many, warm-up keeps its rate low
    const int64_t steps = history().steps(), validations = std::ssize(history().validations);
    double spent = history().seconds + history().validation_seconds;
    if (validations > 0) spent += history().validation_seconds / static_cast<double>(validations);
    const double share = spent / settings_.budget.seconds;
    int64_t planned = kUnknown;
    if (steps > 0 && share < 1)
      planned = std::max<int64_t>(steps + 1, std::llround(std::min(1e15, static_cast<double>(steps) / share)));
    if (steps > 0 && share >= 1) planned = steps;
    schedule_.steps = FromAll(job_.context, planned).front();
    schedule_.warmup = std::llround(settings_.warmup * static_cast<double>(schedule_.steps));
  }

  // How many validations a training with a budget in seconds has, about.
  double ExpectedValidations() const {
    const double every = settings_.validate_every;
    return every == 0 ? 2 : every < 1 ? 1 + 1 / every : kAssumedValidations;
  }

  // Leaves those passes of the validation that read so many sequences; 0: all.
  void KeepValidation(int64_t sequences) {
    size_t passes = 0;
    for (int64_t read = 0; passes < validation_.size() && (sequences == 0 || read < sequences); ++passes)
      read += validation_[passes].batch.sequences();
    validation_.resize(passes);
  }

  // The loss of all held-out passes; the first validation of a budget in seconds ends with the pass by which its share
  // of the time is over, and the others read the same passes.
  LossSum ValidationLoss() {
    const auto validate = [&](int64_t pass) {
      CheckStopped();
      CountBatch(job_.context, validation_[pass].batch.size());
      return objective_.Validate(validation_[pass], pass);
    };
    const auto passes = std::ssize(validation_);
    const bool measures = settings_.budget.seconds > 0 && history().validations.empty();
    const int64_t at_once = measures ? std::min<int64_t>(passes, Sharers(job_.context)) : passes;
    const double share = kValidationTime * settings_.budget.seconds / ExpectedValidations();
    const auto begin = Clock::now();
    LossSum sum;
    int64_t done = 0;
    while (done < passes) {
      const int64_t first = done;
      done = std::min(passes, done + at_once);
      for (const LossSum& loss : SharedLoop(job_.context, done - first, [&](int64_t i) { return validate(first + i); }))
        sum += loss;
      // As many again would take as long as the last ones.
      const double mean = SecondsSince(begin) * static_cast<double>(at_once) / static_cast<double>(done);
      if (measures && DecidedByWriter(job_.context, SecondsSince(begin) + mean > share)) break;
    }
    validation_.resize(done);
    return sum;
  }

  void Step() {
    const int64_t step = history().steps();
    LossSum sum;
    int64_t tokens = 0;
    double seconds = 0, squares = 0;
    {
      const Stopwatch watch(seconds);
      const std::vector<TrainingBatch> batches =
          PackBatches(job_.texts.training, order_.Step(step), settings_.pass_tokens);
      double weight = 0;
      for (const TrainingBatch& batch : batches) weight += static_cast<double>(objective_.Weight(batch));
      const std::vector<LossSum> losses = sum_.Add(std::ssize(batches), [&](int64_t pass) {
        CheckStopped();
        arrays_.ops.Zero(arrays_.gradients.all());
        const LossSum loss = objective_.Step(batches[pass], (static_cast<uint64_t>(step) << 20) + pass, 1 / weight);
        CountBatch(job_.context, batches[pass].batch.size());
        return loss;
      });
      gradients_ = sum_.sum();
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
    Plan();  // the observer is told how many steps there will be
    Observe();
  }

  void Update(int64_t step, double norm) {
    AdamW adamw;
    adamw.gradient_scale = settings_.clip > 0 && norm > settings_.clip ? static_cast<float>(settings_.clip / norm) : 1;
    adamw.step = step + 1;
    for (const ParameterRange& range : job_.parameters.ranges()) {
      const auto part = [&](const DeviceMemory& array) { return array.Part(range.begin, 1, range.end - range.begin); };
      adamw.rate = static_cast<float>(schedule_.Rate(step, range.part));
      adamw.decay = range.decays ? static_cast<float>(settings_.weight_decay) : 0;
      arrays_.ops.AdamWStep(adamw, part(gradients_), part(arrays_.values), part(arrays_.first), part(arrays_.second));
    }
  }

  // The advice for a failed training, and which checkpoint remains.
  std::string Advice() const {
    return fmt::format(
        "Lower the learning rate ({:g}), lengthen the warm-up ({} steps) or clip the gradient's norm ({:g}); {}",
        schedule_.rate, schedule_.warmup, settings_.clip,
        saved_ > 0 ? fmt::format("the checkpoint {} of step {} stands", job_.checkpoint.path().string(), saved_)
                   : "no checkpoint was written yet");
  }

  // Before the step is taken: nothing that is no number reaches the parameters.
  void CheckNumbers(int64_t step, double loss, double squares) const {
    Check(std::isfinite(loss), "step {}: the loss is {}. {}", step + 1, loss, Advice());
    Check(std::isfinite(squares), "step {}: the loss is {:.4g}, but the norm of its gradient is {}. {}", step + 1, loss,
          std::sqrt(squares), Advice());
  }

  // The losses of sequences differ by more than a nat, so that a mean over few of them says little.
  void CheckDivergence() {
    const auto steps_of = [&](int64_t sequences) { return (sequences + settings_.batch - 1) / settings_.batch; };
    const int64_t steps = history().steps(), begin = steps_of(16), window = std::max<int64_t>(10, steps_of(64));
    if (steps < window) return;
    const double first = history().MeanLoss(0, begin), last = history().MeanLoss(steps - window, steps);
    Check(!objective_.Diverged(first, last),
          "step {}: the training diverges: the mean loss of the last {} steps is {:.4g}, that of the first {} was "
          "{:.4g}. {}",
          steps, window, last, begin, first, Advice());
  }

  void CheckHeldOutDivergence() {
    const double first = history().validations.front().loss, last = history().validations.back().loss;
    Check(!objective_.Diverged(first, last),
          "step {}: the training diverges: the held-out loss is {:.4g}, before the training it was {:.4g}. {}",
          history().steps(), last, first, Advice());
  }

  // False if one more validation than the last one would take more than the share of a budget in seconds.
  bool TimeForValidation() const {
    const auto count = static_cast<double>(history_.validations.size());
    if (settings_.budget.seconds <= 0 || count == 0) return true;
    return history_.validation_seconds * (count + 2) / count <= kValidationTime * settings_.budget.seconds;
  }

  bool ValidationIsDue() {
    const int64_t steps = history().steps();
    const double every = settings_.validate_every, of_steps = static_cast<double>(schedule_.steps);
    bool at = steps == 0 || steps == schedule_.steps;
    if (every >= 1) at = at || (steps % std::llround(every) == 0 && DecidedByWriter(job_.context, TimeForValidation()));
    // The next is due after as many shares as there are validations, the one before the first step included.
    constexpr double kRounding = 1e-9;
    if (every > 0 && every < 1)
      at = at || static_cast<double>(steps) + kRounding >=
                     every * of_steps * static_cast<double>(history().validations.size());
    return at && (history().validations.empty() || history().validations.back().step != steps);
  }

  void Validate() {
    if (validation_.empty()) return;
    LossSum sum;
    double seconds = 0;
    {
      const Stopwatch watch(seconds);
      sum = ValidationLoss();
    }
    Check(std::isfinite(sum.loss), "the validation loss after {} steps is {}. {}", history().steps(), sum.loss,
          Advice());
    history().validations.push_back({history().steps(), sum.loss / sum.weight});
    history().validation_seconds += seconds;
    history().validation_sequences = 0;
    for (const TrainingBatch& batch : validation_) history().validation_sequences += batch.batch.sequences();
    CheckHeldOutDivergence();
    if (settings_.keep_best && history().BestStep() == history().steps()) best_.Keep(arrays_.ops, arrays_.values);
    Observe();
  }

  // An exception of the observer, whatever its type, stops the training as an interruption does.
  void Observe() {
    if (job_.observer) OrSave([&] { job_.observer(history(), schedule_.steps); });
  }

  // The parameters are those of the last whole step: a step changes them at its end, when nobody waits for another's
  // gradient any more.
  void SaveUnsaved() {
    if (history().steps() > saved_) Save();
  }

  // A disk without room for a checkpoint may have room for the result, which is smaller.
  void SaveIfPossible() {
    CheckFinite();
    try {
      Write();
    } catch (const Interrupted&) {
      throw;
    } catch (const Error& error) {
      written_ = Clock::now();  // the next try is as far away as after a checkpoint
      if (job_.warn && !std::exchange(warned_, true))
        job_.warn(fmt::format("the training goes on without a checkpoint: {}", error.what()));
    }
  }

  void Save() {
    CheckFinite();
    Write();
  }

  void CheckFinite() const {
    Check(std::isfinite(arrays_.ops.SumOfSquares(arrays_.values.all())),
          "after {} steps the parameters hold numbers that are not finite. {}", history_.steps(), Advice());
  }

  void Write() {
    if (!WritesFiles(job_.context)) return;
    std::vector<float> values, first, second;  // copies of a GPU's arrays
    job_.checkpoint.Write({arrays_.OnHost(arrays_.values, values), arrays_.OnHost(arrays_.first, first),
                           arrays_.OnHost(arrays_.second, second), best_.all(), /*best_in_file=*/true},
                          history());
    saved_ = history().steps();
    written_ = Clock::now();
  }

  void CheckStopped() {
    CheckInterrupted();
    if (job_.poll) OrSave(job_.poll);
  }

  // Calls what may throw to stop the training, whose state is then kept.
  template <typename Call>
  void OrSave(const Call& call) {
    try {
      call();
    } catch (...) {
      SaveUnsaved();
      throw;
    }
  }

  const TrainingJob& job_;
  const FinetuneSettings& settings_;
  Objective& objective_;
  TrainingArrays& arrays_;
  GradientSum sum_;
  DeviceMemory gradients_;  // the gradients of the step
  ReadingOrder order_;
  Schedule schedule_;  // with the number of steps that is planned
  std::vector<TrainingBatch> validation_;
  TrainingHistory history_;
  BestValues best_;    // where they are kept; else empty
  int64_t saved_ = 0;  // steps of the checkpoint
  Clock::time_point written_ = Clock::now();
  bool warned_ = false;  // job_.warn was called
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

std::span<const float> TrainingArrays::OnHost(const DeviceMemory& array, std::vector<float>& copy) const {
  if (array.all().device() == Device::kCpu) return {array.all().host().data, static_cast<size_t>(count)};
  copy.resize(count);
  ops.ToHost(array.all(), copy);
  return copy;
}

void TrainingArrays::KeepValuesOnly() { gradients = first = second = {}; }

TrainingHistory Train(const TrainingJob& job, Objective& objective, TrainingArrays& arrays) {
  return Loop(job, objective, arrays).Run();
}

}  // namespace shiftrt
