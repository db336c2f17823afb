// SPDX-License-Identifier: Apache-2.0
// Shows the results of an evaluation as tables for people and as JSON for tools.
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <string>
#include <vector>

#include "shiftrt/evaluate.h"
#include "tools/paper/paper_tasks.h"
#include "tools/report/page.h"

namespace shiftrt {

// The table of one task. Of tasks with choices, only the accuracy that is quoted is among the accuracies, unless
// `all_metrics`.
void PrintSuite(const SuiteResult& suite, const std::vector<ModelVariant>& variants, const PaperSetting& paper,
                bool all_metrics);
nlohmann::json SuiteJson(const SuiteResult& suite, const std::vector<ModelVariant>& variants,
                         const PaperSetting& paper);

// A table per metric that has means: a row per task, then the mean and its difference to the first variant's.
std::vector<PageTable> MeansTables(const SuiteEvaluation& evaluation, const std::vector<ModelVariant>& variants);
nlohmann::json MeansJson(const SuiteEvaluation& evaluation, const std::vector<ModelVariant>& variants);
// Says which tasks the means are taken over; empty if these are all.
std::string AveragedNames(const SuiteEvaluation& evaluation);

}  // namespace shiftrt
