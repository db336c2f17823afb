// SPDX-License-Identifier: Apache-2.0
// A depth plan of a model with its kind and its names.
#pragma once

#include <string>

#include "models/plan.h"

namespace shiftrt {

enum class VariantKind {
  kOriginal,   // every block
  kPruned,     // without the removed blocks
  kCorrected,  // with a correction in their place
  kMerged,     // with neighbouring adapters merged into one
};

struct Variant {
  VariantKind kind = VariantKind::kOriginal;
  std::string name;   // in files and on the command line: "original", "pruned", the correction's name, "merged"
  std::string label;  // in tables: "pruned + LRA 64"
  DepthPlan plan;
};

}  // namespace shiftrt
