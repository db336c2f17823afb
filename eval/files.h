// SPDX-License-Identifier: Apache-2.0
// Where the files of a data set are.
#pragma once

#include <filesystem>
#include <string>
#include <vector>

#include "eval/task.h"

namespace shiftrt {

// Files of the first of `patterns` that any of the places has: the directories of `data` ("TASK=FILE" names a file
// outright), then the snapshots of the task's repository in the Hugging Face cache. In the order of their names; more
// than one only for a task with one file per subject. Throws Error listing the places.
std::vector<std::filesystem::path> FindTaskFiles(const Task& task, const std::vector<std::string>& patterns,
                                                 const std::vector<std::string>& data);

}  // namespace shiftrt
