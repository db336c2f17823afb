// SPDX-License-Identifier: Apache-2.0
#include "shift/refit/sequential_fit.h"

#include <algorithm>
#include <iterator>
#include <span>
#include <utility>

#include "models/block_tensors.h"
#include "runtime/check.h"
#include "runtime/host_memory.h"
#include "runtime/linalg/solver.h"
#include "runtime/stopwatch.h"
#include "shift/refit/fold.h"
#include "shift/sums/collect.h"
#include "shift/sums/row_norm.h"

namespace shiftrt {

namespace {

// A batch with the streams of the corrected and of the original model, which stay on the decoder's device. Both are
// empty where another process has the batch, and `original` is where nothing is fitted towards it.
struct TwoStreams {
  const Batch* batch = nullptr;
  KeptRows corrected, original;

  bool here() const { return corrected.rows().count() > 0; }
};

// The fitted or the held-out text, and where its sums go.
struct Text {
  std::vector<TwoStreams> streams;
  RidgeSums SiteSums::*sums;
  int64_t at = 0;           // the place that the original stream has reached
  LaterStreams later = {};  // original streams at deeper places, which need not be computed
};

// The fits at a stage of the plan.
struct Work {
  std::optional<Site> run;  // the run that begins after it, which a change of this stage corrects
  bool output = false, down = false;

  int64_t fits() const { return (output ? 1 : 0) + (down || run ? 1 : 0); }
};

class SequentialFit {
 public:
  // `sites`: the parts that the plan leaves out, in the order of depth.
  SequentialFit(const ShiftJob& job, const DepthPlan& plan, const std::vector<Site>& sites,
                const SequentialFitOptions& options, std::optional<StartStreams> start)
      : job_(job),
        plan_(plan),
        sites_(sites),
        options_(options),
        start_(std::move(start)),
        adapters_(options.correction != nullptr && IsStream(options.correction->input)),
        norm_(job.context.WithGpu(0), job.model.weights),
        after_(sites.front().end()),
        collector_(MakeCollector(job.context.WithGpu(0), job.model.weights)),
        decoder_(job.context.WithGpu(0), job.model.weights, DepthPlan::Original(job.layers())) {
    for (const auto sums : {&SiteSums::fit, &SiteSums::heldout}) texts_.push_back({.streams = {}, .sums = sums});
    for (size_t s = 0; s < plan.stages.size(); ++s) work_.push_back(WorkAt(s));
    // A run before the first stage has no stage that could change: it gets an adapter, too.
    if (adapters_) {
      bare_ = sites;
    } else if (options.correction != nullptr && sites.front().begin() == 0) {
      bare_ = {Site::Between(0, Front(0))};
    }
  }

  SequentialFitResult Run() {
    int64_t fits = std::ssize(bare_);
    for (const Work& work : work_) fits += work.fits() + (work.run && HasNormed() ? 1 : 0);
    if (fits == 0) {
      result_.plan = plan_;
      return std::move(result_);
    }
    CheckMemory();
    double seconds = 0;
    {
      const Stopwatch watch(seconds);
      Start();
      const int64_t begin = texts_.front().at, tokens = job_.calibration.fit_tokens + job_.calibration.heldout_tokens;
      job_.progress.Begin(adapters_ ? "calibrating in sequence" : "fitting projections again", tokens * fits);
      for (size_t s = 0; s < plan_.stages.size(); ++s) {
        CorrectBareBefore(Front(s));
        const Stage& stage = plan_.stages[s];
        if (Front(s) < begin) {
          result_.plan.stages.push_back(stage);
          continue;
        }
        stage.Visit([&](const BlockStage& block) { Block(s, block); }, [&](const AdapterStage&) { Append(stage); });
      }
      CorrectBareBefore(2 * job_.layers());
      job_.progress.End();
    }
    result_.seconds.calibrate = seconds - result_.seconds.solve - result_.seconds.factorize;
    return std::move(result_);
  }

