// SPDX-License-Identifier: Apache-2.0
// A task's rows as prompts.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

#include "eval/task.h"
#include "include/shiftrt/measurements.h"

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
  // The divisors of scores: code points and bytes of each choice; of a document, its words (one value) and bytes. The
  // choices are the answers or, if there is one answer to several contexts, the contexts without shots.
  std::vector<int64_t> units, bytes;
  std::vector<int64_t> answer_bytes;  // bytes of each answer; empty for a document
  // A task of replies has the answer, and the beginning of the program that the reply continues.
  std::string answer = {}, code = {};
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

// Finds the task's files in `settings.data` and then in the Hugging Face cache, reads and checks every row, and draws
// the shots. Throws Error naming the places looked at, or file and line of a row that is malformed; UsageError for
// shots or a limit below 0, for shots that the task does not have, and for a task that runs programs where that is not
// allowed. Without a number of shots, those that are usual
// for the task are taken.
Dataset LoadDataset(const Task& task, const SuiteSettings& settings);

// The prompts of `examples`, the shots before each of them included; shots[i] are those of examples[i].
std::vector<Prompt> MakePrompts(const Example& example, const std::vector<const Example*>& shots);

}  // namespace shiftrt
