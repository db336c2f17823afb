// SPDX-License-Identifier: Apache-2.0
// The common part of the formats hf and hf-lra: a Hugging Face directory with the plan's blocks.
#pragma once

#include <span>
#include <string>
#include <utility>
#include <vector>

#include "export/formats.h"
#include "models/plan_checkpoint.h"

namespace shiftrt {

// Names a tensor that a block of the plan has but that the family's architecture lacks, as the end of a sentence; "" if
// there is none. A checkpoint would leave it out.
std::string WhyNoHfDirectory(const Model& model, const DepthPlan& plan);

// The contents of such a directory besides the blocks.
struct HfExtras {                                          // NOLINT(bugprone-exception-escape): of the JSON library
  nlohmann::json config;                                   // null: PlanConfig's
  std::vector<TensorOfParts> tensors;                      // written after those of the blocks
  bool all_tensors = false;                                // `tensors` has those of the blocks too
  std::vector<std::string> notes;                          // before the others
  std::vector<std::pair<std::string, std::string>> files;  // name and content
  std::string usage;                                       // Markdown for the model card
};

// Writes config.json, the weights in shards, the files next to the original's weights, and the model card. Returns the
// notes of ExportFormat::write.
std::vector<std::string> WriteHfDirectory(const ExportJob& job, HfExtras extras,
                                          const std::filesystem::path& directory);

// Opens the directory and compares the bits of its logits with those of the plan: ExportFormat::verify.
void VerifyHfDirectory(const ExportJob& job, const std::filesystem::path& directory);

}  // namespace shiftrt
