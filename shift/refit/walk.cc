// SPDX-License-Identifier: Apache-2.0
#include "shift/refit/walk.h"

#include <algorithm>
#include <iterator>
#include <span>
#include <utility>

#include "runtime/check.h"
#include "runtime/host_memory.h"
#include "runtime/stopwatch.h"
#include "shift/refit/fold.h"
#include "shift/sums/ridge_adder.h"

namespace shiftrt {

namespace {

// A batch of this process, with the stream of the plan and that of the original model, which stay on the decoder's
// device.
struct TwoStreams {
  const Batch* batch = nullptr;
  KeptRows corrected, original;
};

// What is to be done at a stage of the plan.
struct Work {
  std::optional<Site> run;  // that begins behind it, to be corrected
  bool output = false, down = false;

  int64_t fits() const { return (output ? 1 : 0) + (down || run ? 1 : 0); }
};

class RefitWalk {
 public:
  RefitWalk(const ShiftJob& job, const DepthPlan& plan, const std::vector<BlockPart>& removed,
            const WalkOptions& options, std::optional<StartStreams> start)
      : job_(job),
        plan_(plan),
        options_(options),
        leading_(options.correction != nullptr && removed.front().begin() == 0),
        behind_(removed.front().end()),
        at_(2 * WalkStart(removed)),
        start_(std::move(start)),
        tally_(MakeTally(job.context.WithGpu(0), job.model.weights)),
        processes_(tally_->processes()),
        decoder_(job.context.WithGpu(0), job.model.weights, DepthPlan::Original(job.layers())) {
    for (size_t s = 0; s < plan.stages.size(); ++s) work_.push_back(WorkAt(s));
  }

  WalkResult Run() {
    const auto last = std::find_if(work_.rbegin(), work_.rend(), [](const Work& work) { return work.fits() > 0; });
    end_ = static_cast<size_t>(work_.rend() - last);
    if (end_ == 0 && !leading_) {
      result_.plan = plan_;
      return std::move(result_);
    }
    CheckMemory();
    Start();
    const int64_t begin = at_;
    int64_t fits = leading_ ? 1 : 0;
    for (const Work& work : work_) fits += work.fits();
    const int64_t tokens = job_.calibration.fit_tokens + job_.calibration.heldout_tokens;
    job_.progress.Begin("fitting projections again", tokens * fits);
    if (leading_) CorrectLeadingRun();
    for (size_t s = 0; s < plan_.stages.size(); ++s) {
      const Stage& stage = plan_.stages[s];
      if (Front(s) < begin || s >= end_) {
        result_.plan.stages.push_back(stage);
        continue;
      }
      stage.Visit([&](const BlockStage& block) { Block(s, block); }, [&](const AdapterStage&) { Append(s, {stage}); });
    }
    job_.progress.End();
    return std::move(result_);
  }

 private:
  // The place of the original model that a stage's input stands in front of.
  int64_t Front(size_t stage) const {
    if (stage == plan_.stages.size()) return 2 * job_.layers();
    return plan_.stages[stage].Visit([](const BlockStage& block) { return PartOf(block).begin(); },
                                     [](const AdapterStage& adapter) { return adapter.parts.front().begin(); });
  }
  static BlockPart PartOf(const BlockStage& block) { return {block.layer, block.halves}; }
  // The last projection of what a block runs.
  static const Projection& LastOf(const BlockStage& block) {
    return RunsMlp(block.halves) ? kDownProjection : kOutputProjection;
  }

  Work WorkAt(size_t s) const {
    return plan_.stages[s].Visit(
        [&](const BlockStage& block) {
          Work work;
          const int64_t behind = PartOf(block).end(), next = Front(s + 1);
          if (options_.correction != nullptr && next > behind) work.run = Site::Between(behind, next);
          // Where the MLP is removed, the fit for the run is that of the output projection.
          const bool for_run = work.run && !RunsMlp(block.halves);
          const bool all = options_.heal == Heal::kAll, any = options_.heal != Heal::kOff;
          work.output = all && !for_run && 2 * block.layer >= behind_ && RunsAttention(block.halves);
          work.down = any && block.own == nullptr && 2 * block.layer + 1 >= behind_ && RunsMlp(block.halves);
          return work;
        },
        [](const AdapterStage&) { return Work(); });
  }

  void CheckMemory() const {
    const ModelConfig& config = job_.model.weights->config;
    for (size_t s = 0; s < work_.size(); ++s) {
      const Work& work = work_[s];
      const auto check = [&](int64_t inputs) { CheckWalkMemory(job_.context, inputs, config.hidden); };
      if (work.run) {
        check(LastOf(plan_.stages[s].block()).Width(options_.correction->input, config));
      } else if (work.down) {
        check(kDownProjection.Inputs(config));
      }
      if (work.output) check(kOutputProjection.Inputs(config));
    }
  }

  void Start() {
    const Stopwatch watch(result_.seconds.calibrate);
    if (!start_) start_ = StreamsBefore(at_ / 2, job_, "calibrating up to the first removed block");
    Check(start_->layer == at_ / 2, "streams before block {}, expected before block {}", start_->layer, at_ / 2);
    Start(job_.calibration.fit, start_->fit, fit_);
    Start(job_.calibration.heldout, start_->heldout, heldout_);
    start_.reset();
  }

