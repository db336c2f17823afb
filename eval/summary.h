// SPDX-License-Identifier: Apache-2.0
// Summarises the scores of an evaluation: metrics of each task and variant, paired differences, means.
#pragma once

#include <string>
#include <vector>

#include "eval/dataset.h"
#include "eval/evaluate.h"
#include "include/shiftrt/measurements.h"

namespace shiftrt {

// The result of one task. With `all`, of every metric that Measure() has, each compared with the first variant's on the
// same items.
SuiteResult Summarize(const Dataset& dataset, const EvalScores& scores, bool all);
// The score of the metric that is quoted for the task.
const SuiteScore& Quoted(const SuiteResult& task, size_t variant);

// The tasks that means are taken over, for a model of so many parameters: all of the group small4 if they are there and
// the model is small (below kSmallModel), else all of the paper's seven if they are there, else all that count right
// answers. BoolQ is left out on small models, whose answers to it are close to guesses, unless it is alone.
std::vector<const Task*> AveragedTasks(const std::vector<const Task*>& tasks, int64_t parameters);
inline constexpr int64_t kSmallModel = 1'000'000'000;

// The means of the quoted accuracies, or of `metric` if it is named, over those of the averaged tasks that have it.
// Without models if none has.
SuiteMeans Means(const std::vector<SuiteResult>& tasks, const std::vector<const Task*>& averaged,
                 const std::string& metric = {});

}  // namespace shiftrt
