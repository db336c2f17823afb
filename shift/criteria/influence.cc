// How far the stream turns across a block, or across the window of blocks that would go.
#include "shift/criteria/scores.h"

namespace shiftrt {

namespace {

Selection Blocks(const PruneSpec& spec, int64_t count, std::vector<double> scores) {
  Selection selection;
  selection.removed = PickLayers(scores, count, spec.keep_first, spec.keep_last);
  selection.scores = std::move(scores);
  return selection;
}

Selection Window(const PruneSpec& spec, int64_t count, std::vector<double> scores) {
  Selection selection;
  selection.removed = PickWindow(scores, count, spec.keep_first, spec.keep_last);
  selection.scores = std::move(scores);
  selection.window = count;
  return selection;
}

}  // namespace

void WantBlocks(const PruneSpec&, int64_t, const ModelConfig&, StreamWants& wants) { wants.windows.insert(1); }

void WantWindow(const PruneSpec&, int64_t count, const ModelConfig&, StreamWants& wants) {
  wants.windows.insert(count);
}

Selection SelectByBlockInfluence(const PruneSpec& spec, int64_t count, const CriterionInput&,
                                 const StreamFindings& findings, Progress&) {
  return Blocks(spec, count, findings.windows.at(1).Scores());
}

Selection SelectByFrobenius(const PruneSpec& spec, int64_t count, const CriterionInput&, const StreamFindings& findings,
                            Progress&) {
  return Blocks(spec, count, findings.windows.at(1).FrobeniusScores());
}

Selection SelectByAngle(const PruneSpec& spec, int64_t count, const CriterionInput&, const StreamFindings& findings,
                        Progress&) {
  return Window(spec, count, findings.windows.at(count).AngularScores());
}

Selection SelectByStreamline(const PruneSpec& spec, int64_t count, const CriterionInput&,
                             const StreamFindings& findings, Progress&) {
  return Window(spec, count, findings.windows.at(count).Scores());
}

}  // namespace shiftrt
