// SPDX-License-Identifier: Apache-2.0
// The key of what a model computes (runtime/work_key.h).
#pragma once

#include <string_view>

#include "models/model.h"
#include "runtime/context.h"
#include "runtime/work_key.h"

namespace shiftrt {

// A key of all but the input and the settings: the weights as they are computed with, the unit that computes, the plan,
// and the tokens that end a reply. `what` is computed.
WorkKey ResultKey(std::string_view what, const Context& context, const Model& model, const DepthPlan& plan);

}  // namespace shiftrt
