// SPDX-License-Identifier: Apache-2.0
// The selection and the fit of a command, kept on disk until the command is done.
#pragma once

#include <filesystem>
#include <optional>

#include "shift/pipeline.h"
#include "tools/recipe.h"

namespace shiftrt {

// A fit may take hours, and what follows it as long again. So it is written to the cache directory, under a name that
// stands for everything that decides it, and a command that is interrupted or killed behind it does not fit again when
// it is started once more. If several processes run the command, the first one writes the files.
class KeptFit {
 public:
  // Of a fit that `job` makes by `recipe`, of which `options` were parsed.
  KeptFit(const ShiftJob& job, const RecipeOptions& recipe, const ShiftOptions& options);
  // Says where the fit is kept, unless Done() was called.
  ~KeptFit();
  KeptFit(const KeptFit&) = delete;
  KeptFit& operator=(const KeptFit&) = delete;

  // The fit that an interrupted command left, or else the one that Shift() makes, which is then kept.
  ShiftResult Get(const ShiftJob& job, const ShiftOptions& options);
  // Nothing has to be done again: removes what is kept.
  void Done();

 private:
  void Save(const ShiftJob& job, const ShiftResult& result);
  ShiftResult Load(const ShiftJob& job) const;
  // What an interrupted command left, where every process can read it.
  std::optional<ShiftResult> Earlier(const ShiftJob& job) const;

  Processes& processes_;
  std::filesystem::path directory_;  // empty: nothing is kept
  bool kept_ = false;
};

}  // namespace shiftrt
