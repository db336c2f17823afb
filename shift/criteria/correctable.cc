// Ours: what matters about a block is not how much it does, but how much of it no adapter can do in its place.
#include <algorithm>

#include "shift/criteria/greedy.h"
#include "shift/criteria/scores.h"

namespace shiftrt {

namespace {

int64_t AdapterRank(const PruneSpec& spec, const ModelConfig& config) { return std::min(spec.rank, config.hidden); }

const std::vector<Correctable>& Corrections(const PruneSpec& spec, const CriterionInput& input,
                                            const StreamFindings& findings) {
  return findings.correctable.at(AdapterRank(spec, input.weights->config));
}

}  // namespace

void WantCorrections(const PruneSpec& spec, int64_t, const ModelConfig& config, StreamWants& wants) {
  wants.correction_ranks.insert(AdapterRank(spec, config));
}

Selection SelectByResidual(const PruneSpec& spec, int64_t count, const CriterionInput& input,
                           const StreamFindings& findings, Progress&) {
  Selection selection;
  for (const Correctable& correctable : Corrections(spec, input, findings))
    selection.scores.push_back(correctable.residual);
  selection.removed = PickLayers(selection.scores, count, spec.keep_first, spec.keep_last);
  return selection;
}

Selection SelectByCorrectedLoss(const PruneSpec& spec, int64_t count, const CriterionInput& input,
                                const StreamFindings& findings, Progress& progress) {
  const std::vector<Correctable>& corrections = Corrections(spec, input, findings);
  const auto adapter = [&](int64_t layer) {
    return std::optional<Stage>(AdapterStage{{layer}, corrections[layer].lra});
  };
  return SelectGreedily(spec, count, input, adapter, progress);
}

}  // namespace shiftrt
