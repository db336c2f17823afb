// SPDX-License-Identifier: Apache-2.0
// `shiftrt export`, and exports at the end of `shiftrt run`.
#include "runtime/safetensors.h"
#include "tests/tools/cli.h"

namespace shiftrt {
namespace {

TEST_F(Cli, RunExportsWhatItMade) {
  const Outcome run = Run({"--prune", "reverse*:2", "--correction", "replaceme", "--save", Path("saved"),
                           "--save-weights", "--export", "hf:" + Path("made/hf"), "--export", "hf-lra:" + Path("lra"),
                           "--shard-size", "40KiB", "--json", Path("r.json")});
  ASSERT_EQ(run.status, 0) << run.err;
  EXPECT_NE(run.out.find("exported as hf: " + Path("made/hf")), std::string::npos) << run.out;
  EXPECT_TRUE(fs::exists(dir_ / "made/hf/model.safetensors.index.json"));
  const Outcome saved = Command("export", {"--format", "hf", "--save", Path("again")}, "saved");
  ASSERT_EQ(saved.status, 0) << saved.err;
  const std::string expected = ReadJson("r.json")["variants"][2]["continuation"];
  for (const char* model : {"made/hf", "lra", "again"}) {
    const Outcome reply = Command("generate", {"--prompt", "the sea was", "--max-tokens", "12"}, model);
    EXPECT_NE(reply.out.find(expected), std::string::npos) << model << ": " << reply.out << reply.err;
  }
  for (const char* model : {"made/hf", "again"}) {
    const std::string card = ReadFile(dir_ / model / "README.md");
    for (const char* part :
         {"| correction | replaceme |", "| blocks removed (numbered from 0) | 1, 2 |",
          "| criterion of the selection | reverse* |", "| original model | model |", "| calibration tokens | 896 |",
          "was not trained afterwards", " tokens of heldout.txt: protocol gptq, windows of 128 tokens."})
      EXPECT_NE(card.find(part), std::string::npos) << model << ": " << part << "\n" << card;
  }
}

// Nothing is selected or fitted, so no text is asked for, and the card names none.
TEST_F(Cli, LayersAreDroppedAndExportedWithoutText) {
  const Outcome named = Command("export", {"--prune", "layers=1-2", "--format", "hf", "--save", Path("hf"), "--quiet"});
  ASSERT_EQ(named.status, 0) << named.err;
  EXPECT_NE(named.out.find("layers removed, given as a list: 1, 2\n"), std::string::npos) << named.out;
  EXPECT_EQ(Json::parse(ReadFile(dir_ / "hf/config.json"))["num_hidden_layers"], kLayers - 2);
  const std::string card = ReadFile(dir_ / "hf/README.md");
  EXPECT_NE(card.find("| blocks removed (numbered from 0) | 1, 2 |"), std::string::npos) << card;
  for (const char* word : {"lambda", "alibration", "text of", "erplexity", "tokens"})
    EXPECT_EQ(card.find(word), std::string::npos) << word << " took no part\n" << card;

  const Outcome by_size =
      Command("export", {"--prune", "magnitude-l1:2", "--format", "hf", "--save", Path("by_size"), "--quiet"});
  EXPECT_EQ(by_size.status, 0) << by_size.err;
  EXPECT_TRUE(fs::exists(dir_ / "by_size/model.safetensors"));

  // A criterion that reads text takes it, and says so in the card.
  const std::vector<std::string> bi = {"--prune", "bi:0.25", "--format", "hf", "--save", Path("bi"), "--quiet"};
  EXPECT_FAILS(Command("export", bi), 2, "--calib");
  std::vector<std::string> with_text = bi;
  with_text.insert(with_text.end(), {"--calib", Path("calibration.txt:16x64")});
  const Outcome scored = Command("export", with_text);
  ASSERT_EQ(scored.status, 0) << scored.err;
  const std::string of_bi = ReadFile(dir_ / "bi/README.md");
  EXPECT_NE(of_bi.find("| text of the selection | calibration.txt"), std::string::npos) << of_bi;
  EXPECT_EQ(of_bi.find("lambda"), std::string::npos) << of_bi;

  ASSERT_EQ(Run({"--prune", "layers=2", "--correction", "none", "--save", Path("saved")}).status, 0);
  // A saved model is pruned further: the same file as without both blocks at once.
  const Outcome further =
      Command("export", {"--prune", "layers=1", "--format", "hf", "--save", Path("further")}, "saved");
  ASSERT_EQ(further.status, 0) << further.err;
  const Outcome both = Command("export", {"--prune", "layers=1,2", "--format", "hf", "--save", Path("both")});
  ASSERT_EQ(both.status, 0) << both.err;
  EXPECT_EQ(ReadFile(dir_ / "further/model.safetensors"), ReadFile(dir_ / "both/model.safetensors"));
  EXPECT_FAILS(Command("export", {"--calib", "c4", "--format", "hf", "--save", Path("out")}), 2,
               "--calib requires --prune");
}

// hf and gguf hold no adapters: such an export decides the recipe before the work, unless the user has.
TEST_F(Cli, AnExportChoosesTheRecipe) {
  std::vector<std::string> given = {"--prune",      "layers=2",
                                    "--export",     "hf:" + Path("made"),
                                    "--calib",      Path("calibration.txt:16x64"),
                                    "--text",       Path("heldout.txt"),
                                    "--max-tokens", "4",
                                    "--quiet",      "--save",
                                    Path("saved")};
  const Outcome chosen = Command("run", given);
  ASSERT_EQ(chosen.status, 0) << chosen.err;
  EXPECT_NE(chosen.out.find("hf has no place for the adapters of the default, so the recipe is --recipe stock"),
            std::string::npos);
  EXPECT_NE(chosen.out.find("exported as hf"), std::string::npos) << chosen.out;
  EXPECT_EQ(ReadJson("saved/shiftrt.json")["provenance"]["correction"], "refit");
  EXPECT_EQ(ReadJson("saved/shiftrt.json")["provenance"]["heal"], "all");
}

// Writes a LoRA adapter of rank 1 as peft does, whose factors both have these values.
void WriteLora(const fs::path& directory, const std::vector<float>& values, int alpha) {
  const std::string module = "base_model.model.model.layers.1.self_attn.q_proj.lora_";
  fs::create_directory(directory);
  WriteSafetensors(directory / "adapter_model.safetensors",
                   {{module + "A.weight", {values.data(), DType::kFloat32, {1, kHidden}}},
                    {module + "B.weight", {values.data(), DType::kFloat32, {kHidden, 1}}}});
  WriteText(directory / "adapter_config.json",
            fmt::format(R"({{"peft_type": "LORA", "r": 1, "lora_alpha": {}}})", alpha));
}

// A LoRA adapter as peft writes it, on the model itself and on a pruned one: run, exported merged, and left out.
TEST_F(Cli, LoraIsMergedWhereItIsAskedFor) {
  std::vector<float> values(kHidden);
  for (size_t i = 0; i < values.size(); ++i) values[i] = i % 2 == 0 ? 0.5f : -0.4f;
  WriteLora(dir_ / "adapter", values, 2);
  const auto ppl = [&](const char* model, std::vector<std::string> more) {
    more.insert(more.end(), {"--text", Path("heldout.txt"), "--quiet", "--json", Path("p.json")});
    const Outcome outcome = Command("ppl", more, model);
    EXPECT_EQ(outcome.status, 0) << outcome.err;
    return ReadJson("p.json")["perplexity"].get<double>();
  };
  ASSERT_EQ(Run({"--prune", "layers=2", "--correction", "none", "--save", Path("saved")}).status, 0);
  const Outcome merged =
      Command("export", {"--format", "hf", "--save", Path("merged"), "--lora", Path("adapter")}, "saved");
  ASSERT_EQ(merged.status, 0) << merged.err;
  EXPECT_NE(ppl("saved", {}), ppl("saved", {"--lora", Path("adapter")}));
  EXPECT_NEAR(ppl("saved", {"--lora", Path("adapter")}), ppl("merged", {}), 1e-4 * ppl("merged", {}));
  const Outcome inspected = Command("inspect", {"--lora", Path("adapter")}, "saved");
  EXPECT_NE(inspected.out.find("block 1 (self_attn.q_proj)\nLoRA of rank 1 and alpha 2 for 1 projections"),
            std::string::npos)
      << inspected.out;
  const Outcome eval = Command("eval", {"--tasks", "piqa", "--data", EvalData(), "--lora", Path("adapter")});
  EXPECT_NE(eval.out.find("  lora "), std::string::npos) << eval.out << eval.err;
  EXPECT_FAILS(Command("ppl", {"--lora", Path("none"), "--text", Path("heldout.txt")}), 2, "--lora");
  WriteText(dir_ / "adapter/adapter_config.json", R"({"peft_type": "LORA", "r": 2, "lora_alpha": 2})");
  EXPECT_FAILS(Command("ppl", {"--lora", Path("adapter"), "--text", Path("heldout.txt")}), 1,
               "lora_A.weight is float32 [1, ");

  // The LoRA factors of a saved model.
  WriteText(dir_ / "adapter/adapter_config.json", R"({"peft_type": "LORA", "r": 1, "lora_alpha": 2})");
  Json json = ReadJson("saved/shiftrt.json");
  json["version"] = 3;
  json.erase("checksums");  // the checksums do not cover these factors
  json["plan"][1]["lora"] = {"self_attn.q_proj.weight"};
  WriteText(dir_ / "saved/shiftrt.json", json.dump());
  fs::copy(dir_ / "adapter", dir_ / "saved/lora");
  EXPECT_NEAR(ppl("saved", {}), ppl("merged", {}), 1e-4 * ppl("merged", {}));
  EXPECT_FAILS(Command("ppl", {"--lora", Path("adapter"), "--text", Path("heldout.txt")}, "saved"), 2,
               "merged already");
  ASSERT_EQ(Command("export", {"--format", "hf", "--save", Path("base"), "--no-lora"}, "saved").status, 0);
  EXPECT_NEAR(ppl("base", {"--lora", Path("saved/lora")}), ppl("merged", {}), 1e-4 * ppl("merged", {}));
}

// A change that is smaller than the steps of bfloat16: the export says what it loses, and what to do.
TEST_F(Cli, AnExportSaysWhatRoundingLosesOfLora) {
  WriteLora(dir_ / "adapter", std::vector<float>(kHidden, 1e-3f), 1);
  const auto exported = [&](const std::string& dtype) {
    const Outcome outcome = Command(
        "export", {"--format", "hf", "--save", Path(dtype), "--lora", Path("adapter"), "--dtype", dtype, "--quiet"});
    EXPECT_EQ(outcome.status, 0) << outcome.err;
    return outcome.out;
  };
  const std::string rounded = exported("bfloat16");
  EXPECT_NE(rounded.find("Rounding to bfloat16 errs by"), std::string::npos) << rounded;
  EXPECT_NE(rounded.find("--dtype float32"), std::string::npos) << rounded;
  EXPECT_EQ(exported("float32").find("Rounding"), std::string::npos);
}

TEST_F(Cli, AdaptersAreExportedAndEvaluated) {
  ASSERT_EQ(Run({"--prune", "reverse*:2", "--correction", "lra", "--lra", "8", "--save", Path("saved"), "--json",
                 Path("r.json")})
                .status,
            0);
  EXPECT_FAILS(Command("export", {"--format", "hf", "--save", Path("hf")}, "saved"), 2,
               "reads the stream itself, and hf has a place only for those that read the normed stream, which the "
               "recipe portable "
               "makes. `shiftrt run --recipe stock` makes a model without adapters (trained: add --recover 15min); "
               "--format hf-lra "
               "takes adapters");
  EXPECT_FAILS(Command("export", {"--format", "gguf", "--save", Path("hf")}, "saved"), 2,
               "reads the stream itself, and gguf has a place only for those that read the normed stream, which the "
               "recipe portable makes. `shiftrt run --recipe stock` makes a model without adapters");
  const Outcome listed = Command("export", {}, "saved");
  ASSERT_EQ(listed.status, 0) << listed.err;
  for (const char* part :
       {"hf: loses a part of this model: its adapter for layer ", "hf-lra: holds this model\n  keeps: ", "2 adapters",
        "loses: nothing", "--format hf-lra --save DIR", "gguf: loses a part of this model"})
    EXPECT_NE(listed.out.find(part), std::string::npos) << part << " in: " << listed.out;
  EXPECT_FAILS(Command("export", {"--save", Path("hf")}, "saved"), 2, "--format");
  EXPECT_FAILS(Command("export", {"--format", "hf"}, "saved"), 2, "--save");
  EXPECT_FALSE(fs::exists(dir_ / "hf"));
  ASSERT_EQ(Command("finetune",
                    {"--method", "adapters", "--steps", "1", "--calib", Path("calibration.txt"), "--text",
                     Path("heldout.txt"), "--save", Path("tuned"), "--quiet"},
                    "saved")
                .status,
            0);
  EXPECT_FAILS(Command("export", {"--format", "hf", "--save", Path("hf")}, "tuned"), 2,
               "`shiftrt run --recipe stock --recover 15min` makes a model without adapters, trained as this one is");
  const Outcome exported =
      Command("export", {"--format", "hf-lra", "--save", Path("lra"), "--dtype", "bfloat16"}, "saved");
  ASSERT_EQ(exported.status, 0) << exported.err;
  EXPECT_NE(Command("inspect", {}, "lra").out.find("bfloat16"), std::string::npos);
  EXPECT_FAILS(Command("run", {"--text", Path("heldout.txt"), "--calib", Path("calibration.txt")}, "lra"), 2,
               "cannot be pruned further, because it was saved with its weights");
}

TEST_F(Cli, FormatsAreListedForACut) {
  const Outcome listed = Command("export", {"--prune", "layers=1.attn,2"});
  ASSERT_EQ(listed.status, 0) << listed.err;
  for (const char* part : {"layers removed, given as a list: 1.attn, 2", "hf: holds this model\n  keeps: ",
                           "loses: time and memory: zeros fill 1 of the places of attentions and MLPs",
                           "gguf: holds this model", " --prune layers=1.attn,2 --format gguf --save DIR"})
    EXPECT_NE(listed.out.find(part), std::string::npos) << part << " in: " << listed.out;
}

TEST_F(Cli, ExportsThatCannotBeAreRefusedBeforeTheWork) {
  const auto refused = [&](const std::vector<std::string>& more, const std::string& word) {
    const Outcome outcome = Run(more);
    EXPECT_EQ(outcome.out, "");
    EXPECT_FAILS(outcome, 2, word);
  };
  WriteText(dir_ / "file", "");
  refused(
      {"--export", "hf:" + Path("out"), "--lra", "8"},
      "--correction joint makes adapters, which hf has no place for; it works with --recipe stock (trained: --recipe "
      "stock --recover 15min) and, for Llama, Mistral and Qwen 2, with --recipe portable, or with --export hf-lra:DIR");
  refused(
      {"--export", "gguf:" + Path("out"), "--lra", "8"},
      "--correction joint makes adapters, which gguf has no place for; it works with --recipe stock (trained: "
      "--recipe stock --recover 15min) and, for Llama, Mistral and Qwen 2, with --recipe portable, or with --export "
      "hf-lra:DIR");
  for (const std::string name : {"norm-lra", "norm-refit"})
    refused({"--export", "mergekit:" + Path("out"), "--correction", name},
            "--correction " + name + " makes adapters, which mergekit has no place for");
  refused(
      {"--export", "mergekit:" + Path("out"), "--correction", "laco"},
      "--correction laco changes weights of blocks, which mergekit has no place for; it works with --correction none, "
      "or with --export hf:DIR or hf-lra:DIR or gguf:DIR");
  refused({"--export", "mergekit:" + Path("out"), "--correction", "none", "--heal", "all"},
          "--heal changes weights of blocks");
  refused({"--export", "mergekit:" + Path("out")}, "it works with --correction none");
  refused({"--export", "hf"}, "expected FORMAT:DIR");
  refused({"--shard-size", "1GB"}, "--shard-size requires --export");
  refused({"--base-model", "org/name"}, "--base-model requires --export");
  refused({"--correction", "refit", "--lra", "8"}, "--lra: the correction refit does not go with a rank");
  refused({"--correction", "none", "--factorize", "svd"},
          "--factorize: the correction none does not go with a factorization");
  refused({"--correction", "none", "--lambda", "1"}, "--lambda: the correction none does not go with a lambda");
  refused({"--export", "safetensors:" + Path("out")}, "known: hf, hf-lra");
  refused({"--export", "hf-lra:" + Path("model")}, "--export: " + Path("model") + ": the directory is not empty");
  refused({"--export", "hf-lra:" + Path("file")}, "not a directory");
  refused({"--export", "hf-lra:" + Path("out"), "--export", "hf-lra:" + Path("./out")}, "something else");
  refused({"--export", "hf-lra:" + Path("out/"), "--save", Path("out")}, "something else");
  refused({"--export", "hf-lra:" + Path("out"), "--save", Path("out")}, "something else");
  WriteModel("smollm3", {{"architectures", {"SmolLM3ForCausalLM"}}, {"model_type", "smollm3"}});
  const Outcome family = Command("run",
                                 {"--calib", Path("calibration.txt"), "--text", Path("heldout.txt"), "--correction",
                                  "none", "--export", "mergekit:" + Path("out")},
                                 "smollm3");
  EXPECT_EQ(family.out, "");
  EXPECT_FAILS(family, 2, "--export: mergekit cannot hold this model: mergekit has no definition of family smollm3");
  EXPECT_FAILS(Command("export", {"--format", "hf", "--save", Path("model")}), 2, "--save: ");
  EXPECT_FAILS(Command("export", {"--format", "hff", "--save", Path("out")}), 2, "hf-lra");
  EXPECT_FAILS(Command("export", {"--format", "mergekit", "--save", Path("out")}), 2, "no block is removed");
  EXPECT_FAILS(Command("export", {"--format", "hf", "--save", Path("out"), "--dtype", "q8_0"}), 2, "Q8_0");
  EXPECT_FALSE(fs::exists(dir_ / "out"));
}

TEST_F(Cli, CtrlCInMidExportLeavesNothing) {
  WriteModel("large", {{"vocab_size", 200000}});
  const auto begun = [&] {
    for (const auto& entry : fs::directory_iterator(dir_))
      if (entry.path().filename().string().starts_with("exported.tmp")) return true;
    return false;
  };
  int status = 0;
  for (int attempt = 0; status == 0 && attempt < 10; ++attempt) {  // until the export is caught half-way
    fs::remove_all(dir_ / "exported");
    const pid_t child =
        Start(Split("export --threads 1 --quiet --format hf --model " + Path("large") + " --save " + Path("exported")),
              dir_ / "stdout", dir_ / "stderr");
    while (!begun() && !Ended(child)) ::usleep(200);
    ::kill(child, SIGINT);
    status = Wait(child);
  }
  EXPECT_EQ(status, 130) << ReadFile(dir_ / "stderr");
  EXPECT_FALSE(fs::exists(dir_ / "exported"));
  EXPECT_FALSE(begun());
}

}  // namespace
}  // namespace shiftrt
