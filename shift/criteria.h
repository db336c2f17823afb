// Which layers to remove: `--prune CRITERION:AMOUNT[,option=value]`.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "models/decoder.h"
#include "runtime/progress.h"

namespace shiftrt {

struct PruneSpec {
  std::string criterion;  // a row of the table in criteria.cc
  double ratio = 0;       // removes floor(ratio * layers) where count is 0
  int64_t count = 0;
  std::vector<int64_t> layers;            // layers=3,5,8-10
  int64_t keep_first = 0, keep_last = 0;  // keep=first:4,last:2
  std::string text;                       // as given
};
// Throws UsageError naming what is wrong and listing the criteria known.
PruneSpec ParsePrune(const std::string& text);

struct Selection {
  std::string criterion;
  std::vector<double> scores;    // a score a layer, lower = removed first; empty for layers=
  std::vector<int64_t> removed;  // ascending
};

// What a criterion may look at. `calibration` holds packed sequences; criteria without data ignore it.
struct CriterionInput {
  Context context;
  std::shared_ptr<const Weights> weights;
  const std::vector<Batch>* calibration = nullptr;
  uint64_t seed = 0;
};

struct Criterion {
  const char* name;
  const char* summary;  // one line for --help
  bool needs_calibration;
  std::vector<double> (*score)(const CriterionInput&, Progress&);
};
// The table: one row a criterion.
const std::vector<Criterion>& Criteria();
// The row of that name; "bi:token" is "bi". Throws UsageError listing the criteria known.
const Criterion& FindCriterion(const std::string& name);

// Scores every layer and picks. Throws UsageError for an amount that removes nothing or everything, or more than `keep`
// leaves.
Selection SelectLayers(const PruneSpec& spec, const CriterionInput& input, Progress& progress);
// The choice alone, from scores: the lowest first, ties to the deeper layer.
std::vector<int64_t> PickLayers(const std::vector<double>& scores, int64_t count, int64_t keep_first,
                                int64_t keep_last);

}  // namespace shiftrt
