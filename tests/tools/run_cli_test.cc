// SPDX-License-Identifier: Apache-2.0
#include <chrono>
#include <csignal>

#include "runtime/context.h"
#include "tests/file_size_limit.h"
#include "tests/tools/cli.h"

namespace shiftrt {
namespace {

TEST_F(Cli, RunWritesTheContractsJsonAndPrintsTheTables) {
  const Outcome outcome = Run({"--prune", "bi:0.5", "--lra", "8", "--merge", "lowrank", "--json", Path("result.json")});
  ASSERT_EQ(outcome.status, 0) << outcome.err;
  EXPECT_EQ(outcome.err, "");
  for (const char* word : {"removed", "lambda", "R2", "original", "pruned", "merged"})
    EXPECT_NE(outcome.out.find(word), std::string::npos) << word;

  const Json json = ReadJson("result.json");
  EXPECT_TRUE(json.contains("model"));
  EXPECT_EQ(json["selection"]["criterion"], "bi");
  EXPECT_EQ(json["selection"]["scores"].size(), size_t{kLayers});
  EXPECT_EQ(json["selection"]["removed"].size(), size_t{2});
  EXPECT_TRUE(json["calibration"]["source"].is_string());
  EXPECT_EQ(json["calibration"]["tokens"], 14 * 64);  // every eighth of the 16 samples is held out
  ASSERT_EQ(json["sites"].size(), size_t{2});
  for (const Json& site : json["sites"]) {
    EXPECT_EQ(site["layers"].size(), size_t{1});
    EXPECT_EQ(site["rank"], 8);
    EXPECT_GT(site["lambda"].get<double>(), 0);
    EXPECT_LE(site["r2_fit"].get<double>(), 1);
    EXPECT_TRUE(site["r2_heldout"].is_number());
  }
  ASSERT_EQ(json["variants"].size(), size_t{4});
  for (const Json& variant : json["variants"]) {
    EXPECT_GT(variant["perplexity"].get<double>(), 1);
    EXPECT_GT(variant["tokens_per_second"].get<double>(), 0);
    EXPECT_GT(variant["bytes"].get<int64_t>(), 0);
  }
  const auto parameters = [&](int v) { return json["variants"][v]["parameters"].get<int64_t>(); };
  EXPECT_EQ(parameters(2) - parameters(1), 2 * (2 * 8 * kHidden + kHidden));
  // A block: q, k, v, o; gate, up, down; two norms.
  EXPECT_EQ(parameters(0) - parameters(1),
            2 * (2 * kHidden * kHidden + 2 * kHidden * kHidden / 2 + 3 * 48 * kHidden + 2 * kHidden));
  for (const char* phase : {"select", "calibrate", "solve", "factorize", "evaluate"})
    EXPECT_TRUE(json["seconds"][phase].is_number()) << phase;
}

// The report measures for itself, and loading takes its time too: all of it is in the sum.
TEST_F(Cli, SecondsAddUpToTheWallClock) {
  const auto start = std::chrono::steady_clock::now();
  const Outcome outcome =
      Run({"--prune", "bi:0.25", "--report", Path("page"), "--save", Path("saved"), "--json", Path("r.json")});
  const double wall = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  ASSERT_EQ(outcome.status, 0) << outcome.err;
  EXPECT_GT(outcome.out.find("\nseconds:"), outcome.out.find("report: ")) << outcome.out;
  const Json seconds = ReadJson("r.json")["seconds"];
  double sum = 0;
  for (const char* phase : {"open", "fit", "save", "evaluate", "fidelity", "report", "export"})
    sum += seconds[phase].get<double>();
  EXPECT_NEAR(seconds["total"].get<double>(), sum, 1e-9);
  EXPECT_LE(seconds["select"].get<double>() + seconds["calibrate"].get<double>(), seconds["fit"].get<double>());
  EXPECT_LE(sum, wall);
  EXPECT_GE(sum, wall / 4) << "the rest is the start of the program";
}

TEST_F(Cli, TheSameSeedGivesTheSameNumbers) {
  Json results[2];
  for (Json& json : results) {
    ASSERT_EQ(Run({"--prune", "random:2", "--lra", "full", "--seed", "5", "--json", Path("r.json")}).status, 0);
    json = ReadJson("r.json");
    json.erase("seconds");
    for (Json& variant : json["variants"]) variant.erase("tokens_per_second");
  }
  EXPECT_EQ(results[0], results[1]);
}

TEST_F(Cli, BlocksThatWereFittedAgainAreShownSavedAndRunAgain) {
  const auto heal = [&](const std::string& samples, const std::string& name) {
    const Outcome outcome = Run({"--prune", "layers=2", "--correction", "joint", "--lra", "8", "--heal", "all",
                                 "--calib", Path("calibration.txt:" + samples), "--save", Path(name), "--report",
                                 Path(name + "-page"), "--json", Path("r.json")});
    EXPECT_EQ(outcome.status, 0) << outcome.err;
    return outcome;
  };
  // On this model healing raises the loss on held-out text: it is said in one line, and not applied.
  const Outcome dropped = heal("16x64", "dropped");
  EXPECT_NE(dropped.out.find("healing is not applied: the loss on held-out calibration text is"), std::string::npos)
      << dropped.out;
  EXPECT_EQ(dropped.out.find("fitted again"), std::string::npos) << dropped.out;
  const Json verdict = ReadJson("dropped/shiftrt.json")["provenance"]["healing"];
  EXPECT_GT(verdict["with"].get<double>(), verdict["without"].get<double>());
  EXPECT_EQ(verdict["kept"], false);
  EXPECT_EQ(ReadJson("r.json")["variants"].back()["label"], "pruned + joint LRA 8");
  // No sample is held out here, so that nothing can be measured.
  const Outcome outcome = heal("7x64", "healed");
  for (const char* word : {"in place of layers", "fitted again", "block 3", "joint LRA 8, healed (all)"})
    EXPECT_NE(outcome.out.find(word), std::string::npos) << word << outcome.out;
  const Json json = ReadJson("r.json");
  ASSERT_EQ(json["healed"].size(), size_t{2});
  EXPECT_EQ(json["healed"][0]["part"], "o");
  EXPECT_EQ(json["healed"][1]["part"], "down");
  EXPECT_NE(ReadFile(dir_ / "healed-page/index.html").find("Projections that were fitted again"), std::string::npos);
  const Outcome again = Command("ppl", {"--text", Path("heldout.txt"), "--quiet", "--json", Path("p.json")}, "healed");
  ASSERT_EQ(again.status, 0) << again.err;
  EXPECT_NEAR(ReadJson("p.json")["perplexity"].get<double>(), json["variants"][2]["perplexity"].get<double>(), 1e-3);
  const Outcome inspected = Command("inspect", {}, "healed");
  EXPECT_NE(inspected.out.find("block 1 (mlp.down_proj), block 3 (self_attn.o_proj, mlp.down_proj)\n"),
            std::string::npos)
      << inspected.out;
  EXPECT_FAILS(Run({"--prune", "layers=2", "--heal", "most"}), 2, "--heal: unknown way to heal \"most\"");
  EXPECT_FAILS(Run({"--prune", "layers=0", "--correction", "refit"}), 2, "keep=first:1");
  EXPECT_FAILS(Run({"--prune", "layers=2", "--correction", "joint", "--lra", "8", "--memory", "16KiB"}), 1,
               "n = 80 inputs");
}

TEST_F(Cli, ARecipeIsTheOptionsThatItNames) {
  WriteModel("wide", {{"hidden_size", 64}});
  const auto run = [&](std::vector<std::string> more) {
    more.insert(more.end(), {"--calib", Path("calibration.txt:16x64"), "--text", Path("heldout.txt"), "--max-tokens",
                             "1", "--quiet", "--json", Path("r.json")});
    const Outcome outcome = Command("run", more, "wide");
    EXPECT_EQ(outcome.status, 0) << outcome.err;
    Json json = ReadJson("r.json");
    return json["variants"].back();
  };
  const auto same = [](const Json& a, const Json& b) {
    EXPECT_EQ(a["label"], b["label"]);
    EXPECT_EQ(a["perplexity"], b["perplexity"]);
  };
  same(run({"--recipe", "paper"}), run({"--prune", "bi:0.25", "--correction", "lra", "--lra", "64", "--factorize",
                                        "svd", "--calibration-mode", "independent"}));
  same(run({"--recipe", "stock", "--prune", "layers=2", "--lambda", "1e-3rel"}),
       run({"--prune", "layers=2", "--correction", "refit", "--heal", "all", "--lambda", "1e-3rel"}));
  same(run({"--recipe", "adapters", "--prune", "layers=2", "--lra", "64"}),
       run({"--prune", "layers=2", "--correction", "joint", "--lra", "64", "--heal", "all"}));
  const Json recovered = run({"--recipe", "recover", "--prune", "layers=2", "--recover", "tokens=2k"});
  EXPECT_EQ(recovered["name"], "recovered");
  same(recovered, run({"--prune", "layers=2", "--correction", "joint", "--lra", "64", "--recover", "tokens=2k"}));

  const auto refused = [&](std::vector<std::string> more, const char* words) {
    EXPECT_FAILS(Command("run", more, "wide"), 2, words);
  };
  refused({"--recipe", "paper", "--factorize", "rrr"}, "--factorize rrr: --recipe paper has --factorize svd");
  refused({"--recipe", "paper", "--gate"}, "--gate: --recipe paper has none of it");
  refused({"--recipe", "best", "--lra", "8"}, "--lra 8: --recipe best has --lra full");
  refused({"--recipe", "cheap"}, "known: paper, stock, adapters, best, portable, recover");
  refused({"--recipe", "recover", "--recover", "soon"}, "--recover: \"soon\"");
  refused({"--recover-text", Path("calibration.txt")}, "it goes with --recover BUDGET or --recipe recover");
  for (const char* command : {"sweep", "eval"})
    EXPECT_FAILS(
        Command(command, {"--recipe", "recover", "--prune", "layers=2", "--calib", Path("calibration.txt:16x64")},
                "wide"),
        2, "only `shiftrt run` does");
}

TEST_F(Cli, AHeldOutTextThatTheFitReadsIsNoIndependentTest) {
  const auto run = [&](const char* text) {
    return Command("run", {"--prune", "layers=2", "--lra", "4", "--calib", Path("calibration.txt:16x64"), "--text",
                           Path(text), "--text-tokens", "128", "--max-tokens", "1"});
  };
  const Outcome same = run("calibration.txt");
  EXPECT_EQ(same.status, 0) << same.err;
  EXPECT_NE(same.err.find("no independent test"), std::string::npos) << same.err;
  EXPECT_EQ(run("heldout.txt").err.find("no independent test"), std::string::npos);
}

TEST_F(Cli, ASavedModelGeneratesAsItDidWhenMade) {
  ASSERT_EQ(Run({"--prune", "reverse*:2", "--lra", "8", "--save", Path("saved"), "--json", Path("r.json")}).status, 0);
  ASSERT_EQ(Run({"--prune", "reverse*:2", "--lra", "8", "--save", Path("whole"), "--save-weights"}).status, 0);
  const std::string expected = ReadJson("r.json")["variants"][2]["continuation"];
  const std::vector<std::string> prompt = {"--prompt", "the sea was", "--max-tokens", "12"};
  const Outcome saved = Command("generate", prompt, "saved");
  EXPECT_EQ(saved.status, 0) << saved.err;
  EXPECT_NE(saved.out.find(expected), std::string::npos) << saved.out << "\nexpected " << expected;
  EXPECT_EQ(Command("tokenize", {"--ids", "the sea"}, "saved").out, Command("tokenize", {"--ids", "the sea"}).out);

  fs::remove_all(dir_ / "model");
  EXPECT_EQ(Command("generate", prompt, "saved").status, 1);  // its base is gone
  const Outcome whole = Command("generate", prompt, "whole");
  EXPECT_EQ(whole.status, 0) << whole.err;
  EXPECT_EQ(whole.out, saved.out);
}

// Families with fused tensors, windows, norms after their halves and caps: pruned, repaired, saved and opened again.
TEST_F(Cli, OtherFamiliesRunAndComeBack) {
  const Json phi3 = {{"architectures", {"Phi3ForCausalLM"}}, {"model_type", "phi3"}, {"sliding_window", 40}};
  const Json gemma2 = {{"architectures", {"Gemma2ForCausalLM"}},
                       {"model_type", "gemma2"},
                       {"head_dim", 8},
                       {"sliding_window", 40},
                       {"query_pre_attn_scalar", 8}};
  for (const Json& changes : {phi3, gemma2}) {
    const std::string name = changes["model_type"];
    WriteModel(name, changes);
    const auto run = [&](std::vector<std::string> more) {
      more.insert(more.end(), {"--calib", Path("calibration.txt:16x64"), "--text", Path("heldout.txt"), "--prompt",
                               "the sea was", "--max-tokens", "12", "--quiet"});
      return Command("run", more, name);
    };
    const Outcome repaired = run(
        {"--prune", "bi:2", "--lra", "8", "--save", Path(name + "-saved"), "--save-weights", "--json", Path("r.json")});
    ASSERT_EQ(repaired.status, 0) << repaired.err;
    const std::string expected = ReadJson("r.json")["variants"][2]["continuation"];
    fs::remove_all(dir_ / name);
    const Outcome again = Command("generate", {"--prompt", "the sea was", "--max-tokens", "12"}, name + "-saved");
    EXPECT_EQ(again.status, 0) << again.err;
    EXPECT_NE(again.out.find(expected), std::string::npos) << again.out << "\nexpected " << expected;
    WriteModel(name, changes);
    const Outcome merged = run({"--prune", "reverse:1", "--correction", "laco"});
    EXPECT_EQ(merged.status, 0) << merged.err;
    const Outcome replaced = run({"--prune", "reverse:1", "--correction", "replaceme"});
    EXPECT_EQ(replaced.status, name == "gemma2" ? 2 : 0) << replaced.err;
    EXPECT_EQ(replaced.err.find("a projection whose output is normed") != std::string::npos, name == "gemma2")
        << replaced.err;
  }
}

TEST_F(Cli, WithoutHeldOutSamplesThereIsNoR2OfThem) {
  const Outcome outcome =
      Run({"--prune", "reverse:1", "--lra", "4", "--calib", Path("calibration.txt:1x64"), "--json", Path("r.json")});
  ASSERT_EQ(outcome.status, 0) << outcome.err;
  EXPECT_EQ(outcome.out.find("nan"), std::string::npos) << outcome.out;
  EXPECT_TRUE(ReadJson("r.json")["sites"][0]["r2_heldout"].is_null());
}

TEST_F(Cli, AGateWithoutHeldOutTextIsRefusedBeforeTheFit) {
  const Outcome refused = Run({"--prune", "reverse*:1", "--gate", "--calib", Path("calibration.txt:1x64")});
  EXPECT_FAILS(refused, 2, "--gate: it needs held-out calibration text");
  EXPECT_EQ(refused.out.find("layers removed"), std::string::npos) << refused.out;
}

// The page begins with what was gained and lost, and reads the calibration text no second time.
TEST_F(Cli, AReportBeginsWithItsVerdict) {
  ASSERT_EQ(Run({"--prune", "bi:1", "--lra", "4", "--report", Path("page")}).status, 0);
  const std::string page = ReadFile(dir_ / "page/index.html");
  size_t last = 0;
  for (const char* words :
       {"<code>shiftrt 0", ": shiftrt run --model ", "--prune bi:1 --lra 4", ">Verdict<", "against the original",
        "held-out tokens of the calibration text", ">Comparison<", ">Text<", "Layer scores", ">Neighbours<"}) {
    const size_t found = page.find(words, last);
    ASSERT_NE(found, std::string::npos) << words;
    last = found;
  }
  EXPECT_EQ(page.find("Layer scores: angular"), std::string::npos);
}

// A projection that was fitted again has no rank.
TEST_F(Cli, RowsOfRefitsHaveNoRank) {
  const Outcome refit =
      Run({"--prune", "layers=2", "--correction", "refit", "--heal", "all", "--calib", Path("calibration.txt:16x64")});
  ASSERT_EQ(refit.status, 0) << refit.err;
  const size_t row = refit.out.find("\n  2  ");
  ASSERT_NE(row, std::string::npos) << refit.out;
  EXPECT_NE(refit.out.substr(row + 1, refit.out.find('\n', row + 1) - row).find(" -          - "), std::string::npos)
      << refit.out;
}

// Adapters that were fitted to noise are not handed over, unless the user asks for them.
TEST_F(Cli, ARepairThatDoesNotHelpIsSaidAndLeftOut) {
  const auto repaired = [&](std::vector<std::string> more) {
    more.insert(more.end(), {"--prune", "layers=1,2", "--lra", "8", "--calib", Path("calibration.txt:16x64"), "--save",
                             Path("saved"), "--json", Path("r.json")});
    more.insert(more.end(), {"--model", Path("model"), "--text", Path("heldout.txt")});
    more.insert(more.begin(), {"run", "--threads", "1", "--quiet", "--prompt", "the sea was", "--max-tokens", "4"});
    const Outcome outcome = Call(more);
    EXPECT_EQ(outcome.status, 0) << outcome.err;
    return outcome.out;
  };
  const std::string out = repaired({});
  EXPECT_NE(out.find("held-out tokens of the calibration text, the repair raises the loss from"), std::string::npos)
      << out;
  EXPECT_NE(out.find("it is left out, and the model is pruned alone (--no-gate keeps it)"), std::string::npos) << out;
  EXPECT_NE(out.find("--recover 15min"), std::string::npos) << out;
  Json json = ReadJson("r.json");
  EXPECT_FALSE(json["gain"]["kept"]);
  EXPECT_LT(json["gain"]["gain"], 0);
  EXPECT_EQ(json["variants"][2]["parameters"], json["variants"][1]["parameters"]);
  EXPECT_EQ(json["variants"][2]["label"], "pruned + joint LRA 8 (left out)");
  EXPECT_EQ(ReadJson("saved/shiftrt.json")["provenance"]["gain"], json["gain"]);

  EXPECT_NE(repaired({"--no-gate"}).find("the model is better without it"), std::string::npos);
  json = ReadJson("r.json");
  EXPECT_TRUE(json["gain"]["kept"]);
  EXPECT_GT(json["variants"][2]["parameters"], json["variants"][1]["parameters"]);
  EXPECT_FAILS(Run({"--prune", "layers=1", "--no-gate", "--gate"}), 2, "--gate");
}

TEST_F(Cli, AFullDiskFailsTheSaveAndLeavesNothing) {
  const FileSizeLimit limit(20000);  // the program inherits it
  EXPECT_FAILS(Run({"--prune", "reverse:1", "--lra", "4", "--save", Path("new/saved"), "--save-weights"}), 1,
               "new/saved/model.safetensors: cannot write it");
  EXPECT_FALSE(fs::exists(dir_ / "new"));
}

TEST_F(Cli, CtrlCInMidSaveLeavesNothing) {
  WriteModel("large", {{"vocab_size", 200000}});
  WriteText(dir_ / "short.txt", Words(200));
  const fs::path saved = dir_ / "saved";
  const auto begun = [&] {
    std::error_code none;  // only the weights: the option's own trial of the directory is not the save
    for (const auto& entry : fs::directory_iterator(saved, none))
      if (entry.path().filename().string().starts_with("model.safetensors")) return true;
    return false;
  };
  const std::string arguments =
      "run --protocol seq128 --prompt the --max-tokens 1 --prune reverse:1 --lra 4 "
      "--save-weights --threads 1 --quiet --model " +
      Path("large") + " --save " + saved.string() + " --calib " + Path("calibration.txt:1x64") + " --text " +
      Path("short.txt");
  int status = 0;
  for (int attempt = 0; status == 0 && attempt < 10; ++attempt) {  // until the save is caught half-way
    fs::remove_all(saved);
    const pid_t child = Start(Split(arguments), dir_ / "stdout", dir_ / "stderr");
    while (!begun()) {
      ASSERT_EQ(::waitpid(child, nullptr, WNOHANG), 0) << ReadFile(dir_ / "stderr");
      ::usleep(200);
    }
    ::kill(child, SIGINT);
    status = Wait(child);
  }
  EXPECT_EQ(status, 130) << ReadFile(dir_ / "stderr");
  EXPECT_FALSE(fs::exists(saved));
}

// A recovery whose result is not saved keeps its state in the cache, for the same training alone.
TEST_F(Cli, ARecoveryFromAnotherTextBeginsAnew) {
  WriteText(dir_ / "text.txt", Words(2000));
  fs::create_directories(dir_ / "page/index.html");  // a directory in the place of the page
  const auto recover = [&](const std::vector<std::string>& more) {
    std::vector<std::string> options = {"--prune",   "layers=2",       "--correction",   "none",   "--recover",
                                        "tokens=2k", "--recover-text", Path("text.txt"), "--quiet"};
    options.insert(options.end(), more.begin(), more.end());
    return Run(options);
  };
  EXPECT_EQ(recover({"--report", Path("page")}).status, 1);
  const Outcome other = recover({"--dtype", "bfloat16", "--report", Path("page")});
  EXPECT_EQ(other.err.find("of another training"), std::string::npos) << other.err;
  WriteText(dir_ / "text.txt", Words(2100));
  const Outcome changed = recover({});
  EXPECT_EQ(changed.status, 0) << changed.err;
  EXPECT_EQ(changed.err.find("continuing from"), std::string::npos) << changed.err;
}

// Stopped in the evaluation, by Ctrl-C or without a chance to say anything, the same command goes on from the fit.
TEST_F(Cli, AnInterruptedRunContinuesFromItsFit) {
  WriteText(dir_ / "long.txt", Words(20000));
  const auto arguments = [&](const std::string& json) {
    return Split(
        "run --threads 1 --quiet --prune bi:2 --lra 4 --merge lowrank --gate --prompt the --max-tokens 4 --model " +
        Path("model") + " --calib " + Path("calibration.txt:16x64") + " --text " + Path("long.txt") + " --save " +
        Path("saved") + " --json " + Path(json));
  };
  const auto kept = [&] {
    std::error_code none;
    for (const auto& entry : fs::directory_iterator(dir_ / "cache/shiftrt", none))
      if (fs::exists(entry.path() / "shiftrt-fit.json")) return entry.path();
    return fs::path();
  };
  const auto result = [&](const std::string& name) {
    Json json = ReadJson(name);
    json.erase("seconds");
    for (Json& variant : json["variants"]) variant.erase("tokens_per_second");
    return json;
  };
  ASSERT_EQ(Call(arguments("whole.json")).status, 0);
  EXPECT_EQ(kept(), "");
  const Json saved = ReadJson("saved/shiftrt.json");
  for (const int signal : {SIGINT, SIGKILL}) {
    int status = 0;
    for (int attempt = 0; status == 0; ++attempt) {  // until the program is caught in its evaluation
      ASSERT_LT(attempt, 20);
      fs::remove_all(dir_ / "saved");
      const pid_t child = Start(arguments("stopped.json"), dir_ / "stdout", dir_ / "stderr");
      while (!fs::exists(dir_ / "saved/shiftrt.json") && !Ended(child)) ::usleep(200);
      ::kill(child, signal);
      status = Wait(child);
    }
    EXPECT_EQ(status, signal == SIGINT ? 130 : 128 + SIGKILL) << ReadFile(dir_ / "stderr");
    EXPECT_FALSE(fs::exists(dir_ / "stopped.json"));
    ASSERT_NE(kept(), "");
    EXPECT_EQ(ReadJson("saved/shiftrt.json")["provenance"]["state"], "fitted");
    if (signal == SIGINT) {
      const std::string where = "the selection and the fit are kept in " + kept().string();
      EXPECT_NE(ReadFile(dir_ / "stderr").find(where), std::string::npos) << ReadFile(dir_ / "stderr");
    }
    EXPECT_EQ(Command("generate", {"--prompt", "the", "--max-tokens", "4"}, "saved").status, 0);

    const Json seconds = Json::parse(ReadFile(kept() / "shiftrt-fit.json"))["seconds"];
    const Outcome resumed = Call(arguments("resumed.json"));
    ASSERT_EQ(resumed.status, 0) << resumed.err;
    EXPECT_NE(resumed.err.find("where an interrupted command left them"), std::string::npos) << resumed.err;
    EXPECT_EQ(result("resumed.json"), result("whole.json"));
    // Steps that were not repeated report the time that they took before.
    for (const char* step : {"select", "calibrate", "solve", "factorize"})
      EXPECT_EQ(ReadJson("resumed.json")["seconds"][step], seconds[step]) << step;
    EXPECT_EQ(ReadJson("saved/shiftrt.json")["plan"], saved["plan"]);
    EXPECT_EQ(ReadJson("saved/shiftrt.json")["provenance"]["variants"].size(), size_t{4});
    EXPECT_EQ(ReadJson("saved/shiftrt.json")["provenance"]["state"], "evaluated");
    EXPECT_EQ(kept(), "");
  }
}

TEST_F(Cli, AKeptFitThatIsDamagedIsMadeAgain) {
  const std::vector<std::string> recipe = {"--prune", "reverse:1", "--report", Path("page")};
  // The page cannot be written, which shows after the evaluation.
  fs::create_directories(dir_ / "page/index.html");
  EXPECT_FAILS(Run(recipe), 1, "the same command continues");
  for (const auto& entry : fs::directory_iterator(dir_ / "cache/shiftrt"))
    WriteText(entry.path() / "shiftrt-fit.json", "{}");
  fs::remove_all(dir_ / "page");
  // Files that somebody else put there are not removed with it.
  for (const char* const name : {"corrected", "fit.json.old", "0123456789abcdef.checkpoints"}) {
    std::vector<fs::path> placed;
    for (const auto& entry : fs::directory_iterator(dir_ / "cache/shiftrt")) placed.push_back(entry.path() / name);
    for (const fs::path& file : placed) WriteText(file, "of the user");
    EXPECT_FAILS(Run(recipe), 2, std::string(name) + ", which is no part of a kept fit");
    for (const fs::path& file : placed) EXPECT_TRUE(fs::remove(file)) << file;
  }
  const Outcome again = Run(recipe);
  EXPECT_EQ(again.status, 0);
  EXPECT_NE(again.err.find("what an interrupted command left cannot be used"), std::string::npos) << again.err;
}

// The same file of text with another number or length of samples is another calibration.
TEST_F(Cli, AKeptFitIsThatOfItsSamples) {
  const auto run = [&](const std::string& calibration) {
    return Run({"--prune", "layers=1", "--calib", Path("calibration.txt:") + calibration, "--report", Path("page")});
  };
  fs::create_directories(dir_ / "page/index.html");
  EXPECT_FAILS(run("8x32"), 1, "the same command continues");
  fs::remove_all(dir_ / "page");
  const Outcome other = run("16x64");
  ASSERT_EQ(other.status, 0) << other.err;
  EXPECT_EQ(other.err.find("where an interrupted command left them"), std::string::npos) << other.err;
  const Outcome same = run("8x32");
  ASSERT_EQ(same.status, 0) << same.err;
  EXPECT_NE(same.err.find("where an interrupted command left them"), std::string::npos) << same.err;
}

// A saved model says how to make it again: its record has every setting that changed the fit.
TEST_F(Cli, ASavedModelRecordsItsSettings) {
  const auto record = [&](std::vector<std::string> more) {
    more.insert(more.begin(), {"--prune", "layers=1", "--save", Path("made")});
    const Outcome outcome = Run(more);
    EXPECT_EQ(outcome.status, 0) << outcome.err;
    return ReadJson("made/shiftrt.json")["provenance"];
  };
  const Json made = record({"--seed", "7", "--penalize-bias", "--gate"});
  EXPECT_EQ(made["seed"], 7);
  EXPECT_EQ(made["penalize_bias"], true);
  EXPECT_EQ(made["gated"], true);
  const Json plain = record({"--correction", "lra", "--lra", "4"});
  EXPECT_EQ(plain["seed"], 0);
  EXPECT_EQ(plain["penalize_bias"], false);
}

TEST_F(Cli, WhatCannotBeWrittenIsRefusedBeforeTheWork) {
  WriteText(dir_ / "file", "");
  const Outcome save = Run({"--save", Path("file/saved")});
  EXPECT_FAILS(save, 2, "file/saved");
  EXPECT_EQ(save.out, "");
  EXPECT_EQ(ReadFile(dir_ / "file"), "");
  EXPECT_FAILS(Run({"--json", Path("none/r.json")}), 2, "none/r.json");
  EXPECT_FAILS(Run({"--save-gram", Path("model")}), 2, "model: is a directory");
  EXPECT_FAILS(Run({"--report", Path("file")}), 2, "file");
  for (const auto& entry : fs::directory_iterator(dir_))
    EXPECT_EQ(entry.path().string().find(".tmp"), std::string::npos) << entry.path();
}

// Drift where adapters can be fitted one after another, and independent where all must come from one pass.
TEST_F(Cli, TheCalibrationModeFollowsWhatIsFitted) {
  const auto mode = [&](std::vector<std::string> more, const char* because = nullptr) {
    more.insert(more.begin(), {"--prune", "bi:2", "--save", Path("made")});
    const Outcome outcome = Run(more);
    EXPECT_EQ(outcome.status, 0) << outcome.err;
    EXPECT_EQ(outcome.out.find("calibration mode independent, because") != std::string::npos, because != nullptr);
    EXPECT_NE(outcome.out.find(because != nullptr ? because : ""), std::string::npos) << outcome.out;
    return ReadJson("made/shiftrt.json")["provenance"]["calibration_mode"].get<std::string>();
  };
  EXPECT_EQ(mode({"--correction", "lra", "--lra", "4"}), "drift");
  EXPECT_EQ(mode({"--lra", "4", "--calibration-mode", "independent"}), "independent");
  EXPECT_EQ(mode({"--lra", "budget:500"}, "the budget is spread over adapters"), "independent");
  EXPECT_EQ(mode({"--lra", "4", "--save-gram", Path("gram")}, "files have the sums of all sites"), "independent");
  EXPECT_EQ(mode({"--correction", "bias"}), "independent");
}

// Without --correction the repair is joint, or lra with an option that joint does not take, and `run` says why.
TEST_F(Cli, TheCorrectionFollowsTheOptions) {
  const auto correction = [&](std::vector<std::string> more, const char* because = nullptr) {
    more.insert(more.begin(), {"--prune", "bi:2", "--lra", "4", "--save", Path("made")});
    const Outcome outcome = Run(more);
    EXPECT_EQ(outcome.status, 0) << outcome.err;
    EXPECT_EQ(outcome.out.find("correction lra, because") != std::string::npos, because != nullptr) << outcome.out;
    EXPECT_NE(outcome.out.find(because != nullptr ? because : ""), std::string::npos) << outcome.out;
    return ReadJson("made/shiftrt.json")["provenance"]["correction"].get<std::string>();
  };
  EXPECT_EQ(correction({}), "joint");
  EXPECT_EQ(correction({"--factorize", "svd", "--gate"}), "joint");
  EXPECT_EQ(correction({"--calibration-mode", "drift"}, "a calibration mode is given: drift"), "lra");
  EXPECT_EQ(correction({"--span"}, "joint does not go with a span"), "lra");
  EXPECT_EQ(correction({"--save-gram", Path("gram")}, "joint does not go with saving sums"), "lra");
  EXPECT_EQ(correction({"--correction", "lra"}), "lra");
}

TEST_F(Cli, ARunThatReadsNoTextNeedsNone) {
  const auto bare = [&](std::vector<std::string> more) {
    more.insert(more.begin(), {"run", "--model", Path("model"), "--quiet", "--offline", "--prune", "layers=1-2"});
    return Call(more);
  };
  const Outcome outcome = bare({"--correction", "none", "--save", Path("bare"), "--json", Path("bare.json")});
  ASSERT_EQ(outcome.status, 0) << outcome.err;
  EXPECT_NE(outcome.out.find("no perplexity, because there is no held-out text"), std::string::npos) << outcome.out;
  EXPECT_NE(outcome.out.find("saved: "), std::string::npos) << outcome.out;
  EXPECT_FALSE(ReadJson("bare.json")["variants"][1].contains("perplexity"));
  EXPECT_EQ(Call({"ppl", "--model", Path("bare"), "--text", Path("heldout.txt")}).status, 0);
  EXPECT_FAILS(bare({"--correction", "none", "--report", Path("page")}), 2, "--text FILE");
  const Outcome page = bare({"--correction", "none", "--report", Path("page"), "--text", Path("heldout.txt")});
  EXPECT_EQ(page.status, 0) << page.err;
  EXPECT_TRUE(fs::exists(dir_ / "page/index.html"));
  EXPECT_FAILS(bare({"--lra", "4"}), 2, "give calibration text");
  WriteText(dir_ / "empty.txt", "");
  EXPECT_FAILS(bare({"--correction", "none", "--text", Path("empty.txt")}), 2, "a perplexity needs 2 tokens");
}

// A sample of 32 tokens is held out, and the window of the protocol has 128.
TEST_F(Cli, AFewShortSamplesAreEnough) {
  const Outcome outcome = Call({"run", "--model", Path("model"), "--quiet", "--offline", "--prune", "layers=1", "--lra",
                                "2", "--calib", Path("calibration.txt:4x32"), "--save", Path("short")});
  ASSERT_EQ(outcome.status, 0) << outcome.err;
  EXPECT_NE(outcome.out.find("one window of 32 tokens, because the text has no more"), std::string::npos)
      << outcome.out;
  EXPECT_NE(outcome.out.find("saved: "), std::string::npos) << outcome.out;
}

// docs/dev/method.md and the help of run show the table that the program itself checks options by.
TEST_F(Cli, WhatGoesWithWhatIsDocumented) {
  const Outcome table = Call({"inspect", "--options"});
  ASSERT_EQ(table.status, 0) << table.err;
  EXPECT_NE(table.out.find("--merge\n"), std::string::npos) << table.out;
  const std::string page = ReadFile(TestDirectory().parent_path() / "docs/dev/method.md");
  EXPECT_NE(page.find("```\n" + table.out + "```\n"), std::string::npos)
      << "docs/dev/method.md has another table than `shiftrt inspect --options` prints:\n"
      << table.out;
  EXPECT_NE(Call({"run", "--help-all"}).out.find("inspect --options"), std::string::npos);
}

TEST_F(Cli, LessMemoryTakesMorePassesToTheSameEnd) {
  const char* prune = "reverse*:2";
  const auto variants = [&](std::vector<std::string> more) {
    more.insert(more.begin(), {"--prune", prune, "--lra", "4", "--json", Path("r.json")});
    const Outcome outcome = Run(more);
    EXPECT_EQ(outcome.status, 0) << outcome.err;
    Json json = ReadJson("r.json")["variants"];
    for (Json& variant : json) variant.erase("tokens_per_second");
    return json;
  };
  const std::vector<std::string> together = {"--calibration-mode", "independent"};
  EXPECT_EQ(variants(together), variants({"--calibration-mode", "independent", "--memory", "40KiB"}));
  prune = "bi:2";  // the pass that selects has no room for the sums of all layers, or for a stream
  for (const char* mode : {"independent", "drift"})
    EXPECT_EQ(variants({"--calibration-mode", mode}), variants({"--calibration-mode", mode, "--memory", "40KiB"}));
  for (const char* prune : {"bi:2", "correctable:1"})
    EXPECT_FAILS(Run({"--memory", "10KiB", "--prune", prune, "--correction", "lra", "--lra", "4"}), 1,
                 "sums of 1 site take");
  EXPECT_FAILS(Run({"--memory", "10KiB"}), 1, "allow more, or use the correction lra");
  EXPECT_FAILS(Run({"--memory", "much"}), 2, "--memory");
  EXPECT_FAILS(Command("sweep", {"--calib", Path("calibration.txt:16x64"), "--text", Path("heldout.txt"), "--lra", "4",
                                 "--prune", "reverse:2", "--memory", "40KiB"}),
               1, "fewer criteria");
}

TEST_F(Cli, SavedSumsGiveTheSameRunWithoutCalibrationText) {
  const std::vector<std::string> recipe = {
      "--prune",           "bi:2",  "--lra", "8", "--quiet", "--calibration-mode", "independent", "--text",
      Path("heldout.txt"), "--json"};
  const auto run = [&](std::vector<std::string> more) {
    more.insert(more.begin(), recipe.begin(), recipe.end());
    more.insert(more.begin() + static_cast<int64_t>(recipe.size()), Path("r.json"));
    const Outcome outcome = Command("run", more);
    EXPECT_EQ(outcome.status, 0) << outcome.err;
    Json json = ReadJson("r.json");
    for (Json& variant : json["variants"]) variant.erase("tokens_per_second");
    return Json{json["sites"], json["variants"], json["selection"]};
  };
  const std::string calib = Path("calibration.txt:16x64");
  const Json fresh = run({"--calib", calib});
  EXPECT_EQ(run({"--calib", calib, "--save-gram", Path("gram"), "--gram-layers", "all"}), fresh);
  EXPECT_EQ(run({"--load-gram", Path("gram")}), fresh);
  EXPECT_EQ(run({"--calib", calib, "--save-gram", Path("gram"), "--gram-layers", "all"}), fresh);  // complete: used

  EXPECT_FAILS(Command("run", {"--lra", "8", "--load-gram", Path("gram"), Path("gram"), "--text", Path("heldout.txt")}),
               1, "samples are in both");
  EXPECT_FAILS(Run({"--lra", "8", "--load-gram", Path("gram"), "--save-gram", Path("more")}), 2, "--load-gram");
  EXPECT_FAILS(Run({"--lra", "8", "--gram-layers", "all"}), 2, "--save-gram");
  EXPECT_FAILS(Run({"--lra", "8", "--load-gram", Path("heldout.txt")}), 1, "heldout.txt");
  // A fit takes sums of either precision.
  for (const char* products : {"float32", "auto"})
    EXPECT_EQ(run({"--load-gram", Path("gram"), "--products", products})[0], fresh[0]) << products;
  EXPECT_FAILS(Run({"--lra", "8", "--load-gram", Path("gram"), "--token-weight", "norm"}), 2,
               "but \"independent, token weights norm\" is asked for");
  fs::resize_file(dir_ / "gram", fs::file_size(dir_ / "gram") / 2);
  EXPECT_FAILS(Run({"--lra", "8", "--load-gram", Path("gram")}), 1, "gram");
}

TEST_F(Cli, RunDrawsAReport) {
  ASSERT_EQ(Run({"--prune", "reverse*:2", "--lra", "8", "--report", Path("page")}).status, 0);
  const std::string page = ReadFile(dir_ / "page/index.html");
  for (const char* part :
       {"Comparison", "Layer scores: reverse*", "Layer scores: magnitude-l1", "Singular values", "Energy explained",
        "held-out tokens", "tokens: 896 fitted, 128 held out", "Cosine", "Hidden states", "the sea was"})
    EXPECT_NE(page.find(part), std::string::npos) << part;
  for (const char* chart :
       {"r2", "norm-by-depth", "cosine-by-depth", "hidden-states", "hidden-states-tsne", "explained-energy"})
    EXPECT_TRUE(fs::exists(dir_ / "page" / (std::string(chart) + ".svg"))) << chart;
}

}  // namespace
}  // namespace shiftrt
