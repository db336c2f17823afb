// SPDX-License-Identifier: Apache-2.0
// Families with blocks of their own on the command line: pruned, repaired, measured, saved, exported, trained and
// rounded. Each has its mathematics in tests/engine; here they go through everything that is written for all families.
#include <ostream>

#include "tests/tools/cli.h"

namespace shiftrt {
namespace {

struct FamilyCase {
  const char* name;
  Json config;
  const char* mlp;  // the name of its MLP in checkpoints
};
void PrintTo(const FamilyCase& c, std::ostream* out) { *out << c.name; }

std::vector<FamilyCase> Cases() {
  return {{"Hunyuan",
           {{"architectures", {"HunYuanDenseV1ForCausalLM"}},
            {"model_type", "hunyuan_v1_dense"},
            {"head_dim", 16},
            {"rope_scaling", {{"type", "dynamic"}, {"factor", 1.0}, {"alpha", 50.0}}}},
           "mlp"},
          {"Apertus",
           {{"architectures", {"ApertusForCausalLM"}},
            {"model_type", "apertus"},
            {"hidden_act", "xielu"},
            {"rope_scaling", {{"rope_type", "default"}}}},
           "mlp"},
          {"LFM2",
           {{"architectures", {"Lfm2ForCausalLM"}},
            {"model_type", "lfm2"},
            {"norm_eps", 1e-5},
            {"rms_norm_eps", nullptr},
            {"block_auto_adjust_ff_dim", false},
            {"full_attn_idxs", {1, 3}}},
           "feed_forward"}};
}

class FamiliesCli : public Cli, public testing::WithParamInterface<FamilyCase> {
 protected:
  void SetUp() override {
    Cli::SetUp();
    fs::remove_all(dir_ / "model");
    WriteModel("model", GetParam().config);
  }
  double Perplexity(const std::string& model) const {
    const Outcome outcome = Command("ppl", {"--text", Path("heldout.txt"), "--json", Path("p.json")}, model);
    EXPECT_EQ(outcome.status, 0) << outcome.err;
    return ReadJson("p.json")["perplexity"];
  }
  double LastPerplexity() const { return ReadJson("r.json")["variants"].back()["perplexity"]; }
};
INSTANTIATE_TEST_SUITE_P(Families, FamiliesCli, testing::ValuesIn(Cases()),
                         [](const auto& info) { return std::string(info.param.name); });

TEST_P(FamiliesCli, AreRepairedSavedExportedAndReadBack) {
  const Outcome run = Run(
      {"--prune", "bi:0.25", "--correction", "joint", "--lra", "4", "--save", Path("saved"), "--json", Path("r.json")});
  ASSERT_EQ(run.status, 0) << run.err;
  const double repaired = LastPerplexity();
  EXPECT_NEAR(Perplexity("saved"), repaired, 1e-4 * repaired);
  EXPECT_EQ(Command("generate", {"--prompt", "the sea was", "--max-tokens", "8"}, "saved").status, 0);
  const Outcome lra = Command("export", {"--format", "hf-lra", "--save", Path("lra")}, "saved");
  ASSERT_EQ(lra.status, 0) << lra.err;
  EXPECT_NEAR(Perplexity("lra"), repaired, 1e-4 * repaired);

  // Blocks alone: what is saved with its weights, and a stock directory.
  const Outcome whole = Run({"--prune", "layers=2", "--correction", "refit", "--save", Path("whole"), "--save-weights",
                             "--export", "hf:" + Path("hf"), "--json", Path("r.json")});
  ASSERT_EQ(whole.status, 0) << whole.err;
  const double pruned = LastPerplexity();
  for (const char* model : {"whole", "hf"}) EXPECT_NEAR(Perplexity(model), pruned, 1e-4 * pruned) << model;
  EXPECT_EQ(ReadJson("hf/config.json")["num_hidden_layers"], 3);

  const Outcome halves =
      Run({"--prune", "layers=2.mlp,3.attn", "--lra", "4", "--save", Path("halves"), "--json", Path("r.json")});
  ASSERT_EQ(halves.status, 0) << halves.err;
  const double of_halves = LastPerplexity();
  EXPECT_NEAR(Perplexity("halves"), of_halves, 1e-4 * of_halves);
}

TEST_P(FamiliesCli, CriteriaCorrectionsAndRoundingKnowNoFamily) {
  for (const char* prune : {"magnitude-l1:1", "taylor:1", "ppl:1", "bi:2,unit=half"})
    EXPECT_EQ(Run({"--prune", prune, "--lra", "4"}).status, 0) << prune;
  EXPECT_EQ(Run({"--prune", "layers=2", "--correction", "norm-lra", "--lra", "4"}).status, 0);
  for (const char* correction : {"replaceme", "prune-comp", "linearpatch"})
    EXPECT_EQ(Run({"--prune", "layers=2", "--correction", correction}).status, 0) << correction;
  EXPECT_EQ(Run({"--prune", "layers=1", "--heal", "all"}).status, 0);
  EXPECT_EQ(Run({"--prune", "layers=1", "--quantize", "q8_0"}).status, 0);
}

TEST_P(FamiliesCli, AreTrained) {
  ASSERT_EQ(Run({"--prune", "layers=2", "--lra", "4", "--save", Path("saved")}).status, 0);
  const double before = Perplexity("saved");
  const auto train = [&](const std::string& save, std::vector<std::string> more) {
    more.insert(more.end(), {"--calib", Path("calibration.txt"), "--length", "32", "--steps", "6", "--rate", "1e-2",
                             "--quiet", "--save", Path(save)});
    const Outcome outcome = Command("finetune", std::move(more), "saved");
    EXPECT_EQ(outcome.status, 0) << outcome.err;
    return Perplexity(save);
  };
  EXPECT_LT(train("partial", {"--method", "partial", "--layers", "all"}), before);
  EXPECT_LT(train("lora", {"--method", "lora", "--rank", "2"}), before);
  // PEFT's names are those of the family.
  EXPECT_NE(ReadFile(dir_ / "lora/lora/adapter_model.safetensors").find(fmt::format(".{}.", GetParam().mlp)),
            std::string::npos);
}

}  // namespace
}  // namespace shiftrt
