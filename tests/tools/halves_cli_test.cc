// SPDX-License-Identifier: Apache-2.0
// Half blocks on the command line: selected, shown, saved, evaluated, and refused where something is of whole blocks.
#include <cstdlib>

#include "tests/tools/cli.h"

namespace shiftrt {
namespace {

TEST_F(Cli, HalfBlocksAreRemovedShownSavedAndRunAgain) {
  const Outcome outcome =
      Run({"--prune", "layers=1.mlp,2.attn", "--calibration-mode", "drift", "--lra", "8", "--merge", "lowrank",
           "--gate", "--save", Path("saved"), "--report", Path("page"), "--json", Path("r.json")});
  ASSERT_EQ(outcome.status, 0) << outcome.err;
  EXPECT_NE(
      outcome.out.find("layers removed, given as a list: 1.mlp, 2.attn\nhalf blocks are exported as hf or hf-lra or "
                       "gguf alone (hf and gguf: Llama, Mistral and Qwen 2)\n"),
      std::string::npos)
      << outcome.out;
  EXPECT_EQ(Run({"--prune", "layers=1"}).out.find("half blocks"), std::string::npos);
  const Json json = ReadJson("r.json");
  EXPECT_EQ(json["selection"]["removed"], Json({"1.mlp", "2.attn"}));
  EXPECT_EQ(json["selection"]["unit"], "half");
  EXPECT_EQ(json["sites"][0]["layers"], Json({"1.mlp"}));
  EXPECT_EQ(json["gate"][1]["layers"], Json({"2.attn"}));
  const auto parameters = [&](int v) { return json["variants"][v]["parameters"].get<int64_t>(); };
  EXPECT_EQ(parameters(0) - parameters(1), 3 * kHidden * kHidden + 3 * 48 * kHidden + 2 * kHidden) << "of one block";

  const Outcome inspected = Command("inspect", {}, "saved");
  EXPECT_EQ(inspected.status, 0) << inspected.err;
  EXPECT_NE(inspected.out.find("half blocks, with the half that runs: 1 (attention), 2 (mlp)"), std::string::npos)
      << inspected.out;
  const auto bytes_of = [](const std::string& out, const std::string& group) {
    return std::atof(out.c_str() + out.find("\n  " + group) + 3 + group.size());
  };
  const std::string whole = Command("inspect", {}).out;
  for (const char* group : {"attention", "mlp"})
    EXPECT_NEAR(bytes_of(inspected.out, group) / bytes_of(whole, group), 0.75, 0.01) << group << " of three blocks";
  ASSERT_EQ(Command("ppl", {"--text", Path("heldout.txt"), "--json", Path("p.json")}, "saved").status, 0);
  EXPECT_NEAR(ReadJson("p.json")["perplexity"].get<double>(), json["variants"].back()["perplexity"].get<double>(),
              1e-3 * json["variants"].back()["perplexity"].get<double>());
  EXPECT_FAILS(Command("export", {"--format", "hf", "--save", Path("hf")}, "saved"), 2,
               "reads the stream itself, and hf has a place only for those that read the normed stream");
  ASSERT_EQ(Command("export", {"--format", "hf-lra", "--save", Path("halves")}, "saved").status, 0);
  const std::string card = ReadFile(dir_ / "halves/README.md");
  EXPECT_NE(card.find("\n2 halves of the 4 transformer blocks of "), std::string::npos) << card;
}

// Amounts above half may be a slip; those that leave nothing are refused before a text is looked for.
TEST_F(Cli, LargeRemovalsAskForYesAndImpossibleOnesAreRefusedFirst) {
  const std::string missing = Path("none.txt"), slip =
                                                    "bi:3 removes 3 of 4 blocks, which is more than half; did you "
                                                    "mean bi:0.03? --yes removes them";
  EXPECT_FAILS(Run({"--prune", "bi:3", "--text", missing}), 2, slip);
  EXPECT_FAILS(Run({"--prune", "bi:0.75"}), 2, "more than half; --yes removes them");
  EXPECT_FAILS(Run({"--prune", "bi:5,unit=half"}), 2, "5 of 8 half blocks");
  EXPECT_FAILS(Run({"--prune", "bi:4", "--text", missing}), 2, "would remove 4 of 4 layers");
  EXPECT_FAILS(Run({"--prune", "layers=4", "--text", missing}), 2, "the model's layers are 0 to 3");
  const std::vector<std::string> text = {"--calib", missing};
  const auto with = [&](std::vector<std::string> more) {
    more.insert(more.end(), text.begin(), text.end());
    return more;
  };
  const std::vector<std::string> hf = {"--format", "hf", "--save", Path("hf")};
  const auto exported = [&](std::vector<std::string> more) {
    more.insert(more.end(), hf.begin(), hf.end());
    return Command("export", std::move(more));
  };
  EXPECT_FAILS(exported(with({"--prune", "bi:3"})), 2, slip);
  EXPECT_FAILS(exported(with({"--prune", "bi:4"})), 2, "one must stay");
  EXPECT_FAILS(exported({"--yes"}), 2, "--yes requires --prune");
  EXPECT_FAILS(Command("sweep", with({"--prune", "bi:1,reverse:3"})), 2, "reverse:3 removes 3 of 4 blocks");
  EXPECT_FAILS(Command("sweep", with({"--prune", "bi:1,reverse:4"})), 2, "one must stay");
  EXPECT_FAILS(Command("eval", with({"--tasks", "piqa", "--data", missing, "--prune", "bi:3", "--lra", "4"})), 2, slip);

  EXPECT_EQ(exported({"--prune", "reverse:3", "--yes"}).status, 0);
  EXPECT_EQ(Run({"--prune", "reverse:3", "--yes"}).status, 0);
  const Outcome listed = Run({"--prune", "layers=0-2"});
  EXPECT_EQ(listed.status, 0) << listed.err;
  EXPECT_NE(listed.out.find("layers removed, given as a list: 0, 1, 2\n"), std::string::npos) << listed.out;
}

// The format hf-lra, from the run itself: the same perplexity, without the weights of the halves that do not run.
TEST_F(Cli, HalfBlocksAreExported) {
  const Outcome outcome = Run({"--prune", "layers=0.attn,1.mlp-2", "--lra", "8", "--export", "hf-lra:" + Path("lra"),
                               "--json", Path("r.json")});
  ASSERT_EQ(outcome.status, 0) << outcome.err;
  const Json last = ReadJson("r.json")["variants"].back();
  const Outcome measured = Command("ppl", {"--text", Path("heldout.txt"), "--json", Path("p.json")}, "lra");
  ASSERT_EQ(measured.status, 0) << measured.err;
  EXPECT_NEAR(ReadJson("p.json")["perplexity"].get<double>(), last["perplexity"].get<double>(),
              1e-6 * last["perplexity"].get<double>());
  const Outcome inspected = Command("inspect", {}, "lra");
  EXPECT_NE(inspected.out.find("0 (mlp), 1 (attention)"), std::string::npos) << inspected.out << inspected.err;
  const Outcome eval = Command("eval", {"--tasks", "piqa", "--data", EvalData(), "--limit", "2"}, "lra");
  EXPECT_EQ(eval.status, 0) << eval.err;
  EXPECT_EQ(eval.out.find("original"), std::string::npos) << "it is not in this directory\n" << eval.out;
  const std::string card = ReadFile(dir_ / "lra/README.md");
  EXPECT_NE(card.find("3 of 4 blocks, 2 of them half"), std::string::npos) << card;
  EXPECT_NE(card.find("\n1 of the 4 transformer blocks of "), std::string::npos) << card;
  EXPECT_NE(card.find(" and 2 halves of others were removed"), std::string::npos) << card;
  EXPECT_NE(card.find("| halves removed | 0.attn, 1.mlp |"), std::string::npos) << card;
  // Before the criterion reads text, which this command is not given.
  EXPECT_FAILS(Command("export", {"--prune", "bi:0.25,unit=half", "--format", "mergekit", "--save", Path("hf")}), 2,
               "mergekit has no place for; it works with --format hf or hf-lra or gguf");
}

TEST_F(Cli, HalvesAreScoredByAnyCriterionAndCompared) {
  const Outcome outcome =
      Command("inspect", {"--prune", "bi:0.5,unit=half,magnitude-l1:2,reverse:3,unit=half", "--calib",
                          Path("calibration.txt:8x32"), "--quiet", "--json", Path("i.json")});
  ASSERT_EQ(outcome.status, 0) << outcome.err;
  for (const char* words : {"0.attn", "3.mlp", "reverse:3 halves removes 2.mlp, 3"})
    EXPECT_NE(outcome.out.find(words), std::string::npos) << words << " in " << outcome.out;
  const Json selections = ReadJson("i.json")["selections"];
  EXPECT_EQ(selections[0]["scores"].size(), size_t{2 * kLayers});
  EXPECT_EQ(selections[1]["unit"], "block");
  EXPECT_EQ(selections[2]["overlap"][2], 1.5);
}

TEST_F(Cli, HalvesAreSweptWithBlocks) {
  const Outcome outcome =
      Command("sweep", {"--prune", "reverse:0.5,reverse:0.5,unit=half", "--correction", "lra,refit", "--lra", "4",
                        "--calib", Path("calibration.txt:16x64"), "--text", Path("heldout.txt"), "--quiet", "--csv",
                        Path("s.csv"), "--json", Path("s.json")});
  ASSERT_EQ(outcome.status, 0) << outcome.err;
  EXPECT_NE(outcome.out.find("4 half blocks"), std::string::npos) << outcome.out;
  EXPECT_NE(ReadFile(dir_ / "s.csv").find("\"reverse:0.5,unit=half\",2 3,"), std::string::npos)
      << ReadFile(dir_ / "s.csv");
}

TEST_F(Cli, WhatIsOfWholeBlocksIsRefusedForHalvesBeforeTheWork) {
  const std::string halves = "bi:0.25,unit=half";
  for (const char* correction : {"replaceme", "laco"})
    EXPECT_FAILS(Run({"--prune", halves, "--correction", correction}), 2, "whole blocks");
  EXPECT_FAILS(Run({"--prune", halves, "--lra", "4", "--save-gram", Path("g"), "--gram-layers", "all"}), 2,
               "--gram-layers");
  EXPECT_FAILS(Run({"--prune", halves, "--export", "mergekit:" + Path("e")}), 2,
               "may leave half blocks, which mergekit has no place for; it works with whole blocks, or with --export "
               "hf-lra:DIR");
  EXPECT_FAILS(Run({"--prune", "layers=0.attn", "--correction", "refit"}), 2, "layer 0.attn is removed");
  EXPECT_FAILS(Run({"--prune", "layers=3.attention"}), 2, "5.attn, 5.mlp");
  EXPECT_FAILS(Run({"--prune", "bi:0.25,unit=third"}), 2, "known: block, half");
}

}  // namespace
}  // namespace shiftrt