 private:
  // True if an adapter on the normed stream is fitted after each half that changes.
  bool HasNormed() const { return options_.correction != nullptr && options_.correction->normed; }

  // The place of the original model before which a stage's input stands.
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
          const int64_t after = PartOf(block).end(), next = Front(s + 1);
          if (options_.correction != nullptr && !adapters_ && next > after) work.run = Site::Between(after, next);
          // Where the MLP is removed, the fit for the run is that of the output projection.
          const bool for_run = work.run && !RunsMlp(block.halves);
          const bool all = options_.heal == Heal::kAll, any = options_.heal != Heal::kOff;
          work.output = all && !for_run && 2 * block.layer >= after_ && RunsAttention(block.halves);
          work.down = any && !RefittedDown(block) && 2 * block.layer + 1 >= after_ && RunsMlp(block.halves);
          return work;
        },
        [](const AdapterStage&) { return Work(); });
  }

  // True if the plan has fitted the down projection already. A projection that was only rounded is fitted like the
  // model's.
  bool RefittedDown(const BlockStage& block) const {
    if (block.own == nullptr) return false;
    const TensorView& down = block.own->down;
    return down.data != job_.model.weights->blocks[block.layer].down.data && !IsQuantised(down.dtype);
  }

  void CheckMemory() const {
    const ModelConfig& config = job_.model.weights->config;
    const auto check = [&](int64_t inputs) {
      const std::string why = WhyNoSequentialFit(job_.context, inputs, config.hidden, options_.ridge.lambda);
      Check(why.empty(), "{}", why);
    };
    if (!bare_.empty()) shiftrt::CheckMemory(job_.context, 1, config.hidden, "a higher limit allows more");
    for (size_t s = 0; s < work_.size(); ++s) {
      const Work& work = work_[s];
      if (work.fits() == 0) continue;
      const BlockStage& block = plan_.stages[s].block();
      const BlockWeights& tensors = shiftrt::TensorsOf(*job_.model.weights, block);
      if (work.run) {
        check(LastOf(block).Width(options_.correction->input, tensors));
      } else if (work.down) {
        check(kDownProjection.Inputs(tensors));
      }
      if (work.output) check(kOutputProjection.Inputs(tensors));
    }
  }

  // Up to the first place where something is fitted, both streams are one.
  void Start() {
    const int64_t usual = adapters_ ? sites_.front().layer : SequentialFitStart(sites_.front().Parts());
    const int64_t first = std::min(usual, FirstOwn());
    if (!start_)
      start_ = StreamsBefore(
          first, job_, adapters_ ? "calibrating up to the first site" : "calibrating up to the first removed block");
    Check(start_->layer <= first, "streams before block {}, expected before block {} or an earlier one", start_->layer,
          first);
    if (start_->heldout.empty())
      start_->heldout = StreamsBefore(start_->layer, job_.context, job_.model.weights, job_.calibration.heldout,
                                      "calibrating on held-out text", job_.progress);
    const int64_t at = adapters_ && first == usual ? sites_.front().begin() : 2 * first;
    pending_ = StagesBetween(2 * start_->layer, at);
    for (Text& text : texts_) text.at = at;
    Start(job_.calibration.fit, start_->fit, texts_[0]);
    Start(job_.calibration.heldout, start_->heldout, texts_[1]);
    texts_[0].later = std::move(start_->later);
    start_.reset();
    AdvanceCorrected();
    if (options_.mode == Calibration::kDrift)
      ForEach([](TwoStreams& streams) { streams.original.Set(streams.corrected.rows()); });
  }
  // The first layer whose block has tensors of its own.
  int64_t FirstOwn() const {
    for (const BlockStage* block : plan_.Blocks())
      if (block->own != nullptr) return block->layer;
    return job_.layers();
  }
  static void Start(const std::vector<Batch>& batches, std::vector<KeptRows>& streams, Text& text) {
    for (size_t b = 0; b < batches.size(); ++b) text.streams.push_back({&batches[b], std::move(streams[b]), {}});
  }

  template <typename Call>
  void ForEach(const Call& call) {
    for (Text& text : texts_)
      for (TwoStreams& streams : text.streams)
        if (streams.here()) call(streams);
  }

  void Resume(const Batch& batch, KeptRows& stream, std::span<const Stage> stages) {
    stream.Set(decoder_.Resume(batch, stream.rows(), stages));
    job_.progress.Advance(0);  // this may interrupt the fit
  }

  // Takes the original stream to a place that it has not passed.
  void AdvanceOriginal(int64_t to) {
    for (Text& text : texts_) {
      for (auto next = text.later.begin(); next != text.later.end() && 2 * next->first <= to;) {
        if (2 * next->first > text.at) {
          text.at = 2 * next->first;
          for (size_t b = 0; b < text.streams.size(); ++b) text.streams[b].original = std::move(next->second[b]);
        }
        next = text.later.erase(next);
      }
      const std::vector<Stage> stages = StagesBetween(text.at, to);
      text.at = to;
      if (stages.empty()) continue;
      for (TwoStreams& streams : text.streams)
        if (streams.here()) Resume(*streams.batch, streams.original, stages);
    }
  }

  // Takes the corrected stream through the stages that are pending. It runs only when a fit needs it.
  void AdvanceCorrected() {
    if (pending_.empty()) return;
    ForEach([&](TwoStreams& streams) { Resume(*streams.batch, streams.corrected, pending_); });
    pending_.clear();
  }

  void Append(const Stage& stage) {
    pending_.push_back(stage);
    result_.plan.stages.push_back(stage);
  }

  // Adds what rows_of(streams) returns for each batch, which stays until the next call.
  template <typename RowsOf>
  void Collect(SiteSums& sums, const RowsOf& rows_of) {
    for (const Text& text : texts_) {
      const Site& site = sums.site;
      const std::unique_ptr<RidgeAdder> adder = std::move(
          collector_->MakeAdders({{(sums.*text.sums).matrices(), site.layer, site.last(), site.Name()}}).front());
      const auto add = [&](int64_t b) {
        const TwoStreams& streams = text.streams[b];
        const SiteRows rows = rows_of(streams);
        adder->Add(rows, RowWeightsOf(options_.weighting, rows, *streams.batch));
      };
      collector_->ForEachBatch(std::ssize(text.streams), add, [&](int64_t first, int64_t end, bool) {
        for (int64_t b = first; b < end; ++b) job_.progress.Advance(text.streams[b].batch->size());
      });
      adder->Complete();
    }
  }

  // Returns what an adapter of the site reads of the stream.
  Rows InputOf(const SiteSums& sums, const Rows& stream) {
    return sums.input == SiteInput::kNormed ? norm_.Of(stream) : stream;
  }

  // The stream before a site, and what the corrected stream lacks after the site, where the original stream is.
  void CollectMissing(SiteSums& sums) {
    KeptRows missing;
    Collect(sums, [&](const TwoStreams& streams) -> SiteRows {
      const Rows stream = streams.corrected.rows();
      missing.Set(streams.original.rows());
      missing.Subtract(stream);
      return {InputOf(sums, stream), stream, missing.rows()};
    });
  }

  // The stream before a site, and what the site's own blocks add to it.
  void CollectUpdate(SiteSums& sums) {
    const Site& site = sums.site;
    KeptRows update;
    std::vector<Tap> taps;
    for (int64_t layer = site.layer; layer <= site.last(); ++layer)
      taps.push_back({layer, TapPoint::kUpdate, [&update, first = layer == site.layer](const Rows& rows, const Batch&) {
                        first ? update.Set(rows) : update.Add(rows);
                      }});
    Decoder tapped(job_.context.WithGpu(0), job_.model.weights, DepthPlan::Original(job_.layers()), std::move(taps));
    const std::vector<Stage> stages = StagesBetween(site.begin(), site.end());
    Collect(sums, [&](const TwoStreams& streams) -> SiteRows {
      const Rows stream = streams.corrected.rows();
      tapped.Resume(*streams.batch, stream, stages);
      return {InputOf(sums, stream), stream, update.rows()};
    });
  }

  // The part of a block that ends with its last projection: the MLP, which reads the stream after the attention, or,
  // in a parallel block, the block.
  BlockStage LastStageOf(const BlockStage& block) const {
    const bool parallel = job_.model.weights->config.block.parallel && block.halves == Halves::kBoth;
    return {block.layer, parallel ? Halves::kBoth : LastOf(block).half, block.own};
  }

  // A projection's inputs, or [output of its half | inputs], and what is missing after its half.
  void CollectHalf(const BlockStage& block, const Projection& projection, SiteSums& sums) {
    AdvanceCorrected();
    KeptRows inputs, concatenated, missing;
    Decoder tapped(job_.context.WithGpu(0), job_.model.weights, DepthPlan::Original(job_.layers()),
                   {{block.layer, projection.input, [&](const Rows& rows, const Batch&) { inputs.Set(rows); }}});
    const std::vector<Stage> half = {
        &projection == &LastOf(block) ? LastStageOf(block) : BlockStage{block.layer, projection.half, block.own}};
    Collect(sums, [&](const TwoStreams& streams) -> SiteRows {
      const Rows out = tapped.Resume(*streams.batch, streams.corrected.rows(), half);
      missing.Set(streams.original.rows());
      missing.Subtract(out);
      const bool both = sums.input == SiteInput::kStreamAndActivation;
      if (both) concatenated.SetConcatenated(out, inputs.rows());
      return {both ? concatenated.rows() : inputs.rows(), out, missing.rows()};
    });
  }

  // A block's tensors as they run.
  BlockPtr TensorsOf(const BlockStage& block) const {
    if (block.own) return block.own;
    return {job_.model.weights, &job_.model.weights->blocks[block.layer]};
  }

  // Fits the correction of a site from its sums.
  FittedSites Corrected(const SiteSums& sums, const Projection* projection, const BlockPtr& block) {
    FittedSites fitted = options_.correction->fit(sums, projection, block);
    std::move(fitted.reports.begin(), fitted.reports.end(), std::back_inserter(result_.sites));
    result_.seconds += fitted.seconds;
    return fitted;
  }

  // Adapters of the sites before `place` that no stage changes for.
  void CorrectBareBefore(int64_t place) {
    for (; bare_done_ < bare_.size() && bare_[bare_done_].begin() < place; ++bare_done_) {
      const Site& site = bare_[bare_done_];
      const SiteInput input = adapters_     ? options_.correction->input
                              : HasNormed() ? SiteInput::kNormed
                                            : SiteInput::kStream;
      SiteSums sums(site, job_.hidden(), input, options_.weighting);
      AdvanceCorrected();
      if (options_.mode == Calibration::kDrift) {
        AdvanceOriginal(site.begin());
        AdvanceOriginal(site.end());
        CollectMissing(sums);
      } else {
        CollectUpdate(sums);
      }
      Append(AdapterStage{site.Parts(), Corrected(sums, nullptr, nullptr).adapters.front()});
    }
  }

  void HealProjection(BlockStage& block, const Projection& projection) {
    SiteSums sums({block.layer, 1}, SiteInput::kActivation, {projection.Inputs(*TensorsOf(block)), job_.hidden()},
                  options_.weighting);
    CollectHalf(block, projection, sums);
    const Stopwatch watch(result_.seconds.solve);
    RefittedBlock refitted = RefitProjection(job_.context, sums, options_.ridge, projection, TensorsOf(block));
    block.own = std::move(refitted.block);
    result_.healed.push_back(std::move(refitted.report));
  }

  // The adapter after the block, if the correction puts one there.
  std::shared_ptr<const Lra> CorrectRun(BlockStage& block, const Site& run) {
    const Projection& projection = LastOf(block);
    const SiteInput input = options_.correction->input;
    SiteSums sums(run, input, {projection.Width(input, *TensorsOf(block)), job_.hidden()}, options_.weighting);
    CollectHalf(block, projection, sums);
    FittedSites fitted = Corrected(sums, &projection, TensorsOf(block));
    block.own = fitted.own.front().own;
    pending_.emplace_back(LastStageOf(block));
    return HasNormed() ? NormedBehind(run, sums) : fitted.adapters.front();
  }

  // The adapter of the run on the norm of the stream that the changed block leaves. `changed`: the sums that the block
  // was changed by. The report of the run becomes one of both: R2 is the share of what was missing before either.
  std::shared_ptr<const Lra> NormedBehind(const Site& run, const SiteSums& changed) {
    SiteSums sums(run, job_.hidden(), SiteInput::kNormed, options_.weighting);
    AdvanceCorrected();
    CollectMissing(sums);
    const SiteReport first = std::move(result_.sites.back());
    result_.sites.pop_back();
    FittedSites fitted = Corrected(sums, nullptr, nullptr);
    SiteReport& report = result_.sites.back();
    const auto of_both = [](double r2, const RidgeSums& left, const RidgeSums& all) {
      return 1 - (1 - r2) * left.CenteredDeltaSquares() / all.CenteredDeltaSquares();
    };
    report.r2_fit = of_both(report.r2_fit, sums.fit, changed.fit);
    report.r2_heldout = of_both(report.r2_heldout, sums.heldout, changed.heldout);
    if (!first.warning.empty())
      report.warning = report.warning.empty() ? first.warning : first.warning + "; " + report.warning;
    return fitted.adapters.front();
  }

  void Block(size_t s, const BlockStage& given) {
    const Work& work = work_[s];
    if (work.fits() == 0) return Append(given);
    BlockStage block = given;
    if (work.output) {
      AdvanceOriginal(2 * block.layer + 1);
      HealProjection(block, kOutputProjection);
    }
    if (!work.down && !work.run) return Append(block);
    if (block.halves == Halves::kBoth && LastStageOf(block).halves != Halves::kBoth)
      pending_.emplace_back(BlockStage{block.layer, Halves::kAttention, block.own});
    AdvanceOriginal(Front(s + 1));
    std::shared_ptr<const Lra> adapter;
    if (work.run) {
      adapter = CorrectRun(block, *work.run);
    } else {
      HealProjection(block, kDownProjection);
      pending_.emplace_back(LastStageOf(block));
    }
    result_.plan.stages.emplace_back(block);
    if (adapter) Append(AdapterStage{work.run->Parts(), adapter});
  }

  const ShiftJob& job_;
  const DepthPlan& plan_;
  const std::vector<Site>& sites_;
  const SequentialFitOptions& options_;
  std::optional<StartStreams> start_;
  const bool adapters_;  // the correction is one of adapters
  RowNorm norm_;
  const int64_t after_;     // the place after the first part that is removed
  std::vector<Site> bare_;  // the sites of adapters that stand alone
  size_t bare_done_ = 0;    // how many of them are fitted
  const std::unique_ptr<Collector> collector_;
  Decoder decoder_;
  std::vector<Work> work_;      // by stage
  std::vector<Stage> pending_;  // stages that the corrected stream has yet to run
  std::vector<Text> texts_;     // fitted, and held out
  SequentialFitResult result_;
};

}  // namespace

