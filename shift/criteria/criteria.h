// SPDX-License-Identifier: Apache-2.0
// The criteria, which choose the layers to remove (docs/dev/method.md).
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "engine/decoder.h"
#include "include/shiftrt/provenance.h"
#include "runtime/progress.h"
#include "shift/criteria/prune_spec.h"
#include "shift/setting.h"

namespace shiftrt {

// The input of a criterion. `calibration` holds packed sequences; criteria without data ignore it.
struct CriterionInput {
  Context context;
  std::shared_ptr<const Weights> weights;
  const std::vector<Batch>* calibration = nullptr;
  uint64_t seed = 0;
};

class Probe;
class ProbeSet;

// One selection to make.
struct CriterionTask {
  const PruneSpec& spec;
  const Quota quota;
  const CriterionInput& input;
  ProbeSet& probes;  // shift/criteria/probes.h
  Progress& progress;
};

// An option of one criterion, as rank=16 in "correctable:0.25,rank=16": a whole number above 0.
struct CriterionOption {
  std::string_view name;
  int64_t default_value;
};

// The data that a criterion looks at.
enum class Looks : uint8_t {
  kShape,    // the number of layers, and the seed
  kWeights,  // the weights
  kPass,     // one pass over the calibration text
  kPasses,   // several passes, or a backward pass
};

// To add a criterion, write criteria/<name>.cc with its functions, and its row in the table of criteria.cc.
struct Criterion {
  const char* name;
  const char* summary;  // one line for lists of criteria
  std::vector<CriterionOption> options;
  Looks looks_at;
  // True if its scores do not depend on the amount and the options, so that earlier scores can be used again.
  bool scores_stand_alone;
  // Has at most kHalves, kSplit and kUpdateNorms. A criterion that accepts kSplit reads no weights, and
  // only the streams of its own part of the model.
  SettingSet accepts;
  // Plugs its probes into the pass that all criteria share; null: it has none.
  void (*plug)(const CriterionTask& task);
  Selection (*select)(const CriterionTask& task);
  bool consecutive = false;  // it removes one run of units

  bool needs_calibration() const { return looks_at >= Looks::kPass; }
  const CriterionOption* OptionNamed(std::string_view option) const;  // null where it has none of that name
};
// The table: one row per criterion.
const std::vector<Criterion>& Criteria();
// The row of that name, or null.
const Criterion* CriterionNamed(std::string_view name);
// The same; throws UsageError listing the criteria known.
const Criterion& FindCriterion(std::string_view name);
// Throws UsageError, with the field "prune", if the criterion does not accept one of these settings.
void CheckCriterion(const PruneSpec& spec, SettingSet used);
// Throws UsageError if `spec` removes halves of parallel blocks (BlockSpec::parallel).
void CheckParallelBlocks(const PruneSpec& spec, const ModelConfig& config);
// True if any of them looks at calibration text.
bool NeedCalibration(const std::vector<PruneSpec>& specs);

// Scores every unit and makes the selection, for each of `specs`. One pass of the original model serves all of them,
// and the probes `others`, which receive nothing if no criterion has a probe. Throws UsageError as RemovalCount and
// CheckCriterion do, and Error without the text a criterion needs.
std::vector<Selection> SelectLayers(const std::vector<PruneSpec>& specs, const CriterionInput& input,
                                    Progress& progress, std::span<Probe* const> others = {});
Selection SelectLayers(const PruneSpec& spec, const CriterionInput& input, Progress& progress,
                       std::span<Probe* const> others = {});

// The selection of `spec` from earlier scores of a criterion with scores_stand_alone.
Selection Reselect(const PruneSpec& spec, std::vector<double> scores, const Weights& weights);

// Takes the units with the lowest scores per size as long as the quota admits them. On a tie the deeper unit goes
// first.
std::vector<BlockPart> PickUnits(const std::vector<double>& scores, const Quota& quota);
// Takes units in the order of their scores alone, for scores that give an order and not the worth of a unit.
std::vector<BlockPart> PickInOrder(const std::vector<double>& scores, const Quota& quota);
// quota.count() consecutive units, from the scores of each window by its first unit: the lowest, ties to the deeper.
std::vector<BlockPart> PickWindow(const std::vector<double>& scores, const Quota& quota);
// The indices of the scores from first to end - 1, the lowest first, on a tie the higher index.
std::vector<int64_t> Ranking(const std::vector<double>& scores, int64_t first, int64_t end);

}  // namespace shiftrt
