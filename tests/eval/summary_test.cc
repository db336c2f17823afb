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
      item.units = item.bytes = item.answer_bytes = {1, 1};
      dataset.items.push_back(item);
    }
    tasks_.push_back(Summarize(dataset, scores, /*all=*/false));
  }

  // The mean accuracies of a large model.
  SuiteMeans Averages() const {
    std::vector<const Task*> all;
    for (const Dataset& dataset : datasets_) all.push_back(dataset.task);
    return Means(tasks_, AveragedTasks(all, 2 * kSmallModel));
  }

  std::deque<Dataset> datasets_;  // a deque's elements stay where they are
  std::vector<SuiteResult> tasks_;
};

TEST_F(Summaries, VariantsAreComparedWithTheFirst) {
  Add("piqa", 1);
  const SuiteResult& task = tasks_[0];
  EXPECT_FALSE(Quoted(task, 0).to_first);
  EXPECT_EQ(Quoted(task, 0).metric, "acc");
  EXPECT_DOUBLE_EQ(Quoted(task, 0).value, 0.25);
  EXPECT_DOUBLE_EQ(Quoted(task, 1).to_first->difference, 0.25);
  EXPECT_EQ(Quoted(task, 1).to_first->only_this, 1);
  EXPECT_EQ(Quoted(task, 1).to_first->only_first, 0);
}

// The first variant's scores of an item are -1 and -2 where it is right, -3 and -2 where it is wrong; answers have one
// byte each.
TEST_F(Summaries, BitsAndMarginsArePaired) {
  Add("piqa", 1);
  const SuiteResult& task = tasks_[0];
  const double bit = 1 / std::log(2.0);
  const SuiteScore &bits = *task.Find(1, "bits_per_byte"), &margin = *task.Find(1, "margin");
  EXPECT_NEAR(task.Find(0, "bits_per_byte")->value, (1 + 3 + 3 + 3) / 4.0 * bit, 1e-12);
  EXPECT_NEAR(bits.value, (1 + 1 + 3 + 3) / 4.0 * bit, 1e-12);
  EXPECT_NEAR(task.Find(0, "margin")->value, (1 - 1 - 1 - 1) / 4.0 * bit, 1e-12);
  EXPECT_NEAR(margin.value, 0, 1e-12);
  EXPECT_FALSE(task.Find(0, "margin")->to_first);
  // The differences are -2, 0, 0, 0 bits: their mean is -0.5, and the squares about it sum to 3.
  EXPECT_NEAR(bits.to_first->difference, -0.5 * bit, 1e-12);
  EXPECT_NEAR(bits.to_first->standard_error, std::sqrt(3.0 / 3 / 4) * bit, 1e-12);
  const SuiteMeans means = Means(tasks_, ParseTasks("piqa"), "margin");
  ASSERT_EQ(means.models.size(), size_t{2});
  EXPECT_NEAR(means.models[1].to_first->difference, 0.5 * bit, 1e-12);
  EXPECT_TRUE(Means(tasks_, ParseTasks("piqa"), "perplexity").models.empty());
}

TEST(AveragedTasks, SmallModelsHaveAHeadlineOfTheirOwn) {
  const auto names = [](const char* tasks, int64_t parameters) {
    std::string text;
    for (const Task* task : AveragedTasks(ParseTasks(tasks), parameters)) text += task->name + " ";
    return text;
  };
  constexpr int64_t kSmall = 135'000'000, kLarge = 1'500'000'000;
  EXPECT_EQ(names("paper7,small4,wikitext", kSmall), "hellaswag arc_easy piqa lambada ");
  EXPECT_EQ(names("paper7,lambada", kLarge), "boolq piqa hellaswag winogrande arc_easy arc_challenge openbookqa ");
  EXPECT_EQ(names("paper7,mmlu", kSmall), "piqa hellaswag winogrande arc_easy arc_challenge openbookqa ");
  EXPECT_EQ(names("piqa,boolq,wikitext", kSmall), "piqa ");
  EXPECT_EQ(names("piqa,boolq,wikitext", kLarge), "piqa boolq ");
  EXPECT_EQ(names("boolq", kSmall), "boolq ");
  EXPECT_EQ(names("wikitext", kSmall), "");
}

TEST_F(Summaries, WithoutAllOfThePapersTasksTheMeanIsOverAllThatCount) {
  Add("piqa", 1);
  Add("mmlu", 3);
  const SuiteMeans means = Averages();
  ASSERT_EQ(means.models.size(), size_t{2});
  EXPECT_EQ(means.tasks, 2);
  EXPECT_DOUBLE_EQ(means.models[0].value, 0.5);
  EXPECT_FALSE(means.models[0].to_first);
  EXPECT_DOUBLE_EQ(means.models[1].value, 0.75);
  EXPECT_DOUBLE_EQ(means.models[1].to_first->difference, 0.25);
}

TEST_F(Summaries, WithThePapersSevenTasksTheMeanIsOverThem) {
  for (const char* task : {"boolq", "piqa", "hellaswag", "winogrande", "arc_easy", "arc_challenge", "openbookqa"})
    Add(task, 1);
  Add("mmlu", 3);
  const SuiteMeans means = Averages();
  ASSERT_EQ(means.models.size(), size_t{2});
  EXPECT_EQ(means.tasks, 7);
  EXPECT_DOUBLE_EQ(means.models[0].value, 0.25);
}

TEST_F(Summaries, NothingThatCountsHasNoMean) { EXPECT_TRUE(Means({}, {}).models.empty()); }

}  // namespace
}  // namespace shiftrt