// The memory of a fit of n inputs and d outputs: two sums of 8 (n + 1) (n + 1 + d) bytes, for the fitted and the
// held-out tokens, once more as many without their means, and five arrays of 8 n^2 bytes for the solve.
static int64_t SequentialFitBytes(int64_t inputs, int64_t hidden) {
  constexpr int64_t kSums = 4, kSquares = 5;
  return kSums * RidgeSums::Bytes(inputs, hidden) + kSquares * inputs * inputs * 8;
}

std::string WhyNoSequentialFit(const Context& context, int64_t inputs, int64_t hidden, const LambdaSpec& lambda) {
  const auto mib = [](int64_t bytes) { return static_cast<double>(bytes) / (1 << 20); };
  const int64_t room = UsableMemory(context), taken = SequentialFitBytes(inputs, hidden);
  if (taken > room)
    return fmt::format(
        "a fit of n = {} inputs and d = {} outputs takes 32 (n + 1) (n + 1 + d) + 40 n^2 bytes, which is {:.4g} MiB of "
        "memory, and {:.4g} MiB may be used: allow more, or use the correction lra without healing, whose fits have "
        "only "
        "the {} inputs of the stream",
        inputs, hidden, mib(taken), mib(room), hidden);
  const bool chosen = lambda.kind == LambdaSpec::Kind::kGcv || lambda.kind == LambdaSpec::Kind::kHoldout;
  if (chosen && context.solver == nullptr && inputs > linalg::kMostEigen)
    return fmt::format(
        "a fit of n = {} inputs whose lambda is chosen needs an eigendecomposition, which the CPU can do for at most "
        "{}: "
        "give a fixed lambda, such as 1e-3rel",
        inputs, linalg::kMostEigen);
  return "";
}

