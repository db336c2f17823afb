// SPDX-License-Identifier: Apache-2.0
#include <algorithm>

#include "tests/file_size_limit.h"
#include "tests/tools/cli.h"
#include "types/training.h"

namespace shiftrt {
namespace {

class FinetuneCli : public Cli {
 protected:
  // A pruned model with adapters in "out", from which trainings begin.
  void SetUp() override {
    Cli::SetUp();
    ASSERT_EQ(Run({"--prune", "layers=1,2", "--correction", "lra", "--lra", "4", "--save", Path("out")}).status, 0);
  }
  std::vector<std::string> Arguments(std::vector<std::string> more, const std::string& save) const {
    more.insert(more.begin(), {"finetune", "--threads", "1", "--model", Path("out"), "--calib", Path("calibration.txt"),
                               "--length", "32", "--batch", "4", "--save", Path(save), "--quiet"});
    const auto add = [&](const char* option, const char* value) {
      if (std::find(more.begin(), more.end(), option) == more.end()) more.insert(more.end(), {option, value});
    };
    add("--steps", "6");
    add("--validation", "4");
    add("--rate", "0.01");
    return more;
  }
  Outcome Finetune(const std::vector<std::string>& more, const std::string& save = "tuned") const {
    return Call(Arguments(more, save));
  }
  // Every file below a directory, by its path there.
  std::map<std::string, std::string> Files(const std::string& name) const {
    std::map<std::string, std::string> files;
    for (const auto& entry : fs::recursive_directory_iterator(dir_ / name))
      if (entry.is_regular_file()) files[fs::relative(entry.path(), dir_ / name).string()] = ReadFile(entry.path());
    return files;
  }
};

// The hidden size of the test's model is 32: rates by size end at 0.01.
TEST_F(FinetuneCli, TheRateFollowsFromMethodAndSizeUnlessItIsGiven) {
  const auto rate = [&](std::vector<std::string> more) {
    more.insert(more.begin(),
                {"finetune", "--threads", "1", "--model", Path("out"), "--calib", Path("calibration.txt"), "--length",
                 "32", "--batch", "4", "--steps", "1", "--validation", "4", "--save", Path("tuned"), "--quiet"});
    const Outcome outcome = Call(more);
    fs::remove_all(dir_ / "tuned");
    const size_t at = outcome.out.find("learning rate ");
    EXPECT_EQ(outcome.status, 0) << outcome.err;
    return at == std::string::npos ? 0.0 : std::stod(outcome.out.substr(at + 14));
  };
  EXPECT_DOUBLE_EQ(rate({}), 0.01);
  EXPECT_DOUBLE_EQ(rate({"--method", "partial", "--layers", "last:1"}), 0.0094);
  EXPECT_DOUBLE_EQ(rate({"--method", "adapters"}), 0.0047);
  EXPECT_DOUBLE_EQ(rate({"--rate", "2e-5"}), 2e-5);
}

TEST_F(FinetuneCli, AValidationThatMakesNoSenseIsNamed) {
  for (const std::string validation : {"-1", "held.txt:0", "held.txt:many"})
    EXPECT_FAILS(Call({"finetune", "--model", Path("out"), "--calib", Path("calibration.txt"), "--save", Path("tuned"),
                       "--validation=" + validation}),
                 2, "--validation: \"" + validation + "\" is neither a number of sequences");
}

// In eight steps of 4 sequences of 128 tokens, the default rate lowers the held-out loss of the demo model, which was
// trained on such text before. The margin is 0.01 nats; a rate of 1e-4, too low by two orders of magnitude, gains
// 0.001, and one of 0.03 loses 0.12.
TEST_F(Cli, TheDefaultRateOfATrainingLearns) {
  const std::string demo = (TestDirectory().parent_path() / "models/demo").string();
  for (const std::string method : {"lora", "partial"}) {
    const Outcome outcome = Call({"finetune",
                                  "--model",
                                  demo,
                                  "--method",
                                  method,
                                  "--calib",
                                  demo + "/heldout.txt",
                                  "--divide",
                                  "--steps",
                                  "8",
                                  "--batch",
                                  "4",
                                  "--length",
                                  "128",
                                  "--validation",
                                  "24",
                                  "--text-tokens",
                                  "128",
                                  "--threads",
                                  "1",
                                  "--save",
                                  Path(method),
                                  "--json",
                                  Path("t.json"),
                                  "--quiet"});
    ASSERT_EQ(outcome.status, 0) << outcome.err;
    const Json validation = ReadJson("t.json")["trainings"][0]["validation"];
    EXPECT_LT(validation.back()["loss"].get<double>(), validation.front()["loss"].get<double>() - 0.01) << method;
  }
}

TEST_F(FinetuneCli, SavesWhatItMeasured) {
  for (const std::string method : {"lora", "partial", "adapters", "replacement"}) {
    std::vector<std::string> options = {"--method", method,         "--text",           Path("heldout.txt"),
                                        "--json",   Path("t.json"), "--validate-every", "3",
                                        "--report", Path("page")};
    if (method == "partial") options.insert(options.end(), {"--layers", "last:2"});
    const Outcome outcome = Finetune(options);
    ASSERT_EQ(outcome.status, 0) << method << ": " << outcome.err;
    for (const char* part : {"step 0 of 6: validation loss", "step 3 of 6", "step 6 of 6", "tokens/s", "saved: "})
      EXPECT_NE(outcome.out.find(part), std::string::npos) << part << " in\n" << outcome.out;
    const Json json = ReadJson("t.json"), training = json["trainings"][0];
    EXPECT_EQ(training["losses"].size(), size_t{6});
    EXPECT_EQ(training["validation"].size(), size_t{3});
    EXPECT_LT(training["validation"][2]["loss"], training["validation"][0]["loss"]) << method;
    EXPECT_TRUE(fs::exists(dir_ / "page/loss.svg"));
    EXPECT_FALSE(fs::exists(dir_ / "tuned.checkpoint"));
    // The saved model is the one that was measured.
    const Outcome ppl = Command("ppl", {"--text", Path("heldout.txt"), "--json", Path("p.json"), "--quiet"}, "tuned");
    ASSERT_EQ(ppl.status, 0) << ppl.err;
    EXPECT_NEAR(ReadJson("p.json")["perplexity"].get<double>() / training["perplexity"].get<double>(), 1, 1e-6)
        << method;
    EXPECT_EQ(Command("generate", {"--prompt", "the", "--max-tokens", "4"}, "tuned").status, 0);
  }
  EXPECT_EQ(ReadJson("tuned/shiftrt.json")["provenance"]["finetune"]["settings"]["method"], "replacement");
}

// The saved model is the one that was measured.
TEST_F(FinetuneCli, AModelSavedWithItsWeightsIsABaseLikeAnyOther) {
  ASSERT_EQ(Run({"--prune", "layers=1,2", "--lra", "4", "--save", Path("whole"), "--save-weights"}).status, 0);
  const Outcome tuned = Call({"finetune", "--threads",   "1",
                              "--model",  Path("whole"), "--method",
                              "adapters", "--calib",     Path("calibration.txt"),
                              "--length", "32",          "--batch",
                              "4",        "--steps",     "2",
                              "--rate",   "0.01",        "--validation",
                              "4",        "--save",      Path("tuned"),
                              "--quiet"});
  ASSERT_EQ(tuned.status, 0) << tuned.err;
  const Outcome inspected = Command("inspect", {}, "tuned");
  EXPECT_EQ(inspected.status, 0) << inspected.err;
  EXPECT_NE(inspected.out.find("layers removed: 1, 2"), std::string::npos) << inspected.out;
  const Outcome measured = Command("ppl", {"--text", Path("heldout.txt")}, "tuned");
  EXPECT_EQ(measured.status, 0) << measured.err;
}

TEST_F(FinetuneCli, ASmallMlpStandsAfterTheAdapters) {
  ASSERT_EQ(Run({"--prune", "layers=1,2", "--correction", "norm-lra", "--lra", "4", "--save", Path("out")}).status, 0);
  EXPECT_FAILS(Finetune({"--method", "replacement", "--replacement", "mlp:40", "--keep-correction"}), 2,
               "--replacement: mlp:40: expected a multiple of 32 from 32 to 32, the width of the model's MLPs");
  EXPECT_FAILS(Finetune({"--method", "replacement", "--replacement", "half"}), 2,
               "--replacement: \"half\" is none of block, attention, mlp and mlp:UNITS (mlp:128)");
  const Outcome outcome = Finetune({"--method", "replacement", "--replacement", "mlp:32", "--keep-correction", "--text",
                                    Path("heldout.txt"), "--json", Path("t.json")});
  ASSERT_EQ(outcome.status, 0) << outcome.err;
  const Json training = ReadJson("t.json")["trainings"][0];
  EXPECT_LT(training["validation"].back()["loss"], training["validation"].front()["loss"]);
  EXPECT_EQ(ReadJson("tuned/shiftrt.json")["provenance"]["finetune"]["settings"]["replacement"], "mlp:32");
  const Outcome ppl = Command("ppl", {"--text", Path("heldout.txt"), "--json", Path("p.json"), "--quiet"}, "tuned");
  ASSERT_EQ(ppl.status, 0) << ppl.err;
  EXPECT_NEAR(ReadJson("p.json")["perplexity"].get<double>() / training["perplexity"].get<double>(), 1, 1e-6);
}

// Without --rate each part has the rate of its own method (docs/training.md); with it all have the same.
TEST_F(FinetuneCli, PartsOfATrainingHaveTheirOwnRates) {
  const auto trained = [&](std::vector<std::string> more) {
    more.insert(more.begin(),
                {"finetune", "--threads", "1",           "--model", Path("out"),  "--calib",   Path("calibration.txt"),
                 "--length", "32",        "--batch",     "4",       "--steps",    "1",         "--validation",
                 "4",        "--save",    Path("tuned"), "--quiet", "--adapters", "trainable", "--head"});
    const Outcome outcome = Call(more);
    EXPECT_EQ(outcome.status, 0) << outcome.err;
    return std::pair(outcome.out, ReadJson("tuned/shiftrt.json")["provenance"]["finetune"]["settings"]);
  };
  const auto [out, settings] = trained({});
  EXPECT_NE(out.find("learning rate 0.01, of the adapters 0.0047, of the head 0.0094\n"), std::string::npos) << out;
  EXPECT_EQ(settings["rate"], "0.01");
  EXPECT_EQ(settings["rate.adapters"], "0.0046875");
  EXPECT_EQ(settings["rate.head"], "0.009375");
  const auto [same, all] = trained({"--rate", "0.002"});
  EXPECT_NE(same.find("learning rate 0.002\n"), std::string::npos) << same;
  EXPECT_FALSE(all.contains("rate.adapters") || all.contains("rate.head")) << all;
}

TEST_F(FinetuneCli, LoraIsSavedAsFactorsOrMerged) {
  ASSERT_EQ(
      Finetune({"--rank", "2", "--targets", "q,down", "--json", Path("a.json"), "--text", Path("heldout.txt")}).status,
      0);
  EXPECT_TRUE(fs::exists(dir_ / "tuned/lora/adapter_model.safetensors"));
  EXPECT_EQ(ReadJson("tuned/lora/adapter_config.json")["r"], 2);
  ASSERT_EQ(Finetune({"--rank", "2", "--targets", "q,down", "--merge-lora", "--json", Path("b.json"), "--text",
                      Path("heldout.txt")},
                     "merged")
                .status,
            0);
  EXPECT_FALSE(fs::exists(dir_ / "merged/lora"));
  EXPECT_EQ(ReadJson("a.json")["trainings"][0]["perplexity"], ReadJson("b.json")["trainings"][0]["perplexity"]);
  ASSERT_EQ(Command("ppl", {"--text", Path("heldout.txt"), "--json", Path("p.json"), "--quiet"}, "merged").status, 0);
  EXPECT_NEAR(
      ReadJson("p.json")["perplexity"].get<double>() / ReadJson("a.json")["trainings"][0]["perplexity"].get<double>(),
      1, 1e-6);
}

// A model in bfloat16 stays one. A change below the steps of bfloat16 is lost, and the command says so.
TEST_F(FinetuneCli, TrainedBlocksHaveTheTypeOfTheWeights) {
  const auto train = [&](const char* rate, const std::string& dtype, const std::string& warning) {
    const Outcome outcome = Finetune({"--method", "partial", "--layers", "all", "--head", "--rate", rate, "--dtype",
                                      dtype, "--json", Path("t.json"), "--text", Path("heldout.txt")},
                                     dtype);
    ASSERT_EQ(outcome.status, 0) << outcome.err;
    EXPECT_EQ(outcome.err.find("rounding to the type of the weights errs by") != std::string::npos, !warning.empty())
        << outcome.err;
    EXPECT_NE(outcome.err.find(warning), std::string::npos) << outcome.err;
    const SafetensorsFile own(dir_ / dtype / "own.safetensors");
    EXPECT_FALSE(own.tensors().empty());
    for (const auto& [name, tensor] : own.tensors())
      EXPECT_EQ(tensor.dtype, dtype == "bfloat16" ? DType::kBFloat16 : DType::kFloat32) << name;
    ASSERT_EQ(Command("ppl", {"--text", Path("heldout.txt"), "--json", Path("p.json"), "--dtype", dtype}, dtype).status,
              0);
    const Json training = ReadJson("t.json")["trainings"][0];
    EXPECT_NEAR(ReadJson("p.json")["perplexity"].get<double>() / training["perplexity"].get<double>(), 1, 1e-6);
    EXPECT_EQ(training["rounding"].get<double>() > 0, dtype == "bfloat16");
    fs::remove_all(dir_ / dtype);
  };
  train("0.01", "bfloat16", "");
  train("0.000001", "bfloat16", "the same command with --dtype float32 rounds nothing");
  train("0.000001", "float32", "");

  // Factors of LoRA are saved unrounded, but the head with them is not.
  const auto warning = [&](const std::vector<std::string>& options) {
    std::vector<std::string> all = {"--method", "lora", "--rate", "0.000001", "--dtype", "bfloat16"};
    all.insert(all.end(), options.begin(), options.end());
    return Finetune(all, "factors").err;
  };
  EXPECT_NE(warning({}).find("it is saved unrounded"), std::string::npos);
  EXPECT_NE(warning({"--head"}).find("the same command with --dtype float32 rounds nothing"), std::string::npos);
}

// Stopped by Ctrl-C or killed, the same command continues, and writes the same files.
TEST_F(FinetuneCli, StoppedItContinuesToTheSameBits) {
  const std::vector<std::string> options = {"--steps",          "24", "--checkpoint-minutes", "0",
                                            "--validate-every", "5",  "--adapters",           "trainable",
                                            "--dropout",        "0.1"};
  ASSERT_EQ(Finetune(options, "whole").status, 0);
  for (const int signal : {SIGINT, SIGHUP, SIGKILL}) {
    fs::remove_all(dir_ / "tuned");
    int status = 0;
    for (int attempt = 0; status == 0; ++attempt) {  // until the program is caught in its training
      ASSERT_LT(attempt, 20);
      fs::remove_all(dir_ / "tuned");
      const pid_t child = Start(Arguments(options, "tuned"), dir_ / "stdout", dir_ / "stderr");
      while (!fs::exists(dir_ / "tuned.checkpoint") && !Ended(child)) ::usleep(200);
      ::kill(child, signal);
      status = Wait(child);
    }
    EXPECT_EQ(status, signal == SIGKILL ? 128 + SIGKILL : 130) << ReadFile(dir_ / "stderr");
    EXPECT_FALSE(fs::exists(dir_ / "tuned/shiftrt.json"));
    ASSERT_TRUE(fs::exists(dir_ / "tuned.checkpoint"));
    if (signal != SIGKILL) {
      EXPECT_NE(ReadFile(dir_ / "stderr").find("the same command continues"), std::string::npos);
    }
    // With another setting it is refused.
    std::vector<std::string> other = options;
    other[1] = "23";
    EXPECT_FAILS(Finetune(other), 1, "its steps is \"24\"");
    const Outcome resumed = Finetune(options);
    ASSERT_EQ(resumed.status, 0) << resumed.err;
    EXPECT_NE(resumed.err.find("continuing from"), std::string::npos) << resumed.err;
    EXPECT_TRUE(Files("tuned") == Files("whole"));
    EXPECT_FALSE(fs::exists(dir_ / "tuned.checkpoint"));
  }
}

// Settings that do not go together are refused before the perplexity and before another training.
TEST_F(FinetuneCli, IsCheckedBeforeItsFirstWork) {
  EXPECT_FAILS(Finetune({"--steps", "100000", "--text", Path("heldout.txt")}), 2, "epochs take it");
  EXPECT_FAILS(Finetune({"--method", "partial", "--layers", "99", "--text", Path("heldout.txt")}), 2, "--layers");
  const Outcome outcome =
      Call({"finetune", "--threads", "1", "--model", Path("model"), "--calib", Path("calibration.txt"), "--length",
            "32", "--steps", "1", "--adapters", "frozen,trainable", "--save", Path("both"), "--quiet"});
  EXPECT_FAILS(outcome, 2, "the model has no adapters to train");
  EXPECT_FALSE(fs::exists(dir_ / "both"));
  EXPECT_FAILS(Finetune({"--adapters", "frozen,frozen"}), 2, "given twice");
  EXPECT_FAILS(
      Call({"finetune", "--model", Path("model"), "--calib", Path("calibration.txt:16x64"), "--save", Path("both")}), 2,
      "--samples and --length");
}

// A disk may have room for the result and none for a checkpoint, which is several times as large.
TEST_F(FinetuneCli, WithoutRoomForACheckpointItGoesOn) {
  const std::vector<std::string> options = {"--method", "partial", "--layers", "all", "--checkpoint-minutes", "0"};
  ASSERT_EQ(Finetune(options, "whole").status, 0);
  const uintmax_t result = fs::file_size(dir_ / "whole/own.safetensors");
  const FileSizeLimit limit(2 * result);
  const Outcome outcome = Finetune(options);
  EXPECT_EQ(outcome.status, 0) << outcome.err;
  EXPECT_NE(outcome.err.find("goes on without a checkpoint"), std::string::npos) << outcome.err;
  EXPECT_TRUE(Files("tuned") == Files("whole"));
}

// The second of two trainings cannot start; the first is not repeated when it can.
TEST_F(FinetuneCli, AFinishedTrainingIsKeptUntilTheCommandEnds) {
  const std::vector<std::string> options = {"--adapters", "frozen,trainable"};
  ASSERT_EQ(Finetune(options, "whole").status, 0);
  std::ofstream(dir_ / "tuned.checkpoint-trainable") << "not a checkpoint";
  EXPECT_FAILS(Finetune(options), 1, "tuned.checkpoint-trainable");
  fs::remove(dir_ / "tuned.checkpoint-trainable");
  const Outcome resumed = Finetune(options);
  ASSERT_EQ(resumed.status, 0) << resumed.err;
  EXPECT_NE(resumed.err.find("tuned.checkpoint-frozen"), std::string::npos) << resumed.err;
  EXPECT_TRUE(Files("tuned") == Files("whole"));
  for (const char* mode : {"frozen", "trainable"})
    EXPECT_FALSE(fs::exists(dir_ / fmt::format("tuned.checkpoint-{}", mode))) << mode;
}

TEST_F(FinetuneCli, PresetsSetWhatTheCommandLineDoesNot) {
  const Outcome outcome = Finetune({"--preset", "paper-frozen-trainable", "--samples", "30", "--steps", "2"});
  ASSERT_EQ(outcome.status, 0) << outcome.err;
  for (const char* mode : {"frozen", "trainable"}) {
    EXPECT_NE(outcome.out.find(std::string("lora, adapters ") + mode), std::string::npos) << outcome.out;
    const Json settings =
        ReadJson(std::string("tuned/") + mode + "/shiftrt.json")["provenance"]["finetune"]["settings"];
    EXPECT_EQ(settings["adapters"], mode);
    EXPECT_EQ(settings["batch"], "4");
    EXPECT_EQ(settings["lora.rank"], "8");
  }
  EXPECT_EQ(outcome.out.find("paper: "), std::string::npos);

  // A directory named as one of the paper's models.
  WriteModel("Qwen2-1.5B");
  const Outcome paper =
      Call({"finetune", "--threads",     "1",         "--model", Path("Qwen2-1.5B"), "--calib", Path("calibration.txt"),
            "--preset", "paper-partial", "--samples", "30",      "--steps",          "1",       "--length",
            "32",       "--validation",  "4",         "--save",  Path("partial"),    "--quiet"});
  ASSERT_EQ(paper.status, 0) << paper.err;
  for (const char* number : {"46.97", "46.39"}) EXPECT_NE(paper.out.find(number), std::string::npos) << paper.out;
}

// The help shows the option of each row of the table of settings, in a group.
TEST_F(Cli, EverySettingOfATrainingIsInTheHelp) {
  const std::string help = Call({"finetune", "--help-all"}).out;
  int shown = 0;
  for (const FinetuneField& field : FinetuneFields()) {
    if (field.help.empty()) continue;
    const size_t at = help.find(fmt::format("\n  {}", field.flag()));
    ASSERT_NE(at, std::string::npos) << field.flag();
    EXPECT_NE(help.find(field.help.substr(0, field.help.find('\n')), at), std::string::npos) << field.flag();
    ++shown;
  }
  EXPECT_GT(shown, 25);
  EXPECT_EQ(help.find("Other options"), std::string::npos) << help;
}

// A recovery that is not saved continues from a file in the cache, which belongs to its text, too.
TEST_F(Cli, AnInterruptedRecoveryIsNotThatOfAnotherText) {
  WriteText(dir_ / "other.txt", Words(2500));
  const auto run = [&](const char* text) {
    return std::vector<std::string>{
        "run",        "--model",           Path("model"), "--threads", "1",          "--quiet",      "--prune",
        "layers=1,2", "--correction",      "none",        "--recover", "tokens=20k", "--max-tokens", "12",
        "--text",     Path("heldout.txt"), "--calib",     Path(text)};
  };
  const auto kept = [&] {
    for (const auto& entry : fs::recursive_directory_iterator(dir_ / "cache"))
      if (entry.path().extension() == ".checkpoint") return true;
    return false;
  };
  fs::create_directories(dir_ / "cache");
  for (int attempt = 0; !kept(); ++attempt) {  // until the program is caught in its training
    ASSERT_LT(attempt, 20);
    WriteText(dir_ / "stdout", "");
    const pid_t child = Start(run("calibration.txt"), dir_ / "stdout", dir_ / "stderr");
    while (ReadFile(dir_ / "stdout").find("planned: ") == std::string::npos && !Ended(child)) ::usleep(200);
    ::kill(child, SIGINT);
    Wait(child);
  }
  const Outcome other = Call(run("other.txt"));
  EXPECT_EQ(other.status, 0) << other.err;
  const Outcome same = Call(run("calibration.txt"));
  EXPECT_EQ(same.status, 0) << same.err;
  EXPECT_NE(same.err.find("continuing from"), std::string::npos) << same.err;
}

// The recovery of a run is the preset on what the run saved without it, and continues where it is killed.
TEST_F(FinetuneCli, ARunRecoversAsThePresetDoes) {
  const std::vector<std::string> recipe = {"--prune", "layers=1,2", "--correction", "lra",
                                           "--lra",   "4",          "--threads",    "1"};
  const auto run = [&](const std::string& save, const std::string& budget) {
    std::vector<std::string> arguments = {"run",
                                          "--model",
                                          Path("model"),
                                          "--calib",
                                          Path("calibration.txt:16x64"),
                                          "--text",
                                          Path("heldout.txt"),
                                          "--max-tokens",
                                          "12",
                                          "--quiet",
                                          "--recover",
                                          budget,
                                          "--save",
                                          Path(save),
                                          "--json",
                                          Path("r.json")};
    arguments.insert(arguments.end(), recipe.begin(), recipe.end());
    return arguments;
  };
  const Outcome whole = Call(run("whole", "tokens=20k"));
  ASSERT_EQ(whole.status, 0) << whole.err;
  for (const char* part : {"validation loss", "recovered with", "pruned + LRA 4, recovered"})
    EXPECT_NE(whole.out.find(part), std::string::npos) << part << " in\n" << whole.out;
  const Json json = ReadJson("r.json"), validation = json["recovery"]["validation"];
  EXPECT_GE(json["recovery"]["tokens"], 20'000);
  EXPECT_LT(json["recovery"]["tokens"], 20'000 + 4 * 128);
  EXPECT_EQ(validation[0]["step"], 0);
  const auto lowest = std::min_element(validation.begin(), validation.end(),
                                       [](const Json& a, const Json& b) { return a["loss"] < b["loss"]; });
  EXPECT_EQ((*lowest)["step"], json["recovery"]["best_step"]);
  EXPECT_GT((*lowest)["step"], 0);
  EXPECT_LT((*lowest)["loss"], validation[0]["loss"]);
  ASSERT_EQ(json["variants"].size(), size_t{4});
  EXPECT_EQ(json["variants"][3]["name"], "recovered");
  EXPECT_FALSE(fs::exists(dir_ / "whole.checkpoint"));
  EXPECT_EQ(ReadJson("whole/shiftrt.json")["provenance"]["state"], "evaluated");

  // The saved model is the one that was compared.
  ASSERT_EQ(Command("ppl", {"--text", Path("heldout.txt"), "--json", Path("p.json"), "--quiet"}, "whole").status, 0);
  EXPECT_NEAR(ReadJson("p.json")["perplexity"].get<double>() / json["variants"][3]["perplexity"].get<double>(), 1,
              1e-6);

  const Outcome preset = Call({"finetune", "--threads", "1", "--model", Path("out"), "--preset", "recover", "--budget",
                               "tokens=20k", "--calib", Path("calibration.txt"), "--save", Path("preset"), "--quiet"});
  ASSERT_EQ(preset.status, 0) << preset.err;
  EXPECT_NE(preset.out.find(" steps of 1 sequence, about 20"), std::string::npos) << preset.out;
  const auto same = [&](const std::string& name) {
    for (const auto& [file, content] : Files("whole"))
      if (file.ends_with(".safetensors")) {
        EXPECT_TRUE(ReadFile(dir_ / name / file) == content) << name << "/" << file;
      }
  };
  same("preset");

  int status = 0;
  for (int attempt = 0; status == 0; ++attempt) {  // until the program is caught in its training
    ASSERT_LT(attempt, 20);
    fs::remove_all(dir_ / "killed");
    const pid_t child = Start(run("killed", "tokens=20k"), dir_ / "stdout", dir_ / "stderr");
    while (ReadFile(dir_ / "stdout").find("validation loss") == std::string::npos && !Ended(child)) ::usleep(200);
    ::kill(child, SIGINT);
    status = Wait(child);
  }
  EXPECT_EQ(status, 130) << ReadFile(dir_ / "stderr");
  const bool caught = fs::exists(dir_ / "killed.checkpoint");
  const Outcome resumed = Call(run("killed", "tokens=20k"));
  ASSERT_EQ(resumed.status, 0) << resumed.err;
  if (caught) {
    EXPECT_NE(resumed.err.find("continuing from"), std::string::npos) << resumed.err;
  }
  same("killed");

  const Outcome timed = Call(run("timed", "1s"));
  ASSERT_EQ(timed.status, 0) << timed.err;
  EXPECT_NE(timed.out.find("of about"), std::string::npos) << timed.out;
  EXPECT_NE(timed.out.find("\nplanned: about "), std::string::npos) << timed.out;
  EXPECT_NE(timed.out.find(" validations of "), std::string::npos) << timed.out;
  EXPECT_FAILS(Call(run("x", "soon")), 2, "--recover: \"soon\"");
  for (const bool named : {false, true}) {  // held-out samples of a text that is learnt from
    std::vector<std::string> options = {"--calib", Path("calibration.txt:16x64"), "--lra", "4", "--recover", "1s"};
    if (named) options.insert(options.end(), {"--recover-text", Path("calibration.txt")});
    EXPECT_FAILS(Command("run", options), 2, "so its held-out samples are no test");
  }
  EXPECT_FAILS(Call(run("x", "tokens=0")), 2, "--recover: \"tokens=0\"");

  const auto with = [&](const std::string& save, const std::string& option, const std::string& value) {
    std::vector<std::string> arguments = run(save, "tokens=5k");
    arguments.insert(arguments.end(), {option, value});
    return arguments;
  };
  const Outcome taught = Call(with("taught", "--recover-loss", "both"));
  ASSERT_EQ(taught.status, 0) << taught.err;
  EXPECT_NE(taught.out.find("held-out KL"), std::string::npos) << taught.out;
  EXPECT_EQ(ReadJson("taught/shiftrt.json")["provenance"]["finetune"]["settings"]["loss"], "both");
  EXPECT_EQ(ReadJson("whole/shiftrt.json")["provenance"]["finetune"]["settings"]["loss"], "ce");
  EXPECT_FAILS(Call(with("x", "--recover-loss", "mse")), 2, "--recover-loss: \"mse\"");
  EXPECT_FAILS(Command("run", {"--recover-loss", "ce"}), 2, "--recover-loss ce: it goes with --recover");

  // A rate that changes no bit of a weight stands for one that does not help.
  const Outcome idle = Call(with("idle", "--recover-rate", "1e-30"));
  ASSERT_EQ(idle.status, 0) << idle.err;
  EXPECT_NE(idle.out.find("the state after step 0 is kept"), std::string::npos) << idle.out;
  EXPECT_NE(idle.err.find("give a lower rate (--recover-rate 2e-31)"), std::string::npos) << idle.err;
  EXPECT_FAILS(Call(with("x", "--recover-rate", "0")), 2, "--recover-rate");
  EXPECT_FAILS(Call(with("x", "--recover-rate", "inf")), 2, "--recover-rate");
  EXPECT_FAILS(Command("run", {"--recover-rate", "1e-5"}), 2, "--recover-rate 1e-5: it goes with --recover");
}

// The checkpoint lies next to the directory that is saved, whose parent may not be there yet.
TEST_F(FinetuneCli, TheDirectoryOfTheCheckpointIsMade) {
  const Outcome made = Finetune({"--steps", "2"}, "new/below/tuned");
  ASSERT_EQ(made.status, 0) << made.err;
  EXPECT_TRUE(fs::exists(dir_ / "new/below/tuned/shiftrt.json"));
}

TEST_F(FinetuneCli, TheModelItselfIsNotSavedOver) {
  const Outcome refused =
      Call({"finetune", "--model", Path("model"), "--calib", Path("calibration.txt"), "--save", Path("model")});
  EXPECT_FAILS(refused, 2, "this is the model itself");
  EXPECT_EQ(refused.out, "");
  const std::string plan = ReadFile(dir_ / "out/shiftrt.json");  // saved without its weights
  EXPECT_FAILS(Finetune({"--steps", "1"}, "out"), 2, "this is the model itself");
  EXPECT_EQ(ReadFile(dir_ / "out/shiftrt.json"), plan);
}

// The type that weights are converted to decides what is learnt, and the fingerprint does not tell it.
TEST_F(FinetuneCli, ACheckpointBelongsToATypeOfWeights) {
  const std::vector<std::string> options = {"--adapters", "frozen,trainable", "--dtype", "bfloat16"};
  std::ofstream(dir_ / "tuned.checkpoint-trainable") << "not a checkpoint";  // stops the command after the first one
  EXPECT_FAILS(Finetune(options), 1, "tuned.checkpoint-trainable");
  EXPECT_FAILS(Finetune({"--adapters", "frozen,trainable"}), 1, "dtype");
}

TEST_F(FinetuneCli, BadInputIsRefusedByItsOption) {
  const std::vector<std::pair<std::vector<std::string>, std::string>> cases = {
      {{"--rank", "33"}, "--rank: 33 is above the width of"},
      {{"--targets", "q,x"}, "--targets: \"x\""},
      {{"--method", "full"}, "--method: \"full\""},
      {{"--method", "partial", "--layers", "1"}, "--layers: the model runs no block of layer 1"},
      {{"--method", "partial", "--rank", "4"}, "--rank: does not go with method partial"},
      {{"--loss", "mse"}, "--loss: \"mse\""},
      {{"--schedule", "step"}, "--schedule: \"step\""},
      {{"--warmup", "6"}, "--warmup: 6 steps"},
      {{"--steps", "100000"}, "--steps: 100000: the text has"},
      {{"--samples", "100000"}, "--samples: "},
      {{"--preset", "paper-x"}, "--preset: unknown preset"},
      {{"--validation", "-3"}, "--validation: \"-3\""},
      {{"--keep-best", "--validation", "0"}, "--keep-best: "},
      {{"--products", "bf16"}, "--products: bf16 not in"},
  };
  for (const auto& [options, message] : cases) EXPECT_FAILS(Finetune(options), 2, message);
  ::setenv("SHIFTRT_ISA", "portable", 1);
  EXPECT_FAILS(
      Finetune({"--products", "bfloat16"}), 2,
      "--products: products of bfloat16 numbers need AVX512-BF16 or AMX, and the instruction set here is portable");
  ::unsetenv("SHIFTRT_ISA");
  WriteText(dir_ / "short.txt", "the");
  EXPECT_FAILS(Call({"finetune", "--model", Path("out"), "--calib", Path("short.txt"), "--save", Path("t")}), 1,
               "short.txt");
  // A rate with which the loss leaves all bounds.
  EXPECT_FAILS(Finetune({"--method", "partial", "--layers", "all", "--head", "--rate", "30", "--steps", "20", "--clip",
                         "0", "--warmup", "0"}),
               1, "Lower the learning rate");
  EXPECT_FALSE(fs::exists(dir_ / "tuned/shiftrt.json"));
}

}  // namespace
}  // namespace shiftrt
