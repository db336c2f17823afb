// SPDX-License-Identifier: Apache-2.0
// Suites of replies on the command line.
#include <fstream>
#include <sstream>

#include "eval/programs/runner.h"
#include "tests/tools/cli.h"

namespace shiftrt {
namespace {

class RepliesCli : public Cli {
 protected:
  void SetUp() override {
    Cli::SetUp();
    WriteModel("long", {{"max_position_embeddings", 1600}});
  }

  Outcome Eval(std::vector<std::string> more) const {
    more.insert(more.end(), {"--data", EvalData(), "--quiet"});
    return Command("eval", more, "long");
  }
};

TEST_F(RepliesCli, GenerationIsScoredAndItsItemsAreWritten) {
  const Outcome outcome = Eval({"--tasks", "gsm8k", "--limit", "2", "--json", Path("e.json"), "--items",
                                Path("items.jsonl"), "--journal", Path("journal")});
  ASSERT_EQ(outcome.status, 0) << outcome.err;
  for (const char* word : {"GSM8K: 2 items, 5 shots, PARTIAL: 2 of 1319 rows", "strict-match", "flexible-extract",
                           "repeated_4grams", "reply_tokens", "0/2"})
    EXPECT_NE(outcome.out.find(word), std::string::npos) << word << " in\n" << outcome.out;
  EXPECT_FALSE(fs::exists(dir_ / "journal"));
  const Json task = ReadJson("e.json")["tasks"][0];
  EXPECT_EQ(task["metric"], "strict-match");
  EXPECT_EQ(task["shots"], 5);
  EXPECT_EQ(task["variants"][0]["metrics"]["flexible-extract"]["items"], 2);
  std::istringstream lines(ReadFile(dir_ / "items.jsonl"));
  int64_t items = 0;
  for (std::string line; std::getline(lines, line); ++items)
    EXPECT_GT(Json::parse(line)["variants"]["original"]["tokens"], 0) << line;
  EXPECT_EQ(items, 2);
}

TEST_F(RepliesCli, ShotsAreTheTasksOwnUnlessGiven) {
  const Outcome outcome = Eval({"--tasks", "gsm8k,piqa", "--limit", "1"});
  ASSERT_EQ(outcome.status, 0) << outcome.err;
  EXPECT_NE(outcome.out.find("GSM8K: 1 items, 5 shots"), std::string::npos) << outcome.out;
  EXPECT_NE(outcome.out.find("PIQA: 1 items, 0 shots"), std::string::npos) << outcome.out;
  const Outcome none = Eval({"--tasks", "gsm8k", "--limit", "1", "--shots", "0"});
  ASSERT_EQ(none.status, 0) << none.err;
  EXPECT_NE(none.out.find("GSM8K: 1 items, 0 shots"), std::string::npos) << none.out;
}

TEST_F(RepliesCli, ProgramsRunOnlyWhereThatIsAllowed) {
  const Outcome refused = Eval({"--tasks", "humaneval"});
  EXPECT_NE(refused.status, 0);
  EXPECT_NE(refused.err.find("--allow-code: not given, and humaneval runs programs that the model writes"),
            std::string::npos)
      << refused.err;
  try {
    const ProgramRunner runner;
  } catch (const Error& error) {
    GTEST_SKIP() << error.what();
  }
  const Outcome outcome = Eval({"--tasks", "humaneval,humaneval_instruct", "--allow-code", "--limit", "1", "--json",
                                Path("e.json"), "--items", Path("items.jsonl")});
  ASSERT_EQ(outcome.status, 0) << outcome.err;
  EXPECT_NE(outcome.out.find("HumanEval: 1 items, 0 shots"), std::string::npos) << outcome.out;
  EXPECT_EQ(ReadJson("e.json")["tasks"][1]["variants"][0]["metrics"]["pass@1"]["items"], 1);
  std::istringstream lines(ReadFile(dir_ / "items.jsonl"));
  for (std::string line; std::getline(lines, line);)
    EXPECT_EQ(Json::parse(line)["variants"]["original"]["outcome"], "failed") << line;
}

TEST_F(RepliesCli, WithoutPythonTheMessageSaysSo) {
  const std::string path = std::getenv("PATH") == nullptr ? "" : std::getenv("PATH");
  ::setenv("PATH", dir_.c_str(), 1);
  const Outcome outcome = Eval({"--tasks", "humaneval", "--allow-code", "--limit", "1"});
  ::setenv("PATH", path.c_str(), 1);
  EXPECT_EQ(outcome.status, 1);
  EXPECT_NE(outcome.err.find("no directory of PATH has a python3"), std::string::npos) << outcome.err;
}

// The finished replies are kept when the results cannot be written.
TEST_F(RepliesCli, AnInterruptedEvaluationGoesOn) {
  fs::create_directories(dir_ / "page/index.html");  // a directory in the place of the page
  const std::vector<std::string> options = {"--tasks",   "gsm8k",         "--limit",  "2",
                                            "--journal", Path("journal"), "--report", Path("page")};
  EXPECT_EQ(Eval(options).status, 1);
  EXPECT_TRUE(fs::exists(dir_ / "journal"));
  fs::remove_all(dir_ / "page");
  const Outcome again = Eval(options);
  EXPECT_EQ(again.status, 0) << again.err;
  EXPECT_NE(again.err.find("has 2 replies of an evaluation that was interrupted"), std::string::npos) << again.err;
  EXPECT_FALSE(fs::exists(dir_ / "journal"));
}

TEST_F(RepliesCli, HelpListsTheTasks) {
  const Outcome help = Call({"eval", "--help-all"});
  for (const char* task : {"gsm8k", "gsm8k_cot", "humaneval", "humaneval_instruct", "--allow-code"})
    EXPECT_NE(help.out.find(task), std::string::npos) << task << " in\n" << help.out;
}

}  // namespace
}  // namespace shiftrt
