// SPDX-License-Identifier: Apache-2.0
#include "eval/tasks/tasks.h"

#include <algorithm>

#include "eval/task.h"
#include "runtime/check.h"
#include "runtime/parse.h"

namespace shiftrt {

namespace {

constexpr size_t kPaperTasks = 7;  // the first of the table, in the paper's order

// Suites on which models of some hundred million parameters are clearly better than guesses.
constexpr const char* kSmallModels = "hellaswag,arc_easy,piqa,lambada";

}  // namespace

const std::vector<Task>& Tasks() {
  static const std::vector<Task> tasks = {
      BoolqTask(),        PiqaTask(),       HellaswagTask(), WinograndeTask(), ArcEasyTask(),
      ArcChallengeTask(), OpenbookqaTask(), MmluTask(),      CmmluTask(),      LambadaTask(),
      WikitextTask(),     Gsm8kTask(),      Gsm8kCotTask(),  HumanEvalTask(),  HumanEvalInstructTask(),
  };
  return tasks;
}

const Task* FindTask(std::string_view name) {
  for (const Task& task : Tasks())
    if (name == task.name || (!name.empty() && name == task.alias)) return &task;
  return nullptr;
}

std::string TaskNames() {
  std::string names;
  for (const Task& task : Tasks()) names += (names.empty() ? "" : ", ") + task.name;
  return names;
}

std::vector<const Task*> ParseTasks(std::string_view names) {
  std::vector<const Task*> tasks;
  const auto add = [&](const Task* task) {
    if (std::find(tasks.begin(), tasks.end(), task) == tasks.end()) tasks.push_back(task);
  };
  if (names.empty()) FailUsage(Field("tasks"), "none is named; known: {}, paper7, small4, all", TaskNames());
  for (const std::string_view name : SplitCommas(names)) {
    if (name == "paper7") {
      for (size_t i = 0; i < kPaperTasks; ++i) add(&Tasks()[i]);
    } else if (name == "all") {
      for (const Task& task : Tasks())
        if (task.kind != TaskKind::kReply) add(&task);
    } else if (name == "small4") {
      for (const Task* task : ParseTasks(kSmallModels)) add(task);
    } else {
      const Task* const task = FindTask(name);
      if (task == nullptr)
        FailUsage(Field("tasks"), "unknown task \"{}\"; known: {}, paper7, small4, all", name, TaskNames());
      add(task);
    }
  }
  return tasks;
}

}  // namespace shiftrt
