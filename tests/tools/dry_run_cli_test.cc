// SPDX-License-Identifier: Apache-2.0
// `run --dry-run` from outside: plans of shapes that nobody has weights of, and a plan against what a run takes.
#include "tests/tools/cli.h"

namespace shiftrt {
namespace {

class DryRunCli : public Cli {
 protected:
  std::string Config(const Json& changes) {
    Json config = Json::parse(ReadFile(dir_ / "shape.json"));
    config.update(changes);
    config["torch_dtype"] = "bfloat16";
    WriteText(dir_ / "config.json", config.dump());
    return Path("config.json");
  }
  Outcome Plan(std::vector<std::string> more) const {
    more.insert(more.begin(), {"run", "--dry-run", "--json", Path("plan.json")});
    return Call(more);
  }
};

TEST_F(DryRunCli, PlansAModelThatIsNotHere) {
  const std::string config = Config({{"num_hidden_layers", 126},
                                     {"hidden_size", 16384},
                                     {"intermediate_size", 53248},
                                     {"num_attention_heads", 128},
                                     {"num_key_value_heads", 8},
                                     {"vocab_size", 128256},
                                     {"max_position_embeddings", 131072}});
  const Outcome outcome = Plan({"--config", config, "--split", "64"});
  ASSERT_EQ(outcome.status, 0) << outcome.err;
  EXPECT_NE(outcome.out.find("405853388800 parameters"), std::string::npos) << outcome.out;
  EXPECT_NE(outcome.out.find("would remove 31 of 126 layers"), std::string::npos) << outcome.out;
  const Json plan = ReadJson("plan.json");
  EXPECT_EQ(plan["model"]["parameters"], 405'853'388'800);
  EXPECT_EQ(plan["job"]["sites"], 31);
  EXPECT_TRUE(plan["job"]["removed"].is_null());
  EXPECT_EQ(plan["memory"]["weights"], 2 * 2 * 3'187'703'808);
  EXPECT_NE(outcome.out.find("memory of the process that needs the most: "), std::string::npos) << outcome.out;
  EXPECT_NE(outcome.out.find("those that bi chooses"), std::string::npos) << outcome.out;
  EXPECT_FALSE(plan.contains("seconds")) << "nothing measures several processes";
}

// Parameters, what is removed, tokens: the same as of the run itself.
TEST_F(DryRunCli, SaysWhatTheRunThenDoes) {
  // The speed of one thread is measured. On a busy machine, every short run on two would wait for the second one.
  const std::vector<std::string> options = {"--threads",     "1",
                                            "--model",       Path("model"),
                                            "--prune",       "reverse*:2",
                                            "--lra",         "4",
                                            "--calib",       Path("calibration.txt:16x64"),
                                            "--protocol",    "seq128",
                                            "--text-tokens", "512"};
  const Outcome outcome = Plan(options);
  ASSERT_EQ(outcome.status, 0) << outcome.err;
  const Json plan = ReadJson("plan.json");
  std::vector<std::string> run = {"run",    "--no-gate",         "--quiet", "--max-tokens",  "12",
                                  "--text", Path("heldout.txt"), "--json",  Path("run.json")};
  run.insert(run.end(), options.begin(), options.end());
  ASSERT_EQ(Call(run).status, 0);
  const Json done = ReadJson("run.json");
  EXPECT_EQ(plan["model"]["parameters"], done["variants"][0]["parameters"]);
  EXPECT_EQ(plan["model"]["bytes_per_token"], done["variants"][0]["bytes"]);
  EXPECT_EQ(plan["job"]["variants"], done["variants"].size());
  EXPECT_EQ(plan["job"]["adapter_parameters"].get<int64_t>() + done["variants"][1]["parameters"].get<int64_t>(),
            done["variants"][2]["parameters"]);
  EXPECT_EQ(plan["job"]["removed"], Json({"1", "2"}));
  EXPECT_EQ(plan["job"]["fit_tokens"], 14 * 64);
  EXPECT_NE(outcome.out.find("measured just now"), std::string::npos) << outcome.out;
  for (const char* rate : {"products", "float64", "bandwidth"})
    EXPECT_GT(plan["rates"][rate].get<double>(), 1e7) << rate;
  double seconds = 0;
  for (const Json& step : plan["steps"]) {
    const double work = step["seconds"].get<double>() * plan["rates"]["products"].get<double>();
    if (step["float64_flops"] == 0.0 && step["step"] != "decode") {
      EXPECT_NEAR(step["flops"].get<double>(), work, 1e-9 * work) << step["step"];
    }
    seconds += step["seconds"].get<double>();
  }
  EXPECT_GT(seconds, 0);
  EXPECT_NEAR(plan["seconds"].get<double>(), seconds, 1e-9 * seconds);
}

// No total leaves out a large part without a word.
TEST_F(DryRunCli, TheTotalHasRefitsHealingAndRecoveryOrSaysWhatItLacks) {
  const std::vector<std::string> stock = {"--model", Path("model"), "--recipe",  "stock",
                                          "--calib", "c4:64x64",    "--recover", "5min"};
  const Outcome whole = Plan(stock);
  ASSERT_EQ(whole.status, 0) << whole.err;
  EXPECT_EQ(whole.out.find("total without"), std::string::npos) << whole.out;
  const Json plan = ReadJson("plan.json");
  EXPECT_EQ(plan["steps"][4]["step"], "recover");
  EXPECT_EQ(plan["steps"][4]["seconds"], 300);
  EXPECT_GT(plan["steps"][2]["seconds"].get<double>(), 0) << "solve";
  EXPECT_GT(plan["seconds"].get<double>(), 300);
  std::vector<std::string> more = stock;
  more.insert(more.end(), {"--eval", "piqa"});
  EXPECT_NE(Plan(more).out.find("total without --eval"), std::string::npos);
}

// The run would take a minute, and the test ends it once it has said so.
TEST_F(DryRunCli, ARunSaysAtItsStartHowLongItTakes) {
  const pid_t child =
      Start({"run",     "--threads",         "1",         "--model", Path("model"), "--quiet",
             "--prune", "layers=1",          "--lra",     "4",       "--calib",     Path("calibration.txt:16x64"),
             "--text",  Path("heldout.txt"), "--recover", "1min",    "--eval",      "piqa",
             "--data",  EvalData(),          "--limit",   "2"},
            dir_ / "out", dir_ / "err");
  std::string out;
  for (int i = 0; i < 600 && out.find("  without --eval\n") == std::string::npos && !Ended(child); ++i) {
    ::usleep(100'000);
    out = ReadFile(dir_ / "out");
  }
  ::kill(child, SIGKILL);
  Wait(child);
  EXPECT_NE(out.find("\nexpected to take about 6"), std::string::npos) << out << ReadFile(dir_ / "err");
  EXPECT_NE(out.find("(measured just now): recover 60 s"), std::string::npos) << out;
  EXPECT_NE(out.find("\n  without --eval\n"), std::string::npos) << out;
}

TEST_F(DryRunCli, SaysWhatNeedsTheMemoryOfAJobThatDoesNotFit) {
  const auto plan = [&](const std::string& samples) {
    return Plan({"--model", Path("model"), "--lra", "4", "--prune", "layers=1", "--calib", "c4.jsonl:" + samples});
  };
  const Outcome large = plan("1000000000x128");  // streams of 33 TB
  ASSERT_EQ(large.status, 0) << large.err;
  EXPECT_NE(large.out.find("\nit does not fit; the largest part is \"streams\": try fewer samples"), std::string::npos)
      << large.out;
  EXPECT_EQ(ReadJson("plan.json")["fits"], false);
  EXPECT_EQ(plan("64x128").out.find("it does not fit"), std::string::npos);
  EXPECT_EQ(ReadJson("plan.json")["fits"], true);
  const std::string config = Config({{"num_hidden_layers", 1260},
                                     {"hidden_size", 16384},
                                     {"intermediate_size", 53248},
                                     {"num_attention_heads", 128},
                                     {"num_key_value_heads", 8},
                                     {"vocab_size", 128256}});
  EXPECT_NE(Plan({"--config", config}).out.find("the largest part is \"weights\": try --split"), std::string::npos);
  EXPECT_NE(Plan({"--config", config, "--split", "2"}).out.find("\"weights\": try a larger --split"),
            std::string::npos);
}

TEST_F(DryRunCli, NeedsNoWeights) {
  ASSERT_EQ(Plan({"--model", Path("model"), "--lra", "4"}).status, 0);
  EXPECT_EQ(ReadJson("plan.json")["model"]["bytes_in_files"]["float32"],
            4 * ReadJson("plan.json")["model"]["parameters"].get<int64_t>());
  fs::remove(dir_ / "model/model.safetensors");
  const Outcome alone = Plan({"--model", Path("model"), "--lra", "4"});
  EXPECT_EQ(alone.status, 0) << alone.err;
  EXPECT_NE(alone.out.find("without weights"), std::string::npos) << alone.out;
}

TEST_F(DryRunCli, RefusesWhatRunRefuses) {
  EXPECT_FAILS(Plan({"--model", Path("model"), "--lra", "4", "--prune", "bi:4"}), 2, "one must stay");
  EXPECT_FAILS(Plan({"--model", Path("model"), "--lra", "33"}), 2, "--lra: 33: expected 1 to 32");
  EXPECT_FAILS(Plan({"--model", Path("model"), "--merge", "full", "--correction", "refit"}), 2, "--merge");
  EXPECT_FAILS(Plan({"--model", Path("model"), "--lra", "4", "--split", "6"}), 2, "6 processes");
  EXPECT_FAILS(Plan({"--model", Path("model"), "--config", Path("shape.json")}), 2, "--model");
  EXPECT_FAILS(Plan({"--model", Path("model"), "--correction", "refit", "--split", "2"}), 2,
               "--correction: the correction refit does not go with a split model");
  EXPECT_FAILS(Plan({"--model", Path("nowhere")}), 1, "nowhere");
  EXPECT_FAILS(Call({"run", "--config", Path("shape.json")}), 2, "--dry-run");
  EXPECT_EQ(Call({"run", "--model", Path("model"), "--quiet", "--calib", Path("calibration.txt:16x64"), "--text",
                  Path("heldout.txt"), "--lra", "4", "--prune", "bi:1", "--save", Path("saved")})
                .status,
            0);
  EXPECT_FAILS(Plan({"--model", Path("saved"), "--lra", "4"}), 2, "already pruned");
}

}  // namespace
}  // namespace shiftrt
