// SPDX-License-Identifier: Apache-2.0
// The commands on a quantised GGUF file, which is not expanded: a repair, a training, a saved model and an export.
#include "runtime/gguf.h"
#include "tests/tools/cli.h"

namespace shiftrt {
namespace {

class QuantisedCli : public Cli {
 protected:
  // "base.gguf" in Q8_0: all matrices have rows of whole blocks.
  void SetUp() override {
    Cli::SetUp();
    WriteModel("wide", {{"intermediate_size", 64}});
    for (const char* file : {"tokenizer.json", "tokenizer_config.json"}) fs::remove(dir_ / "wide" / file);
    for (const auto& entry : fs::directory_iterator(TestDirectory() / "goldens/tokenizers/sentencepiece"))
      fs::copy(entry.path(), dir_ / "wide" / entry.path().filename(), fs::copy_options::overwrite_existing);
    const Outcome made =
        Command("export", {"--format", "gguf", "--dtype", "q8_0", "--save", Path("made"), "--quiet"}, "wide");
    ASSERT_EQ(made.status, 0) << made.err;
    fs::rename(dir_ / "made/model.gguf", dir_ / "base.gguf");
  }
  double Perplexity(const std::string& model, const std::vector<std::string>& more = {}) {
    std::vector<std::string> words = {"--text", Path("heldout.txt"), "--json", Path("ppl.json"), "--quiet"};
    words.insert(words.end(), more.begin(), more.end());
    const Outcome measured = Command("ppl", words, model);
    EXPECT_EQ(measured.status, 0) << measured.err;
    return measured.status == 0 ? ReadJson("ppl.json")["perplexity"].get<double>() : 0;
  }
};

TEST_F(QuantisedCli, RunsAsItIs) {
  const Outcome inspected = Command("inspect", {"--json", Path("inspect.json")}, "base.gguf");
  ASSERT_EQ(inspected.status, 0) << inspected.err;
  EXPECT_EQ(ReadJson("inspect.json")["dtype"], "Q8_0");
  const double as_it_is = Perplexity("base.gguf"), wide = Perplexity("base.gguf", {"--dtype", "float32"});
  EXPECT_NEAR(as_it_is, wide, 1e-5 * wide);
}

TEST_F(QuantisedCli, IsRepairedTrainedSavedAndExported) {
  const std::vector<std::string> job = {"--prune",      "layers=2",
                                        "--lra",        "8",
                                        "--calib",      Path("calibration.txt:16x64"),
                                        "--text",       Path("heldout.txt"),
                                        "--max-tokens", "4",
                                        "--no-gate",    "--save",
                                        Path("saved"),  "--json",
                                        Path("r.json"), "--quiet"};
  const Outcome run = Command("run", job, "base.gguf");
  ASSERT_EQ(run.status, 0) << run.err;
  // A joint repair changes projections, which are then stored in bfloat16. Reopened, the model is the same.
  const double repaired = ReadJson("r.json")["variants"][2]["perplexity"];
  EXPECT_NEAR(Perplexity("saved"), repaired, 1e-9 * repaired);

  const Outcome tuned =
      Command("finetune",
              {"--method", "lora", "--calib", Path("calibration.txt"), "--length", "32", "--batch", "4", "--steps", "3",
               "--validation", "4", "--rate", "0.01", "--save", Path("tuned"), "--quiet"},
              "saved");
  ASSERT_EQ(tuned.status, 0) << tuned.err;
  EXPECT_GT(Perplexity("tuned"), 0);
  const Outcome blocks = Command(
      "finetune",
      {"--method", "partial", "--layers", "last:1", "--calib", Path("calibration.txt"), "--length", "32", "--batch",
       "4", "--steps", "3", "--validation", "4", "--rate", "0.001", "--save", Path("blocks"), "--quiet"},
      "saved");
  ASSERT_EQ(blocks.status, 0) << blocks.err;
  EXPECT_GT(Perplexity("blocks"), 0);

  const Outcome gguf =
      Command("export", {"--prune", "layers=2", "--format", "gguf", "--save", Path("out"), "--quiet"}, "base.gguf");
  ASSERT_EQ(gguf.status, 0) << gguf.err;
  EXPECT_STREQ(GgufFile(dir_ / "out/model.gguf").tensors().at("blk.2.ffn_down.weight").type->name, "Q8_0");
  const Outcome directory =
      Command("export", {"--prune", "layers=2", "--format", "hf", "--save", Path("hf"), "--quiet"}, "base.gguf");
  ASSERT_EQ(directory.status, 0) << directory.err;
  const double pruned = Perplexity("out/model.gguf");
  EXPECT_NEAR(Perplexity("hf"), pruned, 0.02 * pruned);  // in bfloat16
}

// A model is rounded on its way to a file, alone and repaired; what the file has is what was measured.
TEST_F(QuantisedCli, IsRoundedToFewerBits) {
  const Outcome exported = Command("export",
                                   {"--format", "gguf", "--quantize", "q4_0", "--calib", Path("calibration.txt:16x64"),
                                    "--save", Path("q4"), "--quiet"},
                                   "wide");
  ASSERT_EQ(exported.status, 0) << exported.err;
  EXPECT_NE(exported.out.find("rounded to q4_0"), std::string::npos) << exported.out;
  const Outcome inspected = Command("inspect", {"--json", Path("inspect.json")}, "q4/model.gguf");
  ASSERT_EQ(inspected.status, 0) << inspected.err;
  EXPECT_NEAR(Perplexity("q4/model.gguf"), Perplexity("wide"), 0.05 * Perplexity("wide"));

  const Outcome run = Command("run",
                              {"--prune", "layers=2", "--lra", "8", "--calib", Path("calibration.txt:16x64"), "--text",
                               Path("heldout.txt"), "--max-tokens", "4", "--no-gate", "--quantize", "q8_0", "--save",
                               Path("saved"), "--json", Path("run.json"), "--quiet"},
                              "wide");
  ASSERT_EQ(run.status, 0) << run.err;
  const auto results = ReadJson("run.json");
  EXPECT_EQ(results["quantised"]["mixture"], "q8_0");
  EXPECT_GT(Perplexity("saved"), 1);

  const Outcome refused =
      Command("export", {"--format", "hf", "--quantize", "q4_0", "--save", Path("no"), "--quiet"}, "wide");
  EXPECT_NE(refused.status, 0);
  EXPECT_NE(refused.err.find("--quantize goes with --format gguf"), std::string::npos) << refused.err;
  EXPECT_FAILS(
      Command("export", {"--format", "gguf", "--quantize", "q4_0", "--dtype", "q8_0", "--save", Path("no")}, "wide"), 2,
      "--dtype q8_0 does not go with --quantize");
  EXPECT_NE(Command("export", {"--format", "gguf", "--quantize", "q7", "--save", Path("no")}, "wide").status, 0);
}

}  // namespace
}  // namespace shiftrt