SequentialFitResult RefitInSequence(const ShiftJob& job, const DepthPlan& plan, const std::vector<BlockPart>& removed,
                                    const SequentialFitOptions& options, std::optional<StartStreams> start) {
  Check(!removed.empty(), "there is no removed block after which to fit anything");
  if (options.correction != nullptr && options.correction->input == SiteInput::kActivation &&
      !options.correction->normed)
    CheckBlockBefore(RunsOf(removed));
  return SequentialFit(job, plan, RunsOf(removed), options, std::move(start)).Run();
}

DepthPlan Unhealed(const DepthPlan& healed, const DepthPlan& before, const std::vector<FitReport>& fits,
                   const std::shared_ptr<const Weights>& weights) {
  DepthPlan plan = healed;
  for (const FitReport& fit : fits) {
    const size_t s = plan.StageOf(fit.layers.front().layer);
    const BlockStage stage = plan.stages[s].block(), was = before.stages[before.StageOf(stage.layer)].block();
    const BlockWeights& tensors = TensorsOf(*weights, was);
    const Projection& projection = fit.part == kOutputProjection.name ? kOutputProjection : kDownProjection;
    const auto own = std::make_shared<OwnBlock>(stage.own);
    std::shared_ptr<const void> storage = weights;
    if (was.own) storage = was.own;
    for (const auto member : {projection.weight, projection.bias}) own->Replace(member, tensors.*member, storage);
    // Without other changes it is the block that it was.
    const bool same = std::all_of(BlockTensors().begin(), BlockTensors().end(), [&](const BlockTensor& row) {
      return (own->weights().*row.member).data == (tensors.*row.member).data;
    });
    plan = plan.With(s, BlockStage{stage.layer, stage.halves, same ? was.own : OwnBlock::Share(own)});
  }
  return plan;
}

FittedSites FitInSequence(const ShiftJob& job, const std::vector<Site>& sites, const SequenceOptions& options,
                          const SiteFit& fit, std::optional<StartStreams> start) {
  Check(options.mode != Calibration::kIndependent && !sites.empty(), "independent sites are fitted from one pass");
  NoProgress quiet;  // the single fits report no progress
  const SiteCorrection correction = {
      options.input, [&](const SiteSums& sums, const Projection*, const BlockPtr&) { return fit(sums, quiet); }};
  std::vector<BlockPart> removed;
  for (const Site& site : sites)
    for (const BlockPart& part : site.Parts()) removed.push_back(part);
  const DepthPlan plan = options.plan != nullptr ? *options.plan : DepthPlan::Pruned(job.layers(), removed);
  const SequentialFitOptions sequential = {&correction, Heal::kOff, {}, options.weighting, options.mode};
  SequentialFitResult result = SequentialFit(job, plan, sites, sequential, std::move(start)).Run();
  FittedSites fitted;
  for (const AdapterStage* const adapter : result.plan.Adapters()) fitted.adapters.push_back(adapter->lra);
  fitted.reports = std::move(result.sites);
  fitted.seconds = result.seconds;
  return fitted;
}

}  // namespace shiftrt
