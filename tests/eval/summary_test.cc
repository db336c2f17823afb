// SPDX-License-Identifier: Apache-2.0
#include "eval/summary.h"

#include <gtest/gtest.h>

#include <cmath>
#include <deque>

namespace shiftrt {
namespace {

// Data sets of four items with two choices each, the first of which is right, and scores of two variants: the first has
// the first `right` items right, the second one more.
class Summaries : public ::testing::Test {
 protected:
  void Add(const char* task, int right) {
    Dataset& dataset = datasets_.emplace_back();
    dataset.task = ParseTasks(task)[0];
    EvalScores scores;
    for (const int of_variant : {right, right + 1}) {
      auto& items = scores.scores.emplace_back();
      for (int i = 0; i < 4; ++i) items.push_back({{i < of_variant ? -1.0 : -3.0, true}, {-2.0, false}});
    }
    for (int i = 0; i < 4; ++i) {
      Item item;
      item.prompts.resize(2);
      item.units = item.bytes = {1, 1};
      dataset.items.push_back(item);
    }
    tasks_.push_back(Summarize(dataset, scores, /*all=*/false));
  }

  std::deque<Dataset> datasets_;  // which stay where they are
  std::vector<TaskSummary> tasks_;
};

TEST_F(Summaries, VariantsAreComparedWithTheFirst) {
  Add("piqa", 1);
  const TaskSummary& task = tasks_[0];
  EXPECT_FALSE(task.Quoted(0).to_first);
  EXPECT_EQ(task.Quoted(0).metric.name, "acc");
  EXPECT_DOUBLE_EQ(task.Quoted(0).metric.estimate.value, 0.25);
  EXPECT_DOUBLE_EQ(task.Quoted(1).to_first->difference.value, 0.25);
  EXPECT_EQ(task.Quoted(1).to_first->only_second, 1);
  EXPECT_EQ(task.Quoted(1).to_first->only_first, 0);
}

TEST_F(Summaries, WithoutAllOfThePapersTasksTheMeanIsOverAllThatCount) {
  Add("piqa", 1);
  Add("mmlu", 3);
  const std::vector<MeanAccuracy> means = MeanAccuracies(tasks_);
  ASSERT_EQ(means.size(), size_t{2});
  EXPECT_EQ(means[0].tasks, 2);
  EXPECT_DOUBLE_EQ(means[0].mean.value, 0.5);
  EXPECT_FALSE(means[0].to_first);
  EXPECT_DOUBLE_EQ(means[1].mean.value, 0.75);
  EXPECT_DOUBLE_EQ(means[1].to_first->value, 0.25);
}

TEST_F(Summaries, WithThePapersSevenTasksTheMeanIsOverThem) {
  for (const char* task : {"boolq", "piqa", "hellaswag", "winogrande", "arc_easy", "arc_challenge", "openbookqa"})
    Add(task, 1);
  Add("mmlu", 3);
  const std::vector<MeanAccuracy> means = MeanAccuracies(tasks_);
  ASSERT_EQ(means.size(), size_t{2});
  EXPECT_EQ(means[0].tasks, 7);
  EXPECT_DOUBLE_EQ(means[0].mean.value, 0.25);
}

TEST_F(Summaries, NothingThatCountsHasNoMean) { EXPECT_TRUE(MeanAccuracies({}).empty()); }

}  // namespace
}  // namespace shiftrt
