// SPDX-License-Identifier: Apache-2.0
// Writes the README.md of an export, which says from what the model was made, and how.
#pragma once

#include <string>
#include <vector>

#include "export/formats.h"

namespace shiftrt {

// The model that the plan was made from, as far as its files identify it.
struct Original {
  std::string name;               // "org/name" on the Hugging Face hub, or the name of a directory
  bool on_hub = false;            // `name` is one of the hub
  int64_t layers = 0;             // blocks that it has
  std::vector<int64_t> kept;      // the blocks that the plan runs
  std::vector<int64_t> removed;   // the blocks that it does not run
  std::vector<BlockPart> halves;  // the other halves that it does not run
};
// Identifies the original model. Its name is the first of these that is known: options.base_name; the repository of a
// directory in the Hugging Face cache; `_name_or_path` of config.json, if it looks like a repository; the name that the
// pruning command was given; the name of the directory.
Original OriginalOf(const ExportJob& job);

// The quantisation of the model's files, such as "Q4_K_M", if the export has other numbers than their blocks; "" if the
// blocks are written as they came, and for a model that was not quantised. `blocks`: the format has quantised blocks.
std::string DequantisedFrom(const ExportJob& job, bool blocks);

// Markdown with the metadata block of the Hugging Face hub: https://huggingface.co/docs/hub/model-cards. `usage`: a
// section of Markdown about this format. `notes`: those that the user is shown. `library`: the program that the hub
// offers to open the model with.
std::string ModelCard(const ExportJob& job, const std::string& usage, const std::vector<std::string>& notes,
                      const char* library = "transformers");

}  // namespace shiftrt
