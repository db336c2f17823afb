// SPDX-License-Identifier: Apache-2.0
// What to remove, and how much: CRITERION:AMOUNT[,option=value].
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <string>
#include <string_view>
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
  std::map<std::string, int64_t, std::less<>> options;  // of the criterion alone, as given: rank=16
  std::string text;                                     // the whole, as given

  // The value of an option that the criterion has: as given, or else what it is otherwise.
  int64_t Option(std::string_view name) const;
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
