// SPDX-License-Identifier: Apache-2.0
#include "eval/tasks/tasks.h"

#include <algorithm>

#include "eval/task.h"
#include "runtime/check.h"

namespace shiftrt {

namespace {

constexpr size_t kPaperTasks = 7;  // the first of the table, in the paper's order

// Suites on which models of some hundred million parameters are clearly better than guesses.
constexpr const char* kSmallModels = "hellaswag,arc_easy,piqa,lambada";

const Task* FindTask(std::string_view name) {
  for (const Task& task : Tasks())
    if (task.name == name) return &task;
  std::string known;
  for (const Task& task : Tasks()) known += task.name + ", ";
  FailUsage(Field("tasks"), "unknown task \"{}\"; known: {}paper7, small4, all", name, known);
}

}  // namespace

const std::vector<Task>& Tasks() {
  static const std::vector<Task> tasks = {
      BoolqTask(),      PiqaTask(), HellaswagTask(), WinograndeTask(), ArcEasyTask(),  ArcChallengeTask(),
      OpenbookqaTask(), MmluTask(), CmmluTask(),     LambadaTask(),    WikitextTask(),
  };
  return tasks;
}

std::vector<const Task*> ParseTasks(std::string_view names) {
  std::vector<const Task*> tasks;
  const auto add = [&](const Task* task) {
    if (std::find(tasks.begin(), tasks.end(), task) == tasks.end()) tasks.push_back(task);
  };
  while (true) {
    const std::string_view name = names.substr(0, names.find(','));
    if (name == "paper7" || name == "all") {
      for (size_t i = 0; i < (name == "all" ? Tasks().size() : kPaperTasks); ++i) add(&Tasks()[i]);
    } else if (name == "small4") {
      for (const Task* task : ParseTasks(kSmallModels)) add(task);
    } else {
      add(FindTask(name));
    }
    if (name.size() == names.size()) return tasks;
    names.remove_prefix(name.size() + 1);
  }
}

}  // namespace shiftrt
