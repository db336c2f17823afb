// SPDX-License-Identifier: Apache-2.0
#include "shift/largest_cut.h"

#include <algorithm>
#include <numeric>
#include <string>
#include <utility>

#include "engine/loss.h"
#include "runtime/check.h"
#include "shift/criteria/prune_spec.h"
#include "shift/measure/divergence.h"
#include "shift/measure/heldout_loss.h"
#include "shift/measure/loss.h"

namespace shiftrt {

namespace {

// Names the cut at the beginning of each phase.
class CutProgress : public Progress {
 public:
  CutProgress(Progress& progress, int64_t units) : progress_(progress), units_(units) {}
  void Begin(std::string_view phase, int64_t total) override {
    progress_.Begin(fmt::format("{} removed: {}", units_, phase), total);
  }
  void Advance(int64_t count) override { progress_.Advance(count); }
  void Within(std::string_view what, double share) override { progress_.Within(what, share); }
  void End() override { progress_.End(); }

 private:
  Progress& progress_;
  const int64_t units_;
};

// The beginning of the fitted text, with kCutTokens or all, and the whole held-out text.
CalibrationSet BeginningOf(CalibrationSet text) {
  text.fit = FirstSequences(text.fit, kCutTokens);
  text.fit_tokens = 0;
  for (const Batch& batch : text.fit) text.fit_tokens += batch.size();
  return text;
}

// The settings of a repair that removes so many units, without what only the result needs.
Recipe TrialOf(Recipe recipe, int64_t units) {
  recipe.prune.max_divergence = 0;
  recipe.prune.count = units;
  recipe.gate = false;
  recipe.benefit = Benefit::kUnmeasured;
  recipe.merge = Merge::kOff;
  recipe.quantise = {};
  return recipe;
}

class CutSearch {
 public:
  CutSearch(const ShiftJob& job, const Recipe& recipe, const RepairFunction& repair)
      : job_(job),
        recipe_(recipe),
        repair_(repair),
        text_(BeginningOf(job.calibration)),
        divergence_(job.context, job.model.weights, HeldOut(), 0),
        all_(divergence_.sequences()) {
    std::iota(all_.begin(), all_.end(), 0);
    for (const int64_t s : all_) tokens_ += divergence_.predicted(s);
  }

  ShiftResult Run() {
    const int64_t most = RemovalCount(recipe_.prune, *job_.model.weights);
    const int64_t units = UnitsOf(recipe_.prune.unit, job_.layers());
    int64_t within = 0, above = most + 1;
    for (int64_t next = std::clamp<int64_t>(units / 4, 1, most); within + 1 < above; next = (within + above) / 2)
      (Try(next).within ? within : above) = next;
    if (within == 0) {
      const CutReport& smallest = cuts_.back();
      FailUsage(Field("prune"),
                "{}: without {} alone, the repaired model already has a divergence of {:.3f} ± {:.3f} nats per token "
                "from the original",
                Format(recipe_.prune), Names(smallest.removed, ","), smallest.divergence, smallest.error);
    }
    Recipe last = recipe_;
    last.prune.max_divergence = 0;
    last.prune.count = within;
    ShiftResult result = repair_(job_, last);
    cuts_.push_back(Measure(result, within, job_.calibration.fit_tokens));
    result.cuts = std::move(cuts_);
    return result;
  }

 private:
  std::vector<Batch> HeldOut() const {
    std::vector<Batch> sequences = PredictedSequences(FirstSequences(text_.heldout, kCutHeldOutTokens));
    if (sequences.empty())
      FailUsage(Field("prune"), "{}: it needs held-out calibration text: two samples or more give some",
                Format(recipe_.prune));
    return sequences;
  }

  const CutReport& Try(int64_t units) {
    CutProgress progress(job_.progress, units);
    const ShiftJob trial = {job_.context, job_.model, text_, progress};
    return cuts_.emplace_back(Measure(repair_(trial, TrialOf(recipe_, units)), units, text_.fit_tokens));
  }

  CutReport Measure(const ShiftResult& result, int64_t units, int64_t tokens) {
    const std::vector<double> sums = divergence_.Of({result.corrected}, all_)[0];
    const PairedGain mean = GainOver(sums, std::vector<double>(sums.size()), tokens_);
    return {units, result.selection.removed, tokens, mean.gain, mean.error, mean.gain <= recipe_.prune.max_divergence};
  }

  const ShiftJob& job_;
  const Recipe& recipe_;
  const RepairFunction& repair_;
  const CalibrationSet text_;
  Divergence divergence_;
  std::vector<int64_t> all_;  // the sequences of divergence_
  int64_t tokens_ = 0;        // that they predict
  std::vector<CutReport> cuts_;
};

}  // namespace

ShiftResult RepairLargestCut(const ShiftJob& job, const Recipe& recipe, const RepairFunction& repair) {
  return CutSearch(job, recipe, repair).Run();
}

}  // namespace shiftrt
