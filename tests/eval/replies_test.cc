// SPDX-License-Identifier: Apache-2.0
// Tasks of replies: prompts, replies and verdicts equal those of lm-evaluation-harness (tests/goldens/make_replies.py).
#include "eval/replies.h"

#include <gtest/gtest.h>

#include <fstream>
#include <map>
#include <utility>

#include "eval/harness/answers.h"
#include "eval/item_log.h"
#include "eval/metrics.h"
#include "eval/programs/runner.h"
#include "eval/summary.h"
#include "runtime/checked_lines.h"
#include "tests/eval/fixtures.h"
#include "tests/runtime/refusal.h"
#include "tests/runtime/thread_link.h"

namespace shiftrt {
namespace {

using Json = nlohmann::json;

const Json& Replies() {
  static const Json replies = Json::parse(ReadFile(Goldens() / "eval/replies.json"));
  return replies;
}

std::optional<int64_t> ShotsOf(const Json& prompts) {
  if (prompts["shots"].is_null()) return std::nullopt;
  return prompts["shots"].get<int64_t>();
}

std::vector<std::string> ContextsOf(const Dataset& dataset) {
  std::vector<std::string> contexts;
  for (const Item& item : dataset.items) contexts.push_back(item.prompts.at(0).context);
  return contexts;
}

// This tokenizer has tokens of single bytes. Where a random model writes bytes that are no character, the reference
// replaces their neighbours, too, so that its text is not compared.
constexpr const char* kOfBytes = "llama2-json";

TEST(ReplyGolden, EveryPromptIsTheReferences) {
  int tasks = 0;
  for (const Json& expected : Replies()["prompts"]) {
    const std::string name = expected["task"];
    const Dataset dataset = GoldenDataset(name, ShotsOf(expected));
    EXPECT_EQ(ContextsOf(dataset), expected["contexts"].get<std::vector<std::string>>()) << name;
    EXPECT_EQ(dataset.task->stop, expected["until"].get<std::vector<std::string>>()) << name;
    EXPECT_EQ(dataset.task->max_tokens, expected["max_tokens"].get<int64_t>()) << name;
    ++tasks;
  }
  EXPECT_EQ(tasks, 7);
}

TEST(ReplyGolden, EveryNumberIsJudgedAsByTheReference) {
  std::map<std::string, Dataset> datasets;
  std::map<std::string, int> right;
  for (const Json& expected : Replies()["numbers"]) {
    const std::string name = expected[0], reply = expected[2];
    const Dataset& dataset = datasets.try_emplace(name, GoldenDataset(name)).first->second;
    const Item& item = dataset.items.at(expected[1].get<size_t>());
    for (size_t m = 0; m < 2; ++m) {
      const bool found = dataset.task->right(dataset.task->metrics[m], reply, item.answer);
      EXPECT_EQ(found, expected[3 + m].get<bool>())
          << name << ", " << dataset.task->metrics[m] << " of \"" << reply << "\" for " << item.answer;
      right[name] += found ? 1 : 0;
    }
  }
  EXPECT_GT(right["gsm8k"], 30);
  EXPECT_GT(right["gsm8k_cot"], 20);
}

TEST(ReplyGolden, EveryProgramIsTheReferences) {
  std::optional<ProgramRunner> runner;
  try {
    runner.emplace();
  } catch (const Error& error) {
    GTEST_SKIP() << error.what();
  }
  int right = 0;
  for (const Json& expected : Replies()["programs"]) {
    const std::string name = expected[0], reply = expected[1];
    const Dataset dataset = GoldenDataset(name);
    const std::string program = dataset.task->program(dataset.items[0].code, reply, dataset.items[0].answer);
    EXPECT_EQ(program, expected[2].get<std::string>()) << name << " of " << reply;
    const bool passed = runner->Run(program) == ProgramOutcome::kPassed;
    EXPECT_EQ(passed, expected[3].get<bool>()) << program;
    right += passed ? 1 : 0;
  }
  EXPECT_GE(right, 4);
}

TEST(ReplyGolden, EveryReplyIsTheReferences) {
  int replies = 0;
  for (const Json& run : Replies()["runs"]) {
    const std::string name = run["task"];
    const Model model = GoldenEvalModel(run["tokenizer"], 1, run["positions"]);
    const Dataset dataset = GoldenDataset(name);
    const PromptEncoder encoder(model.RequireTokenizer(), Bos::kAuto, run["positions"]);
    for (size_t i = 0; i < dataset.items.size(); ++i)
      EXPECT_EQ(encoder.EncodePrompt(dataset.items[i].prompts[0].context, dataset.task->max_tokens, "row"),
                run["prompts"][i].get<std::vector<int32_t>>())
          << name << ", row " << i;
    // Only the generation is tested here. Verdicts of programs need an interpreter.
    Task task = *dataset.task;
    task.metrics.clear();
    task.program = nullptr;
    Dataset unjudged = dataset;
    unjudged.task = &task;
    Journal none("");
    NoProgress progress;
    const std::vector<Variant> variants = {Plain("original", model.plan)};
    const Context context = Context::Default();
    for (const int64_t together : {1, 2, 32}) {
      const EvalOptions options{.replies = together};
      const EvalScores scores = Evaluate({context, model, variants, options, none, progress}, unjudged);
      ASSERT_EQ(scores.replies.at(0).size(), run["replies"].size());
      for (size_t i = 0; i < run["replies"].size(); ++i, ++replies) {
        auto tokens = run["tokens"][i].get<std::vector<int32_t>>();
        if (tokens.back() == model.tokenizer->eos_token()) tokens.pop_back();
        EXPECT_EQ(scores.replies[0][i].tokens, tokens)
            << name << ", row " << i << ", " << together << " together, " << run["tokenizer"];
        if (run["tokenizer"] == kOfBytes) continue;
        EXPECT_EQ(scores.replies[0][i].text, run["replies"][i].get<std::string>()) << name << ", row " << i;
      }
      if (name != "gsm8k") break;
    }
  }
  EXPECT_EQ(replies, 2 * (3 * 3 + 2));
}

TEST(ReplyGolden, AReplyEndsWhereTheReferencesEnds) {
  for (const char* tokenizer : {"qwen2", "llama2-json"}) {
    const Model model = GoldenEvalModel(tokenizer, 1, 300);
    const std::vector<Variant> variants = {Plain("original", model.plan)};
    const Context context = Context::Default();
    Journal none("");
    NoProgress progress;
    for (const Json& expected : Replies()["stops"]) {
      if (expected["tokenizer"] != tokenizer) continue;
      const bool replaced = expected.dump().find("\xEF\xBF\xBD") != std::string::npos;
      if (replaced && tokenizer == std::string(kOfBytes)) continue;
      Task task = *FindTask("gsm8k");
      task.metrics.clear();
      task.stop = expected["until"].get<std::vector<std::string>>();
      task.max_tokens = 40;
      Dataset dataset;
      dataset.task = &task;
      Item& item = dataset.items.emplace_back();
      item.prompts = {{expected["context"], ""}};
      const EvalScores scores = Evaluate({context, model, variants, {}, none, progress}, dataset);
      EXPECT_EQ(scores.replies[0][0].text, expected["reply"].get<std::string>()) << expected["until"];
    }
  }
}

// A text that ends a reply may begin in one token and end in another; the later texts of the list are looked for in
// what the earlier ones leave.
TEST(Replies, TextsAreCutInTheOrderOfTheList) {
  const auto tokenizer = LoadTokenizer(Goldens() / "tokenizers/qwen2");
  const auto text = [&](const std::string& reply, const std::vector<std::string>& stops) {
    return StopTexts(*tokenizer, stops).Text(tokenizer->Encode(reply));
  };
  EXPECT_EQ(text("one two three", {"three", "two"}), "one ");
  EXPECT_EQ(text("one two three", {"e t", "wo"}), "on");
  EXPECT_EQ(text("abcd", {"bc", "cd"}), "a");
  EXPECT_EQ(text("abcd", {"cd", "bcd", ""}), "ab");
  const StopTexts stops(*tokenizer, {"\ndef"});
  EXPECT_TRUE(stops.Ends(tokenizer->Encode("    return 1\ndef")));
  EXPECT_FALSE(stops.Ends(tokenizer->Encode("    return 1\nde")));
  EXPECT_FALSE(stops.Ends({}));
}

TEST(Replies, RepeatedSequencesAreCounted) {
  EXPECT_EQ(RepeatedFourGrams({}), 0);
  EXPECT_EQ(RepeatedFourGrams(std::vector<int32_t>{1, 1, 1}), 0);
  EXPECT_EQ(RepeatedFourGrams(std::vector<int32_t>{1, 2, 3, 4, 5, 6}), 0);
  EXPECT_EQ(RepeatedFourGrams(std::vector<int32_t>{7, 7, 7, 7, 7}), 0.5);
  // 1 2 3 4 1 2 3 4: the fifth sequence is the first again.
  EXPECT_DOUBLE_EQ(RepeatedFourGrams(std::vector<int32_t>{1, 2, 3, 4, 1, 2, 3, 4}), 1.0 / 5);
}

class Generating : public ::testing::Test {
 protected:
  EvalScores Run(Journal& journal) {
    NoProgress progress;
    return Evaluate({context_, model_, variants_, {}, journal, progress}, dataset_);
  }

