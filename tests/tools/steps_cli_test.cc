// SPDX-License-Identifier: Apache-2.0
// Pruning in steps: the model that a run saved is the original of the next.
#include <algorithm>

#include "tests/tools/cli.h"

namespace shiftrt {
namespace {

class StepsCli : public Cli {
 protected:
  void SetUp() override {
    Cli::SetUp();
    WriteModel("deep", {{"num_hidden_layers", 8}});
    ASSERT_EQ(Second({"--prune", "layers=2,3", "--lra", "4", "--save", Path("first")}, "deep").status, 0);
  }
  // By default a second step, from the model of the first.
  Outcome Second(std::vector<std::string> more, const std::string& from = "first") const {
    more.insert(more.end(), {"--calib", Path("calibration.txt:16x64"), "--text", Path("heldout.txt"), "--quiet"});
    return Command("run", more, from);
  }
  Json Plan(const std::string& name) const { return ReadJson(name + "/shiftrt.json")["plan"]; }
};

TEST_F(StepsCli, TheNumbersAreThoseOfTheFirstModel) {
  const Outcome outcome =
      Second({"--prune", "layers=4,6", "--lra", "4", "--save", Path("second"), "--json", Path("r")});
  ASSERT_EQ(outcome.status, 0) << outcome.err;
  EXPECT_NE(outcome.out.find("pruned already to 6 of 8 layers with 1 adapter"), std::string::npos) << outcome.out;
  const Json json = ReadJson("r"), saved = ReadJson("second/shiftrt.json");
  EXPECT_EQ(json["selection"]["removed"], Json({4, 6}));
  EXPECT_EQ(saved["removed"], Json({2, 3, 4, 6}));
  EXPECT_EQ(saved["base"], ReadJson("first/shiftrt.json")["base"]);
  EXPECT_EQ(saved["provenance"]["model"], ReadJson("first/shiftrt.json")["provenance"]["model"]);
  // The adapter before block 4 is removed with it, and the new one stands for all three.
  Json adapters = Json::array();
  for (const Json& stage : Plan("second"))
    if (stage.contains("adapter")) adapters.push_back(stage["adapter"]);
  EXPECT_EQ(adapters, Json({{2, 3, 4}, {6}}));
  const Outcome measured = Command("ppl", {"--text", Path("heldout.txt")}, "second");
  EXPECT_EQ(measured.status, 0) << measured.err;
  const Outcome generated = Command("generate", {"--prompt", "the", "--max-tokens", "4"}, "second");
  EXPECT_EQ(generated.status, 0) << generated.err;
}

TEST_F(StepsCli, CriteriaChooseAmongTheBlocksThatAreLeft) {
  for (const std::string prune : {"bi:2", "streamline:2", "magnitude-l1:2", "ppl:2", "bi:0.34", "bi:max-kl=9"}) {
    const Outcome outcome = Second({"--prune", prune, "--lra", "4", "--save", Path("second"), "--json", Path("r")});
    ASSERT_EQ(outcome.status, 0) << prune << outcome.err;
    const Json selection = ReadJson("r")["selection"];
    const size_t removed = prune == "bi:max-kl=9" ? 3 : 2;  // the search removes half of the blocks at most
    ASSERT_EQ(selection["removed"].size(), removed) << prune;
    for (const Json& layer : selection["removed"]) EXPECT_TRUE(layer != 2 && layer != 3) << prune;
    EXPECT_EQ(ReadJson("second/shiftrt.json")["removed"].size(), 2 + removed);
  }
}

// The directory that a run saved has the loss that the run measured, whatever was fitted.
TEST_F(StepsCli, EveryCorrectionGivesAModelThatOpens) {
  const std::vector<std::string> ranked = {"lra", "joint", "norm-lra", "norm-refit", "auto"};
  std::vector<std::string> corrections = {"none", "refit", "bias", "replaceme", "linearpatch"};
  corrections.insert(corrections.end(), ranked.begin(), ranked.end());
  for (const std::string& correction : corrections) {
    std::vector<std::string> more = {"--prune", "layers=1,5",     "--correction", correction,
                                     "--save",  Path(correction), "--json",       Path("r")};
    if (std::ranges::find(ranked, correction) != ranked.end()) more.insert(more.end(), {"--lra", "4"});
    const Outcome outcome = Second(more);
    ASSERT_EQ(outcome.status, 0) << correction << outcome.err;
    const double in_run = ReadJson("r")["variants"].back()["perplexity"].get<double>();
    const Outcome measured =
        Command("ppl", {"--text", Path("heldout.txt"), "--quiet", "--json", Path("p")}, correction);
    ASSERT_EQ(measured.status, 0) << correction << measured.err;
    EXPECT_NEAR(ReadJson("p")["perplexity"].get<double>(), in_run, 1e-6 * in_run) << correction;
  }
}

// On a trained model, each step's repair returns a part of what its pruning costs.
TEST_F(Cli, TwoStepsOfARepairAreBetterThanPruning) {
  const std::string demo = (TestDirectory().parent_path() / "models/demo").string();
  const auto step = [&](const std::string& from, const std::string& prune, const std::string& to) {
    return Call({"run",
                 "--threads",
                 "1",
                 "--model",
                 from,
                 "--prune",
                 prune,
                 "--lra",
                 "8",
                 "--calib",
                 demo + "/calibration.txt:32x128",
                 "--text",
                 demo + "/heldout.txt",
                 "--text-tokens",
                 "4096",
                 "--save",
                 Path(to),
                 "--json",
                 Path(to + ".json"),
                 "--quiet"});
  };
  const Outcome first = step(demo, "bi:2", "one"), second = step(Path("one"), "bi:2", "two");
  ASSERT_EQ(first.status, 0) << first.err;
  ASSERT_EQ(second.status, 0) << second.err;
  EXPECT_NE(second.out.find("14 of 16 layers"), std::string::npos) << second.out;
  const auto perplexity = [&](const std::string& of, int variant) {
    return ReadJson(of + ".json")["variants"][variant]["perplexity"].get<double>();
  };
  EXPECT_DOUBLE_EQ(perplexity("two", 0), perplexity("one", 2)) << "the original of the second is the first's result";
  EXPECT_LT(perplexity("two", 2), perplexity("two", 1));
  EXPECT_EQ(ReadJson("two/shiftrt.json")["removed"].size(), 4u);
  const Outcome generated = Command("generate", {"--prompt", "The sea", "--max-tokens", "4"}, "two");
  EXPECT_EQ(generated.status, 0) << generated.err;
}

TEST_F(StepsCli, WhatIsNotImplementedIsNamed) {
  EXPECT_FAILS(Second({"--prune", "layers=2", "--lra", "4"}), 2, "has no block 2: it has the blocks 0, 1, 4, 5, 6, 7");
  EXPECT_FAILS(Second({"--prune", "taylor:1", "--lra", "4"}), 2, "taylor");
  EXPECT_FAILS(Second({"--prune", "bi:1,unit=half", "--correction", "none"}), 2, "halves");
  EXPECT_FAILS(Second({"--prune", "layers=1", "--correction", "laco"}), 2, "laco");
  EXPECT_FAILS(Second({"--prune", "layers=1", "--lra", "4", "--save-gram", Path("g")}), 2, "file of sums");
  EXPECT_FAILS(Second({"--prune", "bi:0.9", "--lra", "4"}), 2, "5 of 6 blocks");
}

}  // namespace
}  // namespace shiftrt
