// SPDX-License-Identifier: Apache-2.0
#include "shift/criteria/correctable.h"

#include <algorithm>

#include "runtime/host_memory.h"
#include "shift/criteria/greedy.h"
#include "shift/criteria/probes.h"
#include "shift/fit/factorize.h"
#include "shift/fit/messages.h"
#include "shift/fit/ridge.h"

namespace shiftrt {

namespace {

Correctable Correct(const Context& context, const RidgeSums& sums, const RidgeSolution& solution, int64_t rank) {
  const LowRank factors = Factorize(context, sums, solution, rank, Factorization::kReducedRank);
  const double unexplained = 1.0 - RSquared(context, sums, {factors.p.view(), factors.q.view()}, factors.b.view());
  return {MakeLra(factors), unexplained * sums.CenteredDeltaSquares()};
}

int64_t AdapterRank(const CriterionTask& task) {
  return std::min(task.spec.Option("rank"), task.input.weights->config.hidden);
}

const std::vector<Correctable>& Corrections(const CriterionTask& task) {
  return task.probes.Get<CorrectableProbe>().Found(AdapterRank(task));
}

}  // namespace

CorrectableProbe::CorrectableProbe(const CriterionInput& input, Progress& progress)
    : input_(input), progress_(progress) {}

int64_t CorrectableProbe::parts() const { return input_.weights->config.layers; }

int64_t CorrectableProbe::parts_at_once() const {
  return UsableMemory(input_.context) / RidgeSums::Bytes(input_.weights->config.hidden);
}

void CorrectableProbe::Begin(Tally& tally, int64_t begin, int64_t end) {
  probe_.emplace();
  sums_.clear();
  for (int64_t layer = begin; layer < end; ++layer) sums_.emplace_back(input_.weights->config.hidden);
  for (int64_t layer = begin; layer < end; ++layer) probe_->Add(Site{layer}, sums_[layer - begin]);
  probe_->Begin(tally, 0, end - begin);
}

void CorrectableProbe::End() {
  probe_.reset();
  progress_.Begin("solving", std::ssize(sums_));
  Processes& processes = *input_.context.processes;
  std::vector<std::vector<Correctable>> found(sums_.size(), std::vector<Correctable>(ranks_.size()));  // by layer
  processes.InRounds(std::ssize(sums_), [&](const Round& round) {
    if (round.mine) {
      const RidgeSums& layer = sums_[*round.mine];
      const RidgeSolution solution = SolveRidge(input_.context, layer, {});
      auto correctable = found[*round.mine].begin();
      for (int64_t rank : ranks_) *correctable++ = Correct(input_.context, layer, solution, rank);
      ++processes.work.fits;
    }
    progress_.Advance(round.present);
  });
  progress_.End();
  const auto put = [&](Packer& out, int64_t i) {
    for (const Correctable& correctable : found[i]) {
      Put(out, *correctable.lra);
      out.Put(correctable.residual);
    }
  };
  const auto get = [&](Unpacker& in, int64_t i) {
    for (Correctable& correctable : found[i]) {
      Get(in, correctable.lra);
      correctable.residual = in.Get<double>();
    }
  };
  processes.Share(std::ssize(sums_), put, get);
  for (std::vector<Correctable>& layer : found) {
    auto correctable = layer.begin();
    for (int64_t rank : ranks_) found_[rank].push_back(std::move(*correctable++));
  }
  sums_.clear();
}

void PlugCorrections(const CriterionTask& task) { task.probes.Get<CorrectableProbe>().Want(AdapterRank(task)); }

Selection SelectByResidual(const CriterionTask& task) {
  Selection selection;
  for (const Correctable& correctable : Corrections(task)) selection.scores.push_back(correctable.residual);
  selection.removed = PickLayers(selection.scores, task.count, task.spec.keep_first, task.spec.keep_last);
  return selection;
}

Selection SelectByCorrectedLoss(const CriterionTask& task) {
  const std::vector<Correctable>& corrections = Corrections(task);
  const auto adapter = [&](int64_t layer) {
    return std::optional<Stage>(AdapterStage{{layer}, corrections[layer].lra});
  };
  return SelectGreedily(task, adapter);
}

}  // namespace shiftrt
