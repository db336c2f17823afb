// SPDX-License-Identifier: Apache-2.0
// The options of `finetune` that are settings of the training: one for each row of types/training.h that has one.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "tools/paper/finetuning.h"
#include "types/training.h"

namespace CLI {
class App;
class Option;
}  // namespace CLI

namespace shiftrt {

struct FinetuneOptions {
  std::map<std::string_view, std::string> words = {};  // by the names of the rows, as options give them
  std::vector<std::pair<const FinetuneField*, const CLI::Option*>> given = {};  // by AddTo()

  void AddTo(CLI::App& app);
  // Gives the options that the command line leaves out the values of the preset.
  void TakePreset(const FinetunePreset& preset);
  // The settings, but for --adapters. Throws UsageError for what does not parse, and for an option that the method does
  // not read.
  FinetuneSettings Parse(uint64_t seed) const;
  // The words of --adapters: there is one training for each. Throws UsageError if a word is there twice.
  std::vector<std::string> AdapterModes() const;
};

}  // namespace shiftrt
