// SPDX-License-Identifier: Apache-2.0
// What an evaluation found, as tables and as JSON.
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <vector>

#include "eval/summary.h"
#include "tools/paper/paper_tasks.h"

namespace shiftrt {

// One task, with the paper's accuracies next to ours. With `all_metrics` every metric of a choice task, else the quoted
// one.
void PrintTask(const TaskSummary& task, const std::vector<Variant>& variants, const PaperSetting& paper,
               bool all_metrics);
nlohmann::json TaskJson(const TaskSummary& task, const std::vector<Variant>& variants, const PaperSetting& paper);

// The quoted metric of every task, and the mean of accuracies.
void PrintMeans(const std::vector<TaskSummary>& tasks, const std::vector<Variant>& variants);
nlohmann::json MeansJson(const std::vector<TaskSummary>& tasks, const std::vector<Variant>& variants);

}  // namespace shiftrt
