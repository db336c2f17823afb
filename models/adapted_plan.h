// SPDX-License-Identifier: Apache-2.0
// Reads the plan of a directory that --save made, with the tensors that shiftrt.json names.
#pragma once

#include <filesystem>
#include <memory>

#include "models/adapted_header.h"
#include "models/lora.h"
#include "models/weights.h"

namespace shiftrt {

struct AdaptedPlan {
  DepthPlan plan;                    // without its LoRA factors
  std::shared_ptr<const Lora> lora;  // those factors; null if there are none, or they were not asked for
};

// Reads the plan that `header` describes, for the model `weights`; the LoRA factors only with `options.merge_lora`.
// Throws Error for an adapter or a tensor that does not fit, is missing, or is not finite, for a tensor that no stage
// names, and for a checksum that differs.
AdaptedPlan ReadPlan(const AdaptedHeader& header, const std::filesystem::path& directory, const Weights& weights,
                     const LoadOptions& options);

}  // namespace shiftrt
