// SPDX-License-Identifier: Apache-2.0
// Requests for downloads by the names that the public interface knows.
#pragma once

#include <string>
#include <vector>

#include "eval/files.h"
#include "hub/pull.h"

namespace shiftrt {

// The requests for a data set known by name: a text ("c4") or the rows of evaluation tasks ("arc_easy", "paper7"),
// without those that shots are drawn from. Empty for any other name.
std::vector<PullRequest> KnownDataset(const std::string& name);
PullRequest RequestOf(const Task& task, TaskRows rows);

}  // namespace shiftrt
