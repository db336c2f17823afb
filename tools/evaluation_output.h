// SPDX-License-Identifier: Apache-2.0
// What an evaluation found, as tables and as JSON.
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <string>
#include <vector>

#include "eval/summary.h"
#include "tools/paper/paper_tasks.h"
#include "tools/report/page.h"

namespace shiftrt {

// One task, with the paper's accuracies next to ours. With `all_metrics` every metric of a choice task, else the quoted
// one, bits per byte and margin.
void PrintTask(const TaskSummary& task, const std::vector<Variant>& variants, const PaperSetting& paper,
               bool all_metrics);
nlohmann::json TaskJson(const TaskSummary& task, const std::vector<Variant>& variants, const PaperSetting& paper);

// A table each of the quoted metric, of bits per byte and of margins: every task, and the means over `averaged`
// (AveragedTasks in eval/summary.h).
std::vector<PageTable> MeansTables(const std::vector<TaskSummary>& tasks, const std::vector<const Task*>& averaged,
                                   const std::vector<Variant>& variants);
// A sentence with the names of the averaged tasks; "" where these are all.
std::string AveragedNames(const std::vector<TaskSummary>& tasks, const std::vector<const Task*>& averaged);
nlohmann::json MeansJson(const std::vector<TaskSummary>& tasks, const std::vector<const Task*>& averaged,
                         const std::vector<Variant>& variants);

}  // namespace shiftrt
