// SPDX-License-Identifier: Apache-2.0
// What the formats hf and hf-lra have in common: a Hugging Face directory of the plan's blocks.
#pragma once

#include <span>
#include <string>
#include <utility>
#include <vector>

#include "export/formats.h"
#include "models/plan_checkpoint.h"

namespace shiftrt {

// A tensor that a block has of its own, but that the family's architecture lacks, as the end of a sentence; "" where
// there is none. It would be left out of a checkpoint.
std::string WhyNoHfDirectory(const Model& model, const DepthPlan& plan);

// What such a directory has besides the blocks.
struct HfExtras {                                          // NOLINT(bugprone-exception-escape): of the JSON library
  nlohmann::json config;                                   // in place of PlanConfig; null: that
  std::vector<TensorOfParts> tensors;                      // behind those of the blocks
  std::vector<std::pair<std::string, std::string>> files;  // name and content
  std::string usage;                                       // Markdown for the model card
};

// config.json, the weights in shards, what lies beside the original's weights, and the model card. Returns the notes of
// ExportFormat::write.
std::vector<std::string> WriteHfDirectory(const ExportJob& job, HfExtras extras,
                                          const std::filesystem::path& directory);

// Opens the directory and compares the bits of its logits with those of the plan: ExportFormat::verify.
void VerifyHfDirectory(const ExportJob& job, const std::filesystem::path& directory);

}  // namespace shiftrt
