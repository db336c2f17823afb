// SPDX-License-Identifier: Apache-2.0
// The README.md of an export: what the model was made from, and how.
#pragma once

#include <string>
#include <vector>

#include "export/formats.h"

namespace shiftrt {

// The model that the plan was made from, as far as its files say.
struct Original {
  std::string name;              // "org/name" on the Hugging Face hub, or the name of a directory
  bool on_hub = false;           // whether `name` is the former
  int64_t layers = 0;            // blocks that it has
  std::vector<int64_t> kept;     // of these the plan runs
  std::vector<int64_t> removed;  // and these not
};
// The name is the first that is known of: options.base_name; the repository of a directory in the Hugging Face cache;
// `_name_or_path` of config.json, where it looks like a repository's; what the command that pruned it was given; the
// directory's own.
Original OriginalOf(const ExportJob& job);

// Markdown with the metadata block of the Hugging Face hub: https://huggingface.co/docs/hub/model-cards. `usage` is a
// section of Markdown about this format; `notes` are those that the user is told. `library`: what the hub shows as the
// program for it.
std::string ModelCard(const ExportJob& job, const std::string& usage, const std::vector<std::string>& notes,
                      const char* library = "transformers");

}  // namespace shiftrt
