// SPDX-License-Identifier: Apache-2.0
// A task's rows as prompts.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

#include "eval/task.h"

namespace shiftrt {

struct Prompt {
  std::string context, continuation;
};

// One row, ready to be scored.
struct Item {
  std::string where;    // "file:line"
  std::string subject;  // the subject of an examination question
  std::vector<Prompt> prompts;
  int64_t gold = 0;
  // The divisors of scores: code points and bytes of each answer; of a document, its words (one value) and bytes.
  std::vector<int64_t> units, bytes;
};

struct Dataset {
  const Task* task = nullptr;
  std::vector<Item> items;
  std::vector<std::filesystem::path> files;
  int64_t rows = 0;  // in the files; items may be fewer (limit)
  int64_t shots = 0;
  std::string data_hash;      // hash of the rows' texts as they are in the files, shots included
  std::string template_hash;  // hash of the prompts made from a fixed row
};

struct DataOptions {
  std::vector<std::string> data;  // directories, and TASK=FILE
  int64_t limit = 0;              // rows (of each subject, where a task has subjects); 0: all
  int64_t shots = 0;
};

// Finds the task's files in `options.data` and then in the Hugging Face cache, reads and checks every row, and draws
// the shots. Throws Error naming the places looked at, or file and line of a row that is malformed.
Dataset LoadDataset(const Task& task, const DataOptions& options);

// The prompts of `examples`, the shots before each of them included; shots[i] are those of examples[i].
std::vector<Prompt> MakePrompts(const Example& example, const std::vector<const Example*>& shots);

}  // namespace shiftrt
