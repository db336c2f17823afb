// SPDX-License-Identifier: Apache-2.0
// Finds the files of a data set.
#pragma once

#include <filesystem>
#include <string>
#include <vector>

#include "eval/task.h"
#include "hub/cache.h"

namespace shiftrt {

// The two kinds of rows of a task: those to evaluate, and those that shots are drawn from.
enum class TaskRows { kItems, kShots };

// Files of the first of the task's patterns that any of the places has: the directories of `data` ("TASK=FILE" names a
// file outright), then the snapshots of the task's repository in the Hugging Face cache. In the order of their names;
// more than one only for a task with one file per subject. Throws Error listing the places.
std::vector<std::filesystem::path> FindTaskFiles(const Task& task, TaskRows rows, const std::vector<std::string>& data);

// The same, but empty where there is none.
std::vector<std::filesystem::path> LookForTaskFiles(const Task& task, TaskRows rows,
                                                    const std::vector<std::string>& data);

// The location of the rows on the hub: the repository, and a pattern of the files in it.
struct HubFiles {
  Repository repository;
  std::string pattern;
};
HubFiles HubFilesOf(const Task& task, TaskRows rows);

}  // namespace shiftrt
