// `--prune CRITERION:AMOUNT[,option=value]`: what to remove, and how much.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "models/weights.h"

namespace shiftrt {

struct PruneSpec {
  std::string criterion;  // a row of the table in criteria.cc
  // The amount; one of these.
  double ratio = 0;                       // removes floor(ratio * layers)
  int64_t count = 0;                      // removes so many
  int64_t parameters = 0, bytes = 0;      // removes until the blocks that stay, embedding, norm and head take no more
  std::vector<int64_t> layers;            // layers=3,5,8-10
  int64_t keep_first = 0, keep_last = 0;  // keep=first:4,last:2
  int64_t rank = 64;                      // rank=R: of the adapters that correctable tries, at most the hidden size
  int64_t tokens = 0;  // tokens=N: criteria that measure losses look at whole samples up to so many tokens; 0: at all
  std::string text;    // as given
};

// Throws UsageError naming what is wrong and listing the criteria known. Where `default_amount` is given a criterion
// may stand alone.
PruneSpec ParsePrune(const std::string& text, const std::string& default_amount = "");
// Several of them, comma separated: "bi,angular:4,keep=first:2,layers=3,5".
std::vector<PruneSpec> ParsePruneList(const std::string& text, const std::string& default_amount);

// How many blocks to remove. Throws UsageError for an amount that removes nothing or everything, more than `keep`
// leaves, or a target that no removal reaches.
int64_t RemovalCount(const PruneSpec& spec, const Weights& weights);

}  // namespace shiftrt
