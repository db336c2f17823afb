// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <cmath>

#include "tests/tools/cli.h"

namespace shiftrt {
namespace {

TEST_F(Cli, RunAndPplSayHowFarAVariantIsFromTheOriginal) {
  const Outcome run = Run({"--prune", "layers=1", "--correction", "lra", "--lra", "8", "--protocol", "seq128", "--save",
                           Path("saved"), "--json", Path("run.json"), "--report", Path("page")});
  ASSERT_EQ(run.status, 0) << run.err;
  EXPECT_NE(run.out.find("fidelity to the original on heldout.txt"), std::string::npos) << run.out;
  EXPECT_NE(ReadFile(dir_ / "page/index.html").find("Fidelity to the original"), std::string::npos);
  const Json of_run = ReadJson("run.json"), rows = of_run["fidelity"]["variants"];
  ASSERT_EQ(rows.size(), size_t{2});
  EXPECT_EQ(rows[0]["name"], "pruned");
  EXPECT_EQ(rows[1]["name"], "lra");
  EXPECT_GT(rows[0]["mean_kld"], 0);
  EXPECT_NEAR(rows[1]["perplexity"].get<double>(), of_run["variants"][2]["perplexity"].get<double>(), 1e-2);
  EXPECT_NEAR(rows[1]["perplexity_original"].get<double>(), of_run["variants"][0]["perplexity"].get<double>(), 1e-2);

  const std::vector<std::string> measured = {"--text", Path("heldout.txt"), "--protocol", "seq128",
                                             "--json", Path("p.json")};
  const auto against = [&](const std::string& original) {
    std::vector<std::string> arguments = measured;
    arguments.insert(arguments.end(), {"--against", original});
    return arguments;
  };
  const Outcome ppl = Command("ppl", against(Path("model")), "saved");
  ASSERT_EQ(ppl.status, 0) << ppl.err;
  EXPECT_NE(ppl.out.find("same top p"), std::string::npos) << ppl.out;
  const Json json = ReadJson("p.json");
  for (const char* key : {"mean_kld", "median_kld", "kld_99", "same_top_p", "mean_delta_p", "tokens"})
    EXPECT_EQ(json[key], rows[1][key]) << key;
  // A model is no way from itself.
  ASSERT_EQ(Command("ppl", against(Path("model"))).status, 0);
  EXPECT_EQ(ReadJson("p.json")["max_kld"], 0);
  EXPECT_EQ(ReadJson("p.json")["same_top_p"], 1);

  WriteModel("wide", {{"vocab_size", kVocab + 16}});
  EXPECT_FAILS(Command("ppl", against(Path("wide"))), 1, "vocabulary of 560");
  EXPECT_FAILS(Command("ppl", {"--text", Path("heldout.txt"), "--protocol", "harness", "--against", Path("model")}), 2,
               "--against goes with");
  EXPECT_FAILS(Command("ppl", against(Path("none"))), 1, "none");
}

TEST_F(Cli, CompareShowsWhereTheRepliesOfVariantsPart) {
  ASSERT_EQ(Run({"--prune", "layers=1", "--correction", "lra", "--lra", "8", "--save", Path("saved")}).status, 0);
  fs::copy(dir_ / "model", dir_ / "same", fs::copy_options::recursive);
  const auto compare = [&](std::vector<std::string> more) {
    more.insert(more.end(), {"--max-tokens", "12", "--json", Path("c.json"), "--quiet"});
    more.insert(more.begin(), {"compare", "--threads", "1"});
    return Call(more);
  };
  WriteText(dir_ / "prompts.txt", "the sea was\nnobody spoke of\n");
  const Outcome outcome = compare({"--model", Path("model"), "--with", Path("saved"), Path("same"), "--prompts",
                                   Path("prompts.txt"), "--report", Path("page")});
  ASSERT_EQ(outcome.status, 0) << outcome.err;
  for (const char* text : {"\"nobody spoke of\"", "first differs at token", "is the same", "2 of 2", "same top p"})
    EXPECT_NE(outcome.out.find(text), std::string::npos) << text << " in\n" << outcome.out;
  EXPECT_NE(ReadFile(dir_ / "page/index.html").find("nobody spoke of"), std::string::npos);
  const Json json = ReadJson("c.json");
  ASSERT_EQ(json["prompts"].size(), size_t{2});
  for (const Json& prompt : json["prompts"]) {
    const Json &original = prompt["replies"][0], &saved = prompt["replies"][1], &same = prompt["replies"][2];
    EXPECT_EQ(saved["name"], "saved");
    EXPECT_EQ(same["tokens"], original["tokens"]);
    EXPECT_TRUE(same["parts_at"].is_null());
    EXPECT_EQ(same["fidelity"]["same_top_p"], 1);
    EXPECT_EQ(same["fidelity"]["tokens"], original["tokens"].size());
    EXPECT_GT(saved["fidelity"]["mean_kld"], 0);
    if (!saved["parts_at"].is_null()) {
      const auto at = saved["parts_at"].get<size_t>();
      for (size_t i = 0; i < at; ++i) EXPECT_EQ(saved["tokens"][i], original["tokens"][i]);
      EXPECT_NE(saved["tokens"][at], original["tokens"][at]);
      EXPECT_LT(saved["fidelity"]["same_top_p"], 1);
    }
  }
  EXPECT_EQ(json["fidelity"]["variants"][1]["same_replies"], 2);
  EXPECT_EQ(json["fidelity"]["variants"][1]["max_kld"], 0);
  // The record of a saved model names its original, and the program has prompts.
  const Json first = json["prompts"][0]["replies"];
  ASSERT_EQ(compare({"--with", Path("saved"), "--prompt", "the sea was"}).status, 0);
  EXPECT_EQ(ReadJson("c.json")["prompts"][0]["replies"][1], first[1]);
  ASSERT_EQ(compare({"--model", Path("saved"), "--limit", "3"}).status, 0);
  EXPECT_EQ(ReadJson("c.json")["prompts"].size(), size_t{3});
  EXPECT_EQ(ReadJson("c.json")["prompts"][0]["replies"][2]["name"], "lra");

  EXPECT_FAILS(compare({"--model", Path("model")}), 2, "--with VARIANT");
  EXPECT_FAILS(compare({"--with", Path("model")}), 2, "--model ORIGINAL");
  EXPECT_FAILS(compare({"--model", Path("model"), "--with", Path("saved"), Path("saved/")}), 2, "rename the directory");
  EXPECT_FAILS(compare({"--model", Path("saved"), "--prompt", Words(200)}), 1, "--max-tokens is 12");
  WriteModel("wide", {{"vocab_size", kVocab + 16}});
  EXPECT_FAILS(compare({"--model", Path("model"), "--with", Path("wide"), "--limit", "1"}), 1, "vocabulary of 544");
}

TEST_F(Cli, CompareAsksProbesOfEveryVariant) {
  WriteModel("long", {{"max_position_embeddings", 1024}});
  ASSERT_EQ(Command("run",
                    {"--prune", "layers=1", "--correction", "lra", "--lra", "4", "--calib",
                     Path("calibration.txt:16x64"), "--text", Path("heldout.txt"), "--prompt", "the sea",
                     "--max-tokens", "4", "--quiet", "--save", Path("saved")},
                    "long")
                .status,
            0);
  const std::vector<std::string> asked = {"--probes", "--probe-items", "1",      "--probe-tokens", "512",
                                          "--json",   Path("c.json"),  "--quiet"};
  const Outcome outcome = Command("compare", asked, "saved");
  ASSERT_EQ(outcome.status, 0) << outcome.err;
  const Json json = ReadJson("c.json"), probes = json["probes"];
  ASSERT_FALSE(probes.empty());
  EXPECT_EQ(probes[0]["probe"], "copy");
  EXPECT_EQ(probes[0]["right"].size(), size_t{3});
  EXPECT_EQ(probes.back()["probe"], "fact");
  EXPECT_EQ(probes.back()["length"], 512);
  EXPECT_NE(outcome.out.find("brackets"), std::string::npos) << outcome.out;
  // One model alone.
  ASSERT_EQ(Command("compare", asked, "long").status, 0);
  EXPECT_EQ(ReadJson("c.json")["probes"][0]["right"]["long"], json["probes"][0]["right"]["original"]);
  EXPECT_FAILS(Command("compare", {"--probe-items", "3"}, "saved"), 2, "--probes");
}

}  // namespace
}  // namespace shiftrt