  void Start(const std::vector<Batch>& batches, std::vector<KeptRows>& streams, std::vector<TwoStreams>& to) const {
    for (size_t i = 0; i < streams.size(); ++i) {
      TwoStreams& walker = to.emplace_back();
      walker.batch = &batches[processes_.rank() + i * processes_.size()];
      walker.original.Set(streams[i].rows());
      walker.corrected = std::move(streams[i]);
    }
  }

  template <typename Call>
  void ForEach(const Call& call) {
    for (std::vector<TwoStreams>* walkers : {&fit_, &heldout_})
      for (TwoStreams& walker : *walkers) call(walker);
  }

  // Takes the original stream to a place that it has not passed.
  void AdvanceOriginal(int64_t to) {
    const Stopwatch watch(result_.seconds.calibrate);
    const std::vector<Stage> stages = StagesBetween(at_, to);
    at_ = to;
    if (stages.empty()) return;
    ForEach([&](TwoStreams& walker) {
      walker.original.Set(decoder_.Resume(*walker.batch, walker.original.rows(), stages));
    });
  }

  // Takes the plan's stream through stages of it.
  void AdvanceCorrected(const std::vector<Stage>& stages) {
    const Stopwatch watch(result_.seconds.calibrate);
    ForEach([&](TwoStreams& walker) {
      walker.corrected.Set(decoder_.Resume(*walker.batch, walker.corrected.rows(), stages));
    });
  }

  // The stages that replace stage `s` of the plan. The last one that is fitted needs no stream behind it.
  void Append(size_t s, const std::vector<Stage>& stages) {
    if (s + 1 < end_) AdvanceCorrected(stages);
    result_.plan.stages.insert(result_.plan.stages.end(), stages.begin(), stages.end());
  }

  // Adds what tokens(walker) returns for each batch, which stays until the next call.
  template <typename TokensOf>
  void CollectInto(SiteSums& sums, const TokensOf& tokens) {
    const auto collect = [&](std::vector<TwoStreams>& walkers, const std::vector<Batch>& batches, RidgeSums& into) {
      RidgeAdder adder(*tally_, sums.site, into);
      auto walker = walkers.begin();
      processes_.InRounds(std::ssize(batches), [&](const Round& round) {
        if (round.mine) {
          adder.Add(tokens(*walker), options_.weighting, *walker->batch);
          ++walker;
        }
        adder.EndRound(round.present);
        processes_.Flush();
        for (int64_t b = round.first; b < round.end(); ++b) job_.progress.Advance(batches[b].size());
      });
      adder.Settle();
    };
    collect(fit_, job_.calibration.fit, sums.fit);
    collect(heldout_, job_.calibration.heldout, sums.heldout);
  }

  // Of a projection's inputs, or of [output of its half | inputs], and of what is missing behind its half.
  void Collect(const BlockStage& block, const Projection& projection, SiteSums& sums) {
    const Stopwatch watch(result_.seconds.calibrate);
    KeptRows inputs, beside, missing;
    Decoder tapped(job_.context.WithGpu(0), job_.model.weights, DepthPlan::Original(job_.layers()),
                   {{block.layer, projection.input, [&](const Rows& rows, const Batch&) { inputs.Set(rows); }}});
    const std::vector<Stage> half = {BlockStage{block.layer, projection.half, block.own}};
    CollectInto(sums, [&](const TwoStreams& walker) -> RidgeAdder::Tokens {
      const Rows out = tapped.Resume(*walker.batch, walker.corrected.rows(), half);
      missing.Set(walker.original.rows());
      missing.Subtract(out);
      const bool both = sums.input == SiteInput::kStreamAndActivation;
      if (both) beside.SetBeside(out, inputs.rows());
      return {both ? beside.rows() : inputs.rows(), out, missing.rows()};
    });
  }

  // A block's tensors as they run.
  BlockPtr TensorsOf(const BlockStage& block) const {
    if (block.own) return block.own;
    return {job_.model.weights, &job_.model.weights->blocks[block.layer]};
  }

  void HealProjection(BlockStage& block, const Projection& projection) {
    SiteSums sums({block.layer, 1}, SiteInput::kActivation,
                  {projection.Inputs(job_.model.weights->config), job_.hidden()}, options_.weighting);
    Collect(block, projection, sums);
    const Stopwatch watch(result_.seconds.solve);
    RefittedBlock refitted = RefitProjection(job_.context, sums, options_.ridge, projection, TensorsOf(block));
    block.own = std::move(refitted.block);
    result_.healed.push_back(std::move(refitted.report));
  }

  // The adapter behind the block, if the correction puts one there.
  std::shared_ptr<const Lra> CorrectRun(BlockStage& block, const Site& run) {
    const Projection& projection = LastOf(block);
    const SiteInput input = options_.correction->input;
    SiteSums sums(run, input, {projection.Width(input, job_.model.weights->config), job_.hidden()}, options_.weighting);
    Collect(block, projection, sums);
    FittedSites fitted = options_.correction->fit(sums, &projection, TensorsOf(block));
    block.own = fitted.own.front().own;
    std::move(fitted.reports.begin(), fitted.reports.end(), std::back_inserter(result_.sites));
    result_.seconds += fitted.seconds;
    return fitted.adapters.front();
  }