  const Model model_ = GoldenEvalModel("qwen2", 1, 700);
  const Context context_ = Context::Default();
  std::vector<Variant> variants_ = {
      Plain("original", model_.plan),
      Plain("pruned", DepthPlan::Pruned(model_.weights->config.layers, std::vector<int64_t>{1}))};
  const Dataset dataset_ = GoldenDataset("gsm8k", std::nullopt);
  const TemporaryDirectory directory_;
};

TEST_F(Generating, RepliesOfAJournalAreNotGeneratedAgain) {
  const auto file = directory_.path() / "journal";
  std::vector<std::vector<Reply>> whole;
  {
    Journal journal(file);
    whole = Run(journal).replies;
  }
  EXPECT_NE(whole[0][0].tokens, whole[1][0].tokens);
  const std::vector<std::string> lines = ReadCheckedLines(file).texts;
  ASSERT_EQ(lines.size(), 6u);
  // Three replies are kept, one of them is made to lie: it is believed, and the others are generated again.
  std::filesystem::remove(file);
  {
    LineAppender kept(file);
    for (const size_t i : {0, 4}) kept.Add(lines[i]);
    Json lie = Json::parse(lines[1]);
    lie["reply"] = {5, 6, 7};
    kept.Add(lie.dump());
  }
  Journal journal(file);
  EXPECT_EQ(journal.replies(), 3);
  const std::vector<std::vector<Reply>> again = Run(journal).replies;
  int same = 0;
  for (size_t v = 0; v < 2; ++v)
    for (size_t i = 0; i < 3; ++i) same += again[v][i].tokens == whole[v][i].tokens ? 1 : 0;
  EXPECT_EQ(same, 5);
  EXPECT_EQ(ReadCheckedLines(file).texts.size(), 6u);
}

TEST_F(Generating, RepliesWithOtherEndsAreGeneratedAgain) {
  const auto file = directory_.path() / "journal";
  {
    Journal journal(file);
    Run(journal);
  }
  auto weights = std::make_shared<Weights>(*model_.weights);
  weights->config.eos_tokens.push_back(1);
  Model changed = model_;
  changed.weights = weights;
  Journal journal(file);
  NoProgress progress;
  Evaluate({context_, changed, variants_, {}, journal, progress}, dataset_);
  EXPECT_EQ(ReadCheckedLines(file).texts.size(), 12u);
}

// Three processes share two variants of three prompts, and one has no prompt of its own where two are known.
TEST_F(Generating, ProcessesShareThePrompts) {
  Journal none("");
  const auto whole = Run(none).replies;
  const auto file = directory_.path() / "journal";
  {
    Journal journal(file);
    Run(journal);
  }
  const std::vector<std::string> lines = ReadCheckedLines(file).texts;
  std::filesystem::remove(file);
  for (const size_t i : {1, 2}) LineAppender(file).Add(lines[i]);
  InProcesses(3, [&](const std::shared_ptr<Processes>& processes) {
    Context context = Context::Default();
    context.processes = processes;
    Journal journal(processes->first() ? file : std::filesystem::path(), processes->rank());
    NoProgress progress;
    const EvalScores scores = Evaluate({context, model_, variants_, {}, journal, progress}, dataset_);
    for (size_t v = 0; v < 2; ++v)
      for (size_t i = 0; i < 3; ++i) EXPECT_EQ(scores.replies[v][i].tokens, whole[v][i].tokens) << v << ", " << i;
  });
}

TEST_F(Generating, AResultHasEveryMetricOfEveryVariant) {
  Journal none("");
  const EvalScores scores = Run(none);
  const SuiteResult result = Summarize(dataset_, scores, /*all=*/false);
  EXPECT_EQ(result.shots, 5);
  EXPECT_FALSE(result.choices);
  ASSERT_EQ(result.scores.size(), 2u);
  for (const char* metric : {"strict-match", "flexible-extract", kRepeated, kReplyTokens}) {
    ASSERT_NE(result.Find(1, metric), nullptr) << metric;
    EXPECT_TRUE(result.Find(1, metric)->to_first) << metric;
    EXPECT_EQ(result.Find(0, metric)->items, 3) << metric;
  }
  EXPECT_EQ(Quoted(result, 0).metric, "strict-match");
  EXPECT_EQ(result.tokens_computed - result.tokens_requested, result.head_rows);
}

TEST_F(Generating, ItemsHavePromptsRepliesAndVerdicts) {
  Journal none("");
  const EvalScores scores = Run(none);
  PromptEncoder encoder(model_.RequireTokenizer(), Bos::kAuto, 700);
  ItemLog log(directory_.path() / "items", encoder);
  log.Add(dataset_, variants_, scores);
  log.Commit();
  std::istringstream lines(ReadFile(directory_.path() / "items"));
  std::string line;
  for (size_t i = 0; std::getline(lines, line); ++i) {
    const Json item = Json::parse(line);
    EXPECT_EQ(item["contexts"], dataset_.items[i].prompts[0].context);
    EXPECT_EQ(item["answer"], dataset_.items[i].answer);
    EXPECT_EQ(item["variants"]["pruned"]["reply"], scores.replies[1][i].text);
    EXPECT_EQ(item["variants"]["pruned"]["right"].size(), 2u);
  }
}

TEST_F(Generating, AContextWithoutRoomForAReplyIsRefused) {
  const Model small = GoldenEvalModel("qwen2", 1, 256);
  Journal none("");
  NoProgress progress;
  const std::string refusal = Refusal([&] { Evaluate({context_, small, variants_, {}, none, progress}, dataset_); });
  EXPECT_NE(refusal.find("gsm8k_test.jsonl:1: a reply may have 256 tokens, and the model's context of 256"),
            std::string::npos)
      << refusal;
}

}  // namespace
}  // namespace shiftrt
