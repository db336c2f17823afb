// SPDX-License-Identifier: Apache-2.0
// What was scored, item by item, as JSON lines.
#pragma once

#include <filesystem>
#include <vector>

#include "eval/evaluate.h"
#include "eval/requests.h"
#include "runtime/files.h"

namespace shiftrt {

// One line per item: texts and token ids of its prompts, and the scores of each variant by its name. The encoder is to
// outlive the log.
class ItemLog {
 public:
  ItemLog(const std::filesystem::path& file, PromptEncoder& encoder) : encoder_(encoder), file_(file) {}

  // The items of a data set, with the scores that Evaluate() gave them. Throws Error when they cannot be written.
  void Add(const Dataset& dataset, const std::vector<Variant>& variants, const EvalScores& scores);
  // The file appears under its name.
  void Commit() { file_.Commit(); }

 private:
  PromptEncoder& encoder_;
  AtomicFile file_;
};

}  // namespace shiftrt