  // Layers 0 to ...: an adapter alone, on the embeddings.
  void CorrectLeadingRun() {
    const Site run = Site::Between(0, Front(0));
    AdvanceOriginal(run.end());
    SiteSums sums(run, job_.hidden(), SiteInput::kStream, options_.weighting);
    {
      const Stopwatch watch(result_.seconds.calibrate);
      KeptRows missing;
      CollectInto(sums, [&](const TwoStreams& walker) -> RidgeAdder::Tokens {
        const Rows stream = walker.corrected.rows();
        missing.Set(walker.original.rows());
        missing.Subtract(stream);
        return {stream, stream, missing.rows()};
      });
    }
    FittedSites fitted = options_.correction->fit(sums, nullptr, nullptr);
    std::move(fitted.reports.begin(), fitted.reports.end(), std::back_inserter(result_.sites));
    result_.seconds += fitted.seconds;
    const Stage adapter = AdapterStage{run.Parts(), fitted.adapters.front()};
    result_.plan.stages.push_back(adapter);
    if (end_ > 0) AdvanceCorrected({adapter});
  }

  void Block(size_t s, const BlockStage& given) {
    const Work& work = work_[s];
    if (work.fits() == 0) return Append(s, {given});
    BlockStage block = given;
    if (work.output) {
      AdvanceOriginal(2 * block.layer + 1);
      HealProjection(block, kOutputProjection);
    }
    std::vector<Stage> behind = {block};
    if (work.down || work.run) {
      const Halves last = LastOf(block).half;
      if (block.halves == Halves::kBoth) AdvanceCorrected({BlockStage{block.layer, Halves::kAttention, block.own}});
      AdvanceOriginal(Front(s + 1));
      std::shared_ptr<const Lra> adapter;
      if (work.run) {
        adapter = CorrectRun(block, *work.run);
      } else {
        HealProjection(block, kDownProjection);
      }
      behind = {BlockStage{block.layer, last, block.own}};
      if (adapter) behind.emplace_back(AdapterStage{work.run->Parts(), adapter});
    }
    if (s + 1 < end_) AdvanceCorrected(behind);
    behind.front() = block;
    result_.plan.stages.insert(result_.plan.stages.end(), behind.begin(), behind.end());
  }

  const ShiftJob& job_;
  const DepthPlan& plan_;
  const WalkOptions& options_;
  const bool leading_;    // whether a run that begins at the first block is to be corrected
  const int64_t behind_;  // the place behind the first part that is removed
  int64_t at_;            // where the original stream stands
  std::optional<StartStreams> start_;
  const std::unique_ptr<Tally> tally_;
  Processes& processes_;
  Decoder decoder_;
  std::vector<Work> work_;  // by stage
  size_t end_ = 0;          // one past the last stage with work
  std::vector<TwoStreams> fit_, heldout_;
  WalkResult result_;
};

}  // namespace

Heal ParseHeal(const std::string& text) {
  for (const Heal heal : {Heal::kOff, Heal::kDown, Heal::kAll})
    if (text == Name(heal)) return heal;
  FailUsage(Field("heal"), "unknown way to heal \"{}\"; known: off, down, all", text);
}

const char* Name(Heal heal) {
  switch (heal) {
    case Heal::kOff: return "off";
    case Heal::kDown: return "down";
    case Heal::kAll: return "all";
  }
  return "?";
}

int64_t WalkBytes(int64_t inputs, int64_t hidden) {
  constexpr int64_t kSums = 4, kSquares = 5;
  return kSums * RidgeSums::Bytes(inputs, hidden) + kSquares * inputs * inputs * 8;
}

void CheckWalkMemory(const Context& context, int64_t inputs, int64_t hidden) {
  const auto mib = [](int64_t bytes) { return static_cast<double>(bytes) / (1 << 20); };
  const int64_t room = UsableMemory(context), taken = WalkBytes(inputs, hidden);
  Check(
      taken <= room,
      "a fit of n = {} inputs and d = {} outputs takes 32 (n + 1) (n + 1 + d) + 40 n^2 bytes, which is {:.4g} MiB of "
      "memory, and {:.4g} MiB may be used: allow more, or use the correction lra without healing, whose fits have only "
      "the {} inputs of the stream",
      inputs, hidden, mib(taken), mib(room), hidden);
}

WalkResult RefitInSequence(const ShiftJob& job, const DepthPlan& plan, const std::vector<BlockPart>& removed,
                           const WalkOptions& options, std::optional<StartStreams> start) {
  Check(!removed.empty(), "there is no removed block behind which to fit anything");
  if (options.correction != nullptr && options.correction->input == SiteInput::kActivation)
    CheckBlockBefore(RunsOf(removed));
  return RefitWalk(job, plan, removed, options, std::move(start)).Run();
}

}  // namespace shiftrt
