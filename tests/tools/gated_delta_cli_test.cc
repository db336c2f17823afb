// SPDX-License-Identifier: Apache-2.0
// A model with gated delta networks (Qwen 3.5) on the command line, from selection to export.
#include "tests/tools/cli.h"

namespace shiftrt {
namespace {

class GatedDeltaCli : public Cli {
 protected:
  void SetUp() override {
    Cli::SetUp();
    WriteModel("qwen",
               {{"architectures", {"Qwen3_5ForCausalLM"}},
                {"model_type", "qwen3_5_text"},
                {"num_hidden_layers", 8},
                {"head_dim", 16},
                {"rope_theta", nullptr},
                {"rope_parameters", {{"rope_type", "default"}, {"rope_theta", 1e7}, {"partial_rotary_factor", 0.25}}},
                {"full_attention_interval", 4},
                {"linear_key_head_dim", 8},
                {"linear_value_head_dim", 8},
                {"linear_num_key_heads", 2},
                {"linear_num_value_heads", 4}});
  }
  double PerplexityOf(const std::string& model) const {
    const Outcome outcome = Command("ppl", {"--text", Path("heldout.txt"), "--json", Path("p.json")}, model);
    EXPECT_EQ(outcome.status, 0) << outcome.err;
    return ReadJson("p.json")["perplexity"].get<double>();
  }
  Outcome RunQwen(std::vector<std::string> more) const {
    more.insert(more.end(), {"--calib", Path("calibration.txt:16x64"), "--text", Path("heldout.txt"), "--quiet"});
    return Command("run", std::move(more), "qwen");
  }
};

TEST_F(GatedDeltaCli, APrunedQuarterIsRepairedSavedTunedAndExported) {
  const Outcome inspected = Command("inspect", {}, "qwen");
  EXPECT_NE(inspected.out.find("6 of the 8 blocks have gated delta networks"), std::string::npos) << inspected.out;
  const Outcome outcome =
      RunQwen({"--prune", "bi:0.25", "--lra", "4", "--save", Path("saved"), "--json", Path("r.json")});
  ASSERT_EQ(outcome.status, 0) << outcome.err;
  EXPECT_EQ(ReadJson("r.json")["selection"]["removed"].size(), 2U);
  const double repaired = ReadJson("r.json")["variants"].back()["perplexity"].get<double>();
  EXPECT_NEAR(PerplexityOf("saved"), repaired, 1e-3 * repaired);

  // The layers that stay keep their mixers, which the export names.
  ASSERT_EQ(Command("run",
                    {"--prune", "layers=1,3", "--recipe", "stock", "--calib", Path("calibration.txt:16x64"), "--text",
                     Path("heldout.txt"), "--quiet", "--save", Path("stock")},
                    "qwen")
                .status,
            0);
  ASSERT_EQ(Command("export", {"--format", "hf", "--save", Path("hf")}, "stock").status, 0);
  EXPECT_EQ(ReadJson("hf/config.json")["layer_types"],
            Json({"linear_attention", "linear_attention", "linear_attention", "linear_attention", "linear_attention",
                  "full_attention"}));
  const double stock = PerplexityOf("stock");
  EXPECT_NEAR(PerplexityOf("hf"), stock, 1e-3 * stock);
  ASSERT_EQ(Command("export", {"--format", "hf-lra", "--save", Path("lra")}, "saved").status, 0);
  EXPECT_NEAR(PerplexityOf("lra"), repaired, 1e-3 * repaired);
  EXPECT_FAILS(Command("export", {"--format", "gguf", "--save", Path("gguf")}, "saved"), 2, "reads the stream itself");

  const Outcome tuned = Command("finetune",
                                {"--calib", Path("calibration.txt"), "--samples", "32", "--length", "64", "--steps",
                                 "3", "--save", Path("tuned"), "--method", "partial", "--layers", "0-2", "--quiet"},
                                "saved");
  ASSERT_EQ(tuned.status, 0) << tuned.err;
  EXPECT_NE(PerplexityOf("tuned"), repaired);
  EXPECT_EQ(Command("generate", {"--prompt", "the sea was", "--max-tokens", "8"}, "tuned").status, 0);
}

// Each criterion, each correction, and halves of both mixers.
TEST_F(GatedDeltaCli, CriteriaAndCorrectionsKnowNoFamily) {
  for (const char* prune :
       {"magnitude-l2:2", "taylor:2", "ppl:1", "bi:3,unit=half", "reverse:2", "layers=2.attn,3.attn"})
    EXPECT_EQ(RunQwen({"--prune", prune, "--correction", "lra", "--lra", "4"}).status, 0) << prune;
  for (const char* correction : {"joint", "norm-lra", "norm-refit"})
    EXPECT_EQ(RunQwen({"--prune", "layers=2.attn,4", "--correction", correction, "--lra", "4"}).status, 0)
        << correction;
  for (const char* correction : {"refit", "linearpatch", "replaceme", "prune-comp", "laco"})
    EXPECT_EQ(RunQwen({"--prune", "layers=1-2", "--correction", correction}).status, 0) << correction;
  EXPECT_FAILS(RunQwen({"--prune", "layers=2-3", "--correction", "laco"}), 2,
               "of blocks 1 and 3 one has attention and the other a gated delta network");
  for (const char* layers : {"layers=2", "layers=3.mlp", "layers=5.mlp"})  // the projections of both mixers are fitted
    EXPECT_EQ(RunQwen({"--prune", layers, "--heal", "all", "--lra", "4"}).status, 0) << layers;
}

}  // namespace
}  // namespace shiftrt
