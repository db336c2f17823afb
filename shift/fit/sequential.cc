// SPDX-License-Identifier: Apache-2.0
#include "shift/fit/sequential.h"

#include <span>
#include <utility>

#include "runtime/check.h"
#include "runtime/stopwatch.h"
#include "shift/sums/collect.h"
#include "shift/sums/ridge_adder.h"

namespace shiftrt {

namespace {

// A batch on its way through the model, and its stream, which stays on the decoder's device: there is one per batch.
struct Walker {
  const Batch* batch = nullptr;
  KeptRows corrected, original;  // original: for drift alone
};

class Walk {
 public:
  // Until the first site, corrected and original stream are one.
  Walk(const ShiftJob& job, const std::vector<Site>& sites, Calibration mode, const TokenWeighting& weighting,
       StartStreams start)
      : drift_(mode == Calibration::kDrift),
        weighting_(weighting),
        tally_(MakeTally(job.context.WithGpu(0), job.model.weights)),
        decoder_(job.context, job.model.weights, DepthPlan::Original(job.layers()), UpdateTaps(sites)),
        fit_(Start(job.calibration.fit, std::move(start.fit))),
        heldout_(Start(job.calibration.heldout, std::move(start.heldout))) {
    const std::vector<Stage> stages = StagesBetween(2 * start.layer, sites[0].begin());
    for (Part* part : {&fit_, &heldout_})
      for (Walker& walker : part->walkers) {
        Run(walker, walker.corrected, stages);
        if (drift_) walker.original.Set(walker.corrected.rows());
      }
  }

  // From one place to another, such as from behind a site to the next, through what stays.
  void Advance(int64_t begin, int64_t end, Progress& progress) {
    const std::vector<Stage> stages = StagesBetween(begin, end);
    for (Part* part : {&fit_, &heldout_})
      InRounds(*part, progress, [&](Walker& walker) {
        Run(walker, walker.corrected, stages);
        if (drift_) Run(walker, walker.original, stages);
      });
  }

  // What the site takes in and should give.
  void Collect(SiteSums& sums, Progress& progress) {
    for (const auto& [part, into] : {std::pair(&fit_, &sums.fit), std::pair(&heldout_, &sums.heldout)}) {
      RidgeAdder adder(*tally_, sums.site, *into);
      const auto add = [&](Walker& walker) {
        SetUpdate(sums.site, walker);
        const Rows stream = walker.corrected.rows();
        adder.Add({stream, stream, update_.rows()}, weighting_, *walker.batch);
      };
      InRounds(*part, progress, add, &adder);
      adder.Settle();
    }
  }

  void Correct(const Site& site, std::shared_ptr<const Lra> lra) {
    const std::vector<Stage> adapter = {AdapterStage{site.Parts(), std::move(lra)}};
    for (Part* part : {&fit_, &heldout_})
      for (Walker& walker : part->walkers)
        walker.corrected.Set(decoder_.Resume(*walker.batch, walker.corrected.rows(), adapter));
  }

 private:
  // The fitted or the held-out text.
  struct Part {
    const std::vector<Batch>* batches;
    std::vector<Walker> walkers;  // of the batches of this process
  };

  Part Start(const std::vector<Batch>& batches, std::vector<KeptRows> streams) const {
    Part part{&batches, std::vector<Walker>(streams.size())};
    const Processes& processes = tally_->processes();
    for (size_t i = 0; i < streams.size(); ++i) {
      part.walkers[i].batch = &batches[processes.rank() + i * processes.size()];
      part.walkers[i].corrected = std::move(streams[i]);
    }
    return part;
  }

  // Calls call(walker) for each, and ends the rounds of `adder`.
  template <typename Call>
  void InRounds(Part& part, Progress& progress, const Call& call, RidgeAdder* adder = nullptr) {
    auto walker = part.walkers.begin();
    Processes& processes = tally_->processes();
    processes.InRounds(std::ssize(*part.batches), [&](const Round& round) {
      if (round.mine) call(*walker++);
      if (adder != nullptr) adder->EndRound(round.present);
      processes.Flush();
      for (int64_t b = round.first; b < round.end(); ++b) progress.Advance((*part.batches)[b].size());
    });
  }

  void Run(const Walker& walker, KeptRows& stream, std::span<const Stage> stages) {
    if (!stages.empty()) stream.Set(decoder_.Resume(*walker.batch, stream.rows(), stages));
  }

  // What the site should give for this batch.
  void SetUpdate(const Site& site, Walker& walker) {
    const std::vector<Stage> stages = StagesBetween(site.begin(), site.end());
    if (drift_) {
      Run(walker, walker.original, stages);
      update_.Set(walker.original.rows());
      update_.Subtract(walker.corrected.rows());
      return;
    }
    collecting_ = site.layer;
    decoder_.Resume(*walker.batch, walker.corrected.rows(), stages);
    collecting_ = -1;
  }

  // Sums into update_ what the blocks, or halves, of the site add whose first layer is `collecting_`.
  std::vector<Tap> UpdateTaps(const std::vector<Site>& sites) {
    std::vector<Tap> taps;
    for (const Site& site : sites)
      for (int64_t layer = site.layer; layer <= site.last(); ++layer)
        taps.push_back({layer, TapPoint::kUpdate, [this, first = site.layer, layer](const Rows& update, const Batch&) {
                          if (collecting_ != first) return;
                          if (layer == first) {
                            update_.Set(update);
                          } else {
                            update_.Add(update);
                          }
                        }});
    return taps;
  }

  const bool drift_;
  const TokenWeighting& weighting_;
  const std::unique_ptr<Tally> tally_;
  KeptRows update_;  // of one batch, where the sums are
  int64_t collecting_ = -1;
  Decoder decoder_;
  Part fit_, heldout_;
};

}  // namespace

FittedSites FitInSequence(const ShiftJob& job, const std::vector<Site>& sites, Calibration mode,
                          const TokenWeighting& weighting, const SiteFit& fit, std::optional<StartStreams> start) {
  Check(mode != Calibration::kIndependent && !sites.empty(), "independent sites are fitted from one pass");
  CheckMemory(job.context, 1, job.hidden(), "a higher limit allows more");
  FittedSites fitted;
  double seconds = 0;
  {
    const Stopwatch watch(seconds);
    if (!start) start = StreamsBefore(sites[0].layer, job, "calibrating up to the first site");
    Walk walk(job, sites, mode, weighting, std::move(*start));
    const int64_t tokens = job.calibration.fit_tokens + job.calibration.heldout_tokens;
    NoProgress quiet;  // of the single fits
    job.progress.Begin("calibrating in sequence", tokens * (2 * static_cast<int64_t>(sites.size()) - 1));
    for (size_t i = 0; i < sites.size(); ++i) {
      if (i > 0) walk.Advance(sites[i - 1].end(), sites[i].begin(), job.progress);
      SiteSums sums(sites[i], job.hidden());
      walk.Collect(sums, job.progress);
      fitted += fit(sums, quiet);
      if (i + 1 < sites.size()) walk.Correct(sites[i], fitted.adapters.back());
    }
    job.progress.End();
  }
  fitted.seconds.calibrate = seconds - fitted.seconds.solve - fitted.seconds.factorize;
  return fitted;
}

}  // namespace shiftrt
