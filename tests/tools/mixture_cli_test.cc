// SPDX-License-Identifier: Apache-2.0
// A model with mixtures of experts on the command line: pruned, repaired, measured, saved, exported and trained, and
// refused where a setting does not go with it.
#include "tests/tools/cli.h"

namespace shiftrt {
namespace {

class MixtureCli : public Cli {
 protected:
  // The first block has an MLP.
  void SetUp() override {
    Cli::SetUp();
    fs::remove_all(dir_ / "model");
    WriteModel("model", {{"architectures", {"Qwen3MoeForCausalLM"}},
                         {"model_type", "qwen3_moe"},
                         {"head_dim", 8},
                         {"num_experts", 8},
                         {"num_experts_per_tok", 2},
                         {"moe_intermediate_size", 32},
                         {"norm_topk_prob", true},
                         {"mlp_only_layers", {0}}});
  }
  double Perplexity(const std::string& model) const {
    EXPECT_EQ(Command("ppl", {"--text", Path("heldout.txt"), "--json", Path("p.json")}, model).status, 0);
    return ReadJson("p.json")["perplexity"];
  }
};

TEST_F(MixtureCli, AQuarterIsRemovedRepairedExportedAndReadBack) {
  const Outcome run = Run({"--prune", "bi:0.25", "--lra", "4", "--save", Path("saved"), "--json", Path("r.json")});
  ASSERT_EQ(run.status, 0) << run.err;
  const Json json = ReadJson("r.json");
  const double repaired = json["variants"].back()["perplexity"];
  EXPECT_NEAR(Perplexity("saved"), repaired, 1e-4 * repaired);

  const Outcome whole = Run({"--prune", "layers=1,3", "--correction", "none", "--save", Path("whole"), "--save-weights",
                             "--export", "hf:" + Path("hf"), "--json", Path("r.json")});
  ASSERT_EQ(whole.status, 0) << whole.err;
  const double pruned = ReadJson("r.json")["variants"].back()["perplexity"];
  for (const char* model : {"whole", "hf"}) EXPECT_EQ(Perplexity(model), pruned) << model;
  const Json config = ReadJson("hf/config.json");
  EXPECT_EQ(config["mlp_only_layers"], Json({0})) << "the kept blocks are counted anew";
  EXPECT_EQ(config["num_hidden_layers"], 2);

  const Outcome halves = Run({"--prune", "layers=2.mlp,3.attn", "--lra", "4", "--save", Path("halves")});
  ASSERT_EQ(halves.status, 0) << halves.err;
  EXPECT_GT(Perplexity("halves"), 1);
}

// Qwen 3 Next: gated delta networks, attention with gates, and experts of which one is shared.
TEST_F(MixtureCli, SharedExpertsAndGatedDeltaNetworksGoTogether) {
  fs::remove_all(dir_ / "model");
  WriteModel("model", {{"architectures", {"Qwen3NextForCausalLM"}},
                       {"model_type", "qwen3_next"},
                       {"head_dim", 16},
                       {"full_attention_interval", 2},
                       {"linear_key_head_dim", 8},
                       {"linear_value_head_dim", 8},
                       {"linear_num_key_heads", 2},
                       {"linear_num_value_heads", 4},
                       {"num_experts", 8},
                       {"num_experts_per_tok", 2},
                       {"moe_intermediate_size", 32},
                       {"shared_expert_intermediate_size", 16}});
  EXPECT_NE(Command("inspect", {}).out.find("of which 2 are active, and a shared expert of 16 units"),
            std::string::npos);
  const Outcome run =
      Run({"--prune", "layers=1.mlp,2", "--lra", "4", "--save", Path("saved"), "--json", Path("r.json")});
  ASSERT_EQ(run.status, 0) << run.err;
  const double repaired = ReadJson("r.json")["variants"].back()["perplexity"];
  EXPECT_NEAR(Perplexity("saved"), repaired, 1e-4 * repaired);
  EXPECT_EQ(Command("generate", {"--prompt", "the sea was", "--max-tokens", "8"}, "saved").status, 0);
  EXPECT_EQ(Run({"--prune", "taylor:1"}).status, 0);
  EXPECT_EQ(Run({"--prune", "layers=1", "--correction", "prune-comp"}).status, 0);
  EXPECT_EQ(Run({"--prune", "layers=1", "--quantize", "q8_0,nearest"}).status, 0);
  const Outcome whole =
      Run({"--prune", "layers=1", "--correction", "none", "--export", "hf:" + Path("hf"), "--json", Path("r.json")});
  ASSERT_EQ(whole.status, 0) << whole.err;
  EXPECT_EQ(Perplexity("hf"), ReadJson("r.json")["variants"].back()["perplexity"].get<double>());
  const Outcome lora = Command("finetune",
                               {"--calib", Path("calibration.txt"), "--length", "32", "--steps", "3", "--method",
                                "lora", "--targets", "q,k,v,o", "--rank", "2", "--quiet", "--save", Path("lora")},
                               "saved");
  EXPECT_EQ(lora.status, 0) << lora.err;
}

// gpt-oss: attention sinks, windows in every second layer, and biases of routers and experts.
TEST_F(MixtureCli, AttentionSinksAndBiasesOfExpertsGoTogether) {
  fs::remove_all(dir_ / "model");
  WriteModel("model", {{"architectures", {"GptOssForCausalLM"}},
                       {"model_type", "gpt_oss"},
                       {"head_dim", 16},
                       {"num_local_experts", 8},
                       {"num_experts_per_tok", 2},
                       {"intermediate_size", 32},
                       {"sliding_window", 20},
                       {"rope_scaling", {{"rope_type", "default"}}}});
  EXPECT_NE(Command("inspect", {}).out.find("of which 2 are active"), std::string::npos);
  const Outcome run =
      Run({"--prune", "layers=1.mlp,2", "--lra", "4", "--save", Path("saved"), "--json", Path("r.json")});
  ASSERT_EQ(run.status, 0) << run.err;
  const double repaired = ReadJson("r.json")["variants"].back()["perplexity"];
  EXPECT_NEAR(Perplexity("saved"), repaired, 1e-4 * repaired);
  EXPECT_EQ(Command("generate", {"--prompt", "the sea was", "--max-tokens", "8"}, "saved").status, 0);
  EXPECT_EQ(Run({"--prune", "taylor:1"}).status, 0);
  const Outcome scaled =
      Run({"--prune", "layers=1", "--correction", "prune-comp", "--save", Path("scaled"), "--json", Path("r.json")});
  ASSERT_EQ(scaled.status, 0) << scaled.err;
  EXPECT_EQ(Perplexity("scaled"), ReadJson("r.json")["variants"].back()["perplexity"].get<double>());
  EXPECT_EQ(Run({"--prune", "layers=1", "--quantize", "q8_0,nearest"}).status, 0);
  const Outcome whole =
      Run({"--prune", "layers=1", "--correction", "none", "--export", "hf:" + Path("hf"), "--json", Path("r.json")});
  ASSERT_EQ(whole.status, 0) << whole.err;
  EXPECT_EQ(Perplexity("hf"), ReadJson("r.json")["variants"].back()["perplexity"].get<double>());
  const Outcome lora = Command("finetune",
                               {"--calib", Path("calibration.txt"), "--length", "32", "--steps", "3", "--method",
                                "lora", "--targets", "q,k,v,o", "--rank", "2", "--quiet", "--save", Path("lora")},
                               "saved");
  EXPECT_EQ(lora.status, 0) << lora.err;
}

TEST_F(MixtureCli, InspectTellsExpertsAndActiveParameters) {
  const Outcome inspected = Command("inspect", {"--json", Path("i.json")});
  ASSERT_EQ(inspected.status, 0) << inspected.err;
  EXPECT_NE(inspected.out.find("3 layers have 8 experts of 32 units, of which 2 are active"), std::string::npos)
      << inspected.out;
  const Json json = ReadJson("i.json");
  const int64_t of_expert = 3 * 32 * kHidden;
  EXPECT_EQ(json["parameters"].get<int64_t>() - json["mixture"]["active_parameters"].get<int64_t>(), 3 * 6 * of_expert);
}

TEST_F(MixtureCli, CriteriaByWeightsAndGradientsScoreExperts) {
  for (const char* criterion : {"taylor:1", "magnitude-l1:1", "ppl:1", "prune-comp:1"}) {
    const Outcome run = Run({"--prune", criterion});
    EXPECT_EQ(run.status, 0) << criterion << ": " << run.err;
  }
  const Outcome scaled = Run({"--prune", "layers=1", "--correction", "prune-comp"});
  EXPECT_EQ(scaled.status, 0) << scaled.err;
}

TEST_F(MixtureCli, AdaptersAndAttentionAreTrained) {
  ASSERT_EQ(Run({"--prune", "layers=2", "--lra", "4", "--save", Path("saved")}).status, 0);
  const std::vector<std::string> text = {
      "--calib", Path("calibration.txt"), "--length", "32",     "--batch", "4", "--steps",
      "4",       "--validation",          "4",        "--quiet"};
  const auto train = [&](std::vector<std::string> more) {
    more.insert(more.end(), text.begin(), text.end());
    return Command("finetune", more, "saved");
  };
  const Outcome adapters = train({"--method", "adapters", "--save", Path("adapters")});
  EXPECT_EQ(adapters.status, 0) << adapters.err;
  EXPECT_GT(Perplexity("adapters"), 1);
  const Outcome lora = train({"--method", "lora", "--targets", "q,k,v,o", "--rank", "2", "--save", Path("lora")});
  EXPECT_EQ(lora.status, 0) << lora.err;
  EXPECT_FAILS(train({"--method", "lora", "--targets", "q,up", "--save", Path("x")}), 2,
               "has a mixture of experts, which are not trained; these go with it: q, k, v, o");
  EXPECT_FAILS(train({"--method", "partial", "--save", Path("x")}), 2,
               "has a mixture of experts, whose router and experts are not trained");
}

TEST_F(MixtureCli, SettingsThatDoNotGoWithItAreRefused) {
  for (const char* correction : {"refit", "joint", "laco", "replaceme", "auto"})
    EXPECT_FAILS(Run({"--prune", "layers=1", "--correction", correction}), 2,
                 "does not go with a model with mixtures of experts");
  EXPECT_FAILS(Run({"--prune", "layers=1", "--heal", "down"}), 2, "mixtures of experts");
  EXPECT_FAILS(Run({"--prune", "layers=1", "--quantize", "q8_0"}), 2, "q8_0,nearest reads no text");
  const Outcome nearest = Run({"--prune", "layers=1", "--quantize", "q8_0,nearest", "--save", Path("q")});
  ASSERT_EQ(nearest.status, 0) << nearest.err;
  EXPECT_GT(Perplexity("q"), 1);
  EXPECT_FAILS(Command("export", {"--format", "hf-lra", "--save", Path("h")}), 2,
               "its Python files do not run mixtures of experts");
  EXPECT_FAILS(Command("export", {"--format", "gguf", "--save", Path("g")}), 2, "mixtures of experts");
}

}  // namespace
}  // namespace shiftrt
