// SPDX-License-Identifier: Apache-2.0
// A depth plan of a model, and what tables and files call it.
#pragma once

#include <string>

#include "models/plan.h"

namespace shiftrt {

struct Variant {
  std::string name;
  DepthPlan plan;
};

}  // namespace shiftrt
