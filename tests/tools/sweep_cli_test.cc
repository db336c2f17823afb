// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <sstream>

#include "tests/tools/cli.h"

namespace shiftrt {
namespace {

TEST_F(Cli, SweepWritesACellALine) {
  const auto sweep = [&](std::vector<std::string> more) {
    more.insert(more.begin(), {"--calib", Path("calibration.txt:16x64"), "--text", Path("heldout.txt"), "--quiet"});
    return Command("sweep", more);
  };
  const Outcome outcome =
      sweep({"--prune", "bi:1,reverse*:2", "--lra", "4,full", "--factorize", "rrr,svd", "--samples", "8,16", "--seeds",
             "0,1", "--csv", Path("s.csv"), "--json", Path("s.json"), "--report", Path("page")});
  ASSERT_EQ(outcome.status, 0) << outcome.err;
  const Json rows = ReadJson("s.json")["rows"];
  ASSERT_EQ(rows.size(), size_t{2 * 2 * 2 * 2 * 2});
  const std::string csv = ReadFile(dir_ / "s.csv");
  EXPECT_EQ(std::count(csv.begin(), csv.end(), '\n'), 33);
  EXPECT_NE(csv.find("\"reverse*:2\",1 2,0,8,"), std::string::npos) << csv;
  const std::string page = ReadFile(dir_ / "page/index.html");
  for (const char* chart : {"by rank", "by layers removed", "by calibration samples"})
    EXPECT_NE(page.find(chart), std::string::npos) << chart;
  EXPECT_TRUE(fs::exists(dir_ / "page/perplexity-by-rank.svg"));

  // A cell is what `run` finds: the pruned model's perplexity to the bit, the corrected one's up to the order of sums.
  ASSERT_EQ(Run({"--prune", "reverse*:2", "--lra", "4", "--factorize", "rrr", "--calibration-mode", "independent",
                 "--json", Path("r.json")})
                .status,
            0);
  const Json variants = ReadJson("r.json")["variants"];
  bool found = false;
  for (const Json& row : rows) {
    if (row["prune"] != "reverse*:2" || row["rank"] != "4" || row["samples"] != 16 || row["seed"] != 0 ||
        row["factorization"] != "rrr")
      continue;
    found = true;
    EXPECT_EQ(row["perplexity"]["original"], variants[0]["perplexity"]);
    EXPECT_EQ(row["perplexity"]["pruned"], variants[1]["perplexity"]);
    EXPECT_NEAR(row["perplexity"]["corrected"].get<double>() / variants[2]["perplexity"].get<double>(), 1, 1e-4);
  }
  EXPECT_TRUE(found);

  const Outcome preset = sweep({"--preset", "paper-rank", "--samples", "16", "--json", Path("p.json")});
  ASSERT_EQ(preset.status, 0) << preset.err;
  EXPECT_EQ(ReadJson("p.json")["rows"].size(), size_t{5});  // 4, 8, 16, 32 and full: the model is 32 wide
  ASSERT_EQ(sweep({"--prune", "bi:1", "--correction", "lra,bias", "--calibration-mode", "independent,drift",
                   "--token-weight", "none;norm,first:0", "--lra", "4", "--csv", Path("c.csv")})
                .status,
            0);
  const std::string corrections = ReadFile(dir_ / "c.csv");
  EXPECT_EQ(std::count(corrections.begin(), corrections.end(), '\n'), 9);
  EXPECT_NE(corrections.find(",bias,drift,\"norm,first:0\","), std::string::npos) << corrections;
  EXPECT_FAILS(sweep({"--preset", "paper-guess"}), 2, "paper-table1");
  EXPECT_FAILS(sweep({"--preset", "paper-table1"}), 2, "ranks (64) exceed the hidden size 32");
  EXPECT_FAILS(sweep({"--preset", "paper-rank", "--lra", "8,33"}), 2, "--lra");
  EXPECT_FAILS(sweep({"--prune", "bi:1", "--lra", "33"}), 2, "33");
  EXPECT_FAILS(sweep({"--samples", "0"}), 2, "samples");
}

TEST_F(Cli, SweepTakesRecipesByName) {
  const auto sweep = [&](std::vector<std::string> more) {
    more.insert(more.begin(), {"--calib", Path("calibration.txt:16x64"), "--text", Path("heldout.txt"), "--quiet",
                               "--prune", "layers=2"});
    return Command("sweep", more);
  };
  // A recipe of rank 64 is too wide for this model, which is 32 wide.
  EXPECT_FAILS(sweep({"--recipe", "paper"}), 2, "64");
  const Outcome outcome = sweep({"--recipe", "stock,best", "--json", Path("s.json")});
  ASSERT_EQ(outcome.status, 0) << outcome.err;
  const Json rows = ReadJson("s.json")["rows"];
  ASSERT_EQ(rows.size(), 2u);
  EXPECT_EQ(rows[0]["correction"], "refit");
  EXPECT_EQ(rows[1]["correction"], "joint");
  EXPECT_EQ(rows[1]["rank"], "full");
  EXPECT_EQ(rows[1]["heal"], "all");
  EXPECT_FAILS(sweep({"--recipe", "stock", "--heal", "off,all"}), 2, "--heal off,all: --recipe stock has --heal all");
  EXPECT_FAILS(sweep({"--recipe", "stock", "--preset", "paper-rank"}), 2, "--preset");
  EXPECT_FAILS(sweep({"--recipe", "guess"}), 2, "paper, stock, adapters, best");

  // The choice of auto is in the table and in the files.
  const Outcome chosen =
      sweep({"--correction", "auto", "--lra", "4", "--csv", Path("a.csv"), "--json", Path("a.json")});
  ASSERT_EQ(chosen.status, 0) << chosen.err;
  const std::string recipe = ReadJson("a.json")["rows"][0]["chosen"];
  EXPECT_NE(recipe.find("token weights"), std::string::npos) << recipe;
  EXPECT_NE(chosen.out.find(recipe), std::string::npos) << chosen.out;
  EXPECT_NE(ReadFile(dir_ / "a.csv").find(",\"" + recipe + "\"\n"), std::string::npos);
}

TEST_F(Cli, AnInterruptedSweepContinuesFromItsJournal) {
  const auto sweep = [&](const char* ranks, const char* json) {
    return Command("sweep",
                   {"--calib", Path("calibration.txt:16x64"), "--text", Path("heldout.txt"), "--quiet", "--prune",
                    "layers=2", "--lra", ranks, "--journal", Path("journal"), "--json", Path(json)});
  };
  ASSERT_EQ(sweep("2,4,full", "whole.json").status, 0);
  EXPECT_FALSE(fs::exists(dir_ / "journal")) << "a finished sweep leaves none";
  // The journal of a sweep that was killed in mid-write: two cells, and a line that breaks off.
  const pid_t child =
      Start({"sweep", "--model", Path("model"), "--threads", "1", "--calib", Path("calibration.txt:16x64"), "--text",
             Path("heldout.txt"), "--quiet", "--prune", "layers=2", "--lra",
             "2,4,full,8,16,3,5,6,7,9,10,11,12,13,14,15", "--journal", Path("journal")},
            dir_ / "stdout", dir_ / "stderr");
  const auto lines = [&] {
    const std::string text = fs::exists(dir_ / "journal") ? ReadFile(dir_ / "journal") : "";
    return std::count(text.begin(), text.end(), '{');
  };
  while (lines() < 2 && !Ended(child)) ::usleep(1000);
  ::kill(child, SIGKILL);
  Wait(child);
  if (lines() < 2) GTEST_SKIP() << "the sweep was over before it could be killed";
  WriteText(dir_ / "journal", ReadFile(dir_ / "journal") + "{\"key\": \"bro");
  const Outcome outcome = sweep("2,4,full", "again.json");
  ASSERT_EQ(outcome.status, 0) << outcome.err;
  EXPECT_NE(outcome.err.find("cells come from"), std::string::npos) << outcome.err;
  EXPECT_EQ(ReadJson("again.json")["rows"], ReadJson("whole.json")["rows"]);
}

// The cells of another instruction set, which rounds otherwise, are computed again.
TEST_F(Cli, ASweepTakesNoCellsOfOtherArithmetic) {
  const auto sweep = [&](const std::vector<std::string>& more) {
    std::vector<std::string> options = {"--calib",      Path("calibration.txt:16x64"),
                                        "--text",       Path("heldout.txt"),
                                        "--prune",      "layers=2",
                                        "--lra",        "2",
                                        "--quiet",      "--journal",
                                        Path("journal")};
    options.insert(options.end(), more.begin(), more.end());
    return Command("sweep", options);
  };
  fs::create_directories(dir_ / "page/index.html");  // a directory in the place of the page
  const auto interrupted = [&] {
    EXPECT_EQ(sweep({"--report", Path("page")}).status, 1);
    ASSERT_TRUE(fs::exists(dir_ / "journal"));
  };
  interrupted();
  EXPECT_NE(sweep({}).err.find("cells come from"), std::string::npos);
  interrupted();
  ::setenv("SHIFTRT_ISA", "portable", 1);
  const Outcome other = sweep({});
  ::unsetenv("SHIFTRT_ISA");
  EXPECT_EQ(other.status, 0) << other.err;
  EXPECT_EQ(other.err.find("cells come from"), std::string::npos) << other.err;
}

TEST_F(Cli, SweepScoresSuitesAndPerplexity) {
  const auto sweep = [&](const std::string& suites) {
    return Command("sweep", {"--calib", Path("calibration.txt:16x64"), "--text", Path("heldout.txt"), "--prune",
                             "bi:0.5", "--lra", "8", "--quiet", "--eval", suites, "--data", EvalData(), "--json",
                             Path("s.json"), "--csv", Path("s.csv"), "--report", Path("page")});
  };
  const Outcome outcome = sweep("boolq,piqa,wikitext");
  ASSERT_EQ(outcome.status, 0) << outcome.err;
  for (const char* part : {"accuracy: pruned", "mean accuracy over PIQA (3 items): original"})
    EXPECT_NE(outcome.out.find(part), std::string::npos) << part << " in\n" << outcome.out;
  const Json accuracy = ReadJson("s.json")["rows"][0]["accuracy"];
  EXPECT_NE(ReadFile(dir_ / "s.csv").find(fmt::format(",{:.6g},\"\"\n", accuracy["corrected"].get<double>())),
            std::string::npos);
  EXPECT_NE(ReadFile(dir_ / "page/index.html").find("Zero-shot accuracy"), std::string::npos);

  // The same means `eval` gives for that recipe.
  ASSERT_EQ(Command("eval", {"--calib", Path("calibration.txt:16x64"), "--prune", "bi:0.5", "--lra", "8", "--quiet",
                             "--tasks", "boolq,piqa", "--data", EvalData(), "--json", Path("e.json")})
                .status,
            0);
  const Json means = ReadJson("e.json")["mean"];
  EXPECT_EQ(accuracy["original"], means[0]["value"]);
  EXPECT_EQ(accuracy["pruned"], means[1]["value"]);
  EXPECT_EQ(accuracy["corrected"], means[2]["value"]);
  EXPECT_EQ(ReadJson("s.json")["rows"][0]["accuracy_error"]["corrected"], means[2]["standard_error"]);
  EXPECT_FAILS(sweep("wikitext"), 2, "right answers");
  EXPECT_FAILS(sweep("guess"), 2, "guess");
}

// The paper's numbers stand next to ours where the model goes by the name of one of the paper's.
TEST_F(Cli, PresetsShowWhatThePaperSays) {
  const auto sweep = [&](const std::string& model, const std::string& preset) {
    if (!fs::exists(dir_ / model)) WriteModel(model, {{"hidden_size", 64}});
    return Command("sweep",
                   {"--preset", preset, "--calib", Path("calibration.txt:16x16"), "--text", Path("heldout.txt"),
                    "--prune", "bi:0.25,keep=first:1,reverse*:0.25", "--lra", "64,full", "--quiet"},
                   model);
  };
  const auto shows = [](const Outcome& outcome, const std::vector<std::string>& numbers) {
    ASSERT_EQ(outcome.status, 0) << outcome.err;
    for (const std::string& number : numbers)
      EXPECT_NE(outcome.out.find(" " + number), std::string::npos) << number << " in\n" << outcome.out;
  };
  shows(sweep("Qwen2-1.5B", "paper-generic-affine"), {"generic-affine", "45.78", "36.96", "46.85", "37.99"});
  shows(sweep("Qwen2-1.5B", "paper-replaceme"), {"replaceme", "43.9", "44.3", "45.71", "458.44"});
  shows(sweep("Llama-3.1-8B-Instruct", "paper-sequential"), {"sequential", "56.62", "56.29", "54.61", "55.03"});
  shows(sweep("Llama-3.1-8B-Instruct", "paper-replaceme"), {"59.46", "61.62"});
  const Outcome unknown = sweep("another", "paper-replaceme");
  shows(unknown, {"replaceme"});
  EXPECT_EQ(unknown.out.find("paper:"), std::string::npos);
}

}  // namespace
}  // namespace shiftrt
