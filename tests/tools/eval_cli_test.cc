// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <csignal>
#include <fstream>
#include <iterator>
#include <sstream>

#include "tests/tools/cli.h"

namespace shiftrt {
namespace {

TEST_F(Cli, EvalComparesTheVariantsOfASavedModel) {
  ASSERT_EQ(Run({"--prune", "reverse*:1", "--correction", "lra", "--lra", "8", "--save", Path("saved")}).status, 0);
  const std::vector<std::string> arguments = {"--tasks", "paper7,mmlu", "--data",       EvalData(), "--metrics",
                                              "all",     "--json",      Path("e.json"), "--items",  Path("items.jsonl"),
                                              "--quiet", "--journal",   Path("journal")};
  const Outcome outcome = Command("eval", arguments, "saved");
  ASSERT_EQ(outcome.status, 0) << outcome.err;
  for (const char* word : {"BoolQ", "PARTIAL", "/4", "acc_norm", "to original", "mean of 6 tasks", "bits_per_byte",
                           "margin over the best wrong answer", "The means are over PIQA", "BOS auto"})
    EXPECT_NE(outcome.out.find(word), std::string::npos) << word << " in\n" << outcome.out;
  EXPECT_FALSE(fs::exists(dir_ / "journal"));

  const Json json = ReadJson("e.json");
  EXPECT_EQ(json["bos"], "auto");
  EXPECT_EQ(json["adds_bos"], false);
  ASSERT_EQ(json["tasks"].size(), size_t{8});
  const Json& piqa = json["tasks"][1];
  EXPECT_EQ(piqa["items"], 3);
  EXPECT_EQ(piqa["partial"], true);
  EXPECT_EQ(piqa["data_hash"].get<std::string>().size(), size_t{16});
  EXPECT_EQ(piqa["template_hash"].get<std::string>().size(), size_t{16});
  EXPECT_LT(piqa["tokens_computed"], piqa["tokens_requested"]);
  EXPECT_EQ(piqa["shared_stages"], 2);  // reverse* keeps the last of four layers and takes the one before
  ASSERT_EQ(piqa["variants"].size(), size_t{3});
  const char* const names[] = {"original", "pruned", "lra"};
  for (int v = 0; v < 3; ++v) {
    const Json& variant = piqa["variants"][v];
    EXPECT_EQ(variant["name"], names[v]);
    EXPECT_EQ(variant["metrics"]["acc"]["items"], 3);
    for (const char* metric : {"acc", "bits_per_byte", "margin"}) {
      EXPECT_EQ(variant["metrics"][metric].contains("to_first"), v > 0) << metric;
      EXPECT_GT(variant["metrics"][metric]["standard_error"], 0) << metric;
    }
    EXPECT_GT(variant["metrics"]["bits_per_byte"]["value"], 0);
  }
  EXPECT_EQ(json["mean"][2]["tasks"], 6);  // the mean of a small model is without BoolQ
  EXPECT_TRUE(json["mean"][2]["bits_per_byte"]["to_first"]["difference"].is_number());
  EXPECT_TRUE(json["mean"][2]["to_first"]["standard_error"].is_number());

  std::istringstream items(ReadFile(dir_ / "items.jsonl"));
  int64_t lines = 0;
  for (std::string line; std::getline(items, line); ++lines) {
    const Json item = Json::parse(line);
    EXPECT_EQ(item["variants"]["lra"]["log_likelihoods"].size(), item["continuation_tokens"].size());
  }
  EXPECT_EQ(lines, 4 + 3 + 3 + 3 + 3 + 2 + 2 + 6);
}

// Saved with its weights after training, a model has no blocks of the pruned one any more.
TEST_F(Cli, ATunedModelIsComparedWithItsOriginal) {
  ASSERT_EQ(Run({"--prune", "layers=1", "--lra", "8", "--save", Path("fit")}).status, 0);
  ASSERT_EQ(Call({"finetune", "--model", Path("fit"), "--method", "partial", "--layers", "all", "--calib",
                  Path("calibration.txt"), "--length", "32", "--steps", "2", "--validation", "4", "--save",
                  Path("tuned"), "--save-weights", "--quiet"})
                .status,
            0);
  const auto eval = [&](const std::vector<std::string>& more) {
    std::vector<std::string> arguments = {"--tasks", "piqa", "--data", EvalData(), "--json", Path("e.json"), "--quiet"};
    arguments.insert(arguments.end(), more.begin(), more.end());
    return Command("eval", arguments, "tuned");
  };
  ASSERT_EQ(eval({}).status, 0);
  const Json alone = ReadJson("e.json")["tasks"][0]["variants"];
  ASSERT_EQ(alone.size(), size_t{1});
  EXPECT_EQ(alone[0]["name"], "finetuned");
  const Outcome outcome = eval({"--original", Path("model"), "--report", Path("page")});
  ASSERT_EQ(outcome.status, 0) << outcome.err;
  const Json json = ReadJson("e.json"), both = json["tasks"][0]["variants"];
  ASSERT_EQ(both.size(), size_t{2});
  EXPECT_EQ(both[0]["name"], "original");
  EXPECT_EQ(both[1]["metrics"]["acc"]["value"], alone[0]["metrics"]["acc"]["value"]);
  EXPECT_EQ(both[1]["metrics"]["bits_per_byte"]["value"], alone[0]["metrics"]["bits_per_byte"]["value"]);
  EXPECT_NE(both[0]["metrics"]["bits_per_byte"]["value"], alone[0]["metrics"]["bits_per_byte"]["value"]);
  EXPECT_TRUE(both[1]["metrics"]["margin"].contains("to_first"));
  EXPECT_NE(json["original"]["fingerprint"], json["fingerprint"]);
  EXPECT_NE(ReadFile(dir_ / "page/index.html").find("bits per byte of the right answer"), std::string::npos);
  // The repaired model that training began with, by the name of its directory.
  ASSERT_EQ(eval({"--original", Path("fit")}).status, 0);
  EXPECT_EQ(ReadJson("e.json")["tasks"][0]["variants"][0]["name"], "fit");
  // A model that shiftrt has not saved has the name of its directory then.
  fs::create_directory(dir_ / "other");
  fs::copy(dir_ / "model", dir_ / "other", fs::copy_options::recursive);
  ASSERT_EQ(Command("eval",
                    {"--tasks", "piqa", "--data", EvalData(), "--json", Path("n.json"), "--quiet", "--original",
                     Path("model")},
                    "other")
                .status,
            0);
  const Json named = ReadJson("n.json")["tasks"][0]["variants"];
  ASSERT_EQ(named.size(), size_t{2});
  EXPECT_EQ(named[0]["name"], "original");
  EXPECT_EQ(named[1]["name"], "other");
  // The original has the same scores as when it is evaluated as itself.
  ASSERT_EQ(Command("eval", {"--tasks", "piqa", "--data", EvalData(), "--json", Path("o.json"), "--quiet"}).status, 0);
  EXPECT_EQ(ReadJson("o.json")["tasks"][0]["variants"][0]["metrics"]["bits_per_byte"]["value"],
            both[0]["metrics"]["bits_per_byte"]["value"]);
}

// `run --eval`, `eval` of what it saved and `eval` with the same recipe are one computation.
TEST_F(Cli, EvalPrunesAndRepairsAsRunDoes) {
  const std::vector<std::string> recipe = {"--prune", "bi:2", "--lra", "8", "--merge", "full"};
  const auto and_more = [](std::vector<std::string> arguments, const std::vector<std::string>& more) {
    arguments.insert(arguments.end(), more.begin(), more.end());
    return arguments;
  };
  const Outcome run = Run(and_more(
      recipe, {"--eval", "piqa,boolq", "--data", EvalData(), "--save", Path("saved"), "--json", Path("run.json")}));
  ASSERT_EQ(run.status, 0) << run.err;
  EXPECT_NE(run.out.find("PIQA"), std::string::npos) << run.out;
  const std::vector<std::string> eval = {"--quiet", "--tasks", "piqa,boolq", "--data", EvalData(), "--json"};
  ASSERT_EQ(
      Command("eval", and_more(and_more(eval, {Path("recipe.json"), "--calib", Path("calibration.txt:16x64")}), recipe))
          .status,
      0);
  ASSERT_EQ(Command("eval", and_more(eval, {Path("saved.json")}), "saved").status, 0);

  const Json tasks = ReadJson("run.json")["evaluation"]["tasks"], same = ReadJson("recipe.json")["tasks"],
             saved = ReadJson("saved.json")["tasks"];
  for (int t = 0; t < 2; ++t) {
    ASSERT_EQ(tasks[t]["variants"].size(), size_t{4});
    EXPECT_EQ(tasks[t]["variants"], same[t]["variants"]);
    ASSERT_EQ(saved[t]["variants"].size(), size_t{3});  // a merged plan was saved, the adapters it came from were not
    for (const auto& [at, of_run] : {std::pair(0, 0), {1, 1}, {2, 3}})
      EXPECT_EQ(saved[t]["variants"][at], tasks[t]["variants"][of_run]);
  }

  // With the original, over its weights, a saved plan has the scores that it has alone.
  ASSERT_EQ(Command("eval", and_more(eval, {Path("with.json"), "--with", Path("saved") + "/"})).status, 0);
  const Json with = ReadJson("with.json")["tasks"];
  for (int t = 0; t < 2; ++t) {
    ASSERT_EQ(with[t]["variants"].size(), size_t{2});
    EXPECT_EQ(with[t]["variants"][1]["name"], "saved");
    EXPECT_EQ(with[t]["variants"][1]["metrics"], saved[t]["variants"][2]["metrics"]);
    EXPECT_EQ(with[t]["variants"][0], saved[t]["variants"][0]);
  }
  const std::vector<std::string> two = {Path("two.json"), "--with", Path("saved"), Path("saved")};
  EXPECT_FAILS(Command("eval", and_more(eval, two)), 2, "there is a variant saved already");
  EXPECT_FAILS(Command("eval", and_more(eval, {Path("x.json"), "--with", Path("model")})), 1, "shiftrt.json");
}

TEST_F(Cli, ShiftrtEvalIsTheSameProgram) {
  const fs::path other = fs::path(SHIFTRT_TOOL).parent_path() / "shiftrt-eval";
  const fs::path out = dir_ / "stdout", err = dir_ / "stderr";
  const std::vector<std::string> arguments = {"--model", Path("model"), "--tasks", "piqa",
                                              "--data",  EvalData(),    "--quiet"};
  ASSERT_EQ(Wait(Start(arguments, out, err, other)), 0) << ReadFile(err);
  EXPECT_EQ(ReadFile(out), Command("eval", {"--tasks", "piqa", "--data", EvalData(), "--quiet"}).out);
}

TEST_F(Cli, AnEvaluationOfOneItemHasNoError) {
  WriteText(dir_ / "lambada.jsonl", "{\"text\": \"the sea was calm\"}\n");
  const Outcome outcome = Command("eval", {"--tasks", "lambada_openai,lambada", "--data",
                                           "lambada_openai=" + Path("lambada.jsonl"), "--json", Path("r.json")});
  ASSERT_EQ(outcome.status, 0) << outcome.err;
  EXPECT_EQ(outcome.out.find("nan"), std::string::npos) << outcome.out;
  EXPECT_EQ(outcome.out.find("±"), std::string::npos) << outcome.out;
  const Json tasks = ReadJson("r.json")["tasks"];
  ASSERT_EQ(tasks.size(), size_t{1}) << "one task has two names";
  EXPECT_EQ(tasks[0]["task"], "lambada");
  EXPECT_TRUE(tasks[0]["variants"][0]["metrics"]["acc"]["standard_error"].is_null()) << tasks;
}

TEST_F(Cli, EvalRefusesWhatItCannotDo) {
  EXPECT_FAILS(Command("eval", {"--tasks", "piqa,guess", "--data", EvalData()}), 2, "guess");
  EXPECT_FAILS(Command("eval", {"--tasks", "piqa", "--data", EvalData(), "--variants", "lra"}), 2, "only original");
  EXPECT_FAILS(
      Command("eval", {"--tasks", "piqa", "--data", EvalData(), "--prune", "reverse*:1", "--variants", "fused"}), 2,
      "only original, pruned, joint here");
  EXPECT_FAILS(Command("eval", {"--tasks", "piqa", "--data", EvalData(), "--variants", "original,original"}), 2,
               "original is named twice");
  EXPECT_FAILS(Command("eval", {"--tasks", "piqa", "--data", EvalData(), "--lra", "8"}), 2, "requires --prune");
  EXPECT_FAILS(Command("eval", {"--tasks", "lambada", "--data", EvalData(), "--shots", "1"}), 2, "without shots");
  EXPECT_FAILS(Command("eval", {"--tasks", "piqa", "--data", EvalData(), "--bos", "always"}), 2, "no BOS");
  EXPECT_FAILS(Command("eval", {"--tasks", "piqa", "--data", Path("model")}), 1, "piqa_validation*.jsonl");
  WriteText(dir_ / "bad.jsonl", "{\"goal\": \"g\", \"sol1\": \"a\"}\n");
  EXPECT_FAILS(Command("eval", {"--tasks", "piqa", "--data", "piqa=" + Path("bad.jsonl")}), 1, "bad.jsonl:1");
  EXPECT_FAILS(Command("eval", {"--tasks", "piqa", "--data", "PIQA=" + Path("bad.jsonl")}), 2,
               "is neither a directory nor TASK=FILE");
}

// The cache is a convenience: where it cannot be written, the evaluation is made without it.
TEST_F(Cli, EvalDoesWithoutACache) {
  WriteText(dir_ / "file", "");
  ::setenv("XDG_CACHE_HOME", Path("file").c_str(), 1);
  const Outcome outcome = Command("eval", {"--tasks", "piqa", "--data", EvalData()});
  ::unsetenv("XDG_CACHE_HOME");
  EXPECT_EQ(outcome.status, 0) << outcome.err;
  EXPECT_NE(outcome.err.find("XDG_CACHE_HOME"), std::string::npos) << outcome.err;
}

// A result that cannot be written costs no second evaluation.
TEST_F(Cli, AJournalStaysUntilTheResultsAreWritten) {
  WriteText(dir_ / "file", "");
  const std::vector<std::string> options = {"--tasks",   "piqa",          "--data",   EvalData(),
                                            "--journal", Path("journal"), "--report", Path("page")};
  fs::create_directories(dir_ / "page/index.html");  // a directory in the place of the page
  EXPECT_EQ(Command("eval", options).status, 1);
  EXPECT_TRUE(fs::exists(dir_ / "journal"));
  fs::remove_all(dir_ / "page");
  const Outcome again = Command("eval", options);
  EXPECT_EQ(again.status, 0) << again.err;
  EXPECT_NE(again.err.find("they are not scored again"), std::string::npos) << again.err;
  EXPECT_FALSE(fs::exists(dir_ / "journal"));
}

// The journal of the cache belongs to these settings, weights and arithmetic: another evaluation neither reads nor
// removes it.
TEST_F(Cli, AnEvaluationOfOtherSettingsLeavesTheJournalOfAnother) {
  WriteText(dir_ / "file", "");
  const auto evaluate = [&](const std::vector<std::string>& more) {
    std::vector<std::string> options = {"--tasks", "piqa", "--data", EvalData()};
    options.insert(options.end(), more.begin(), more.end());
    return Command("eval", options);
  };
  const auto journals = [&] {
    std::vector<std::string> names;
    for (const auto& entry : fs::directory_iterator(dir_ / "cache/shiftrt")) names.push_back(entry.path().string());
    return names;
  };
  fs::create_directories(dir_ / "page/index.html");  // a directory in the place of the page
  EXPECT_EQ(evaluate({"--report", Path("page")}).status, 1);
  const std::vector<std::string> kept = journals();
  ASSERT_EQ(kept.size(), 1u);
  for (const char* other : {"--dtype=bfloat16", "--allow-code", "--limit=2", "--bos=never", "--metrics=all"}) {
    const Outcome outcome = evaluate({other});
    EXPECT_EQ(outcome.status, 0) << outcome.err;
    EXPECT_EQ(outcome.err.find("of an evaluation that was interrupted"), std::string::npos) << other << outcome.err;
    EXPECT_EQ(journals(), kept) << other;
  }
  const Outcome again = evaluate({});
  EXPECT_NE(again.err.find("of an evaluation that was interrupted"), std::string::npos) << again.err;
  EXPECT_TRUE(journals().empty());
}

// SIGKILL at several points of an evaluation of some twenty-five batches; the last line of the journal is then torn,
// too.
TEST_F(Cli, AKilledEvalGoesOnToTheSameBits) {
  WriteText(dir_ / "rows.jsonl", PiqaRows(600));
  const auto arguments = [&](const std::string& name) {
    return std::vector<std::string>{"eval",
                                    "--model",
                                    Path("model"),
                                    "--threads",
                                    "1",
                                    "--tasks",
                                    "piqa,boolq",
                                    "--data",
                                    EvalData(),
                                    "--data",
                                    "piqa=" + Path("rows.jsonl"),
                                    "--journal",
                                    Path("journal"),
                                    "--items",
                                    Path(name + ".jsonl"),
                                    "--json",
                                    Path(name + ".json")};
  };
  const auto result = [&](const std::string& name) {
    Json json = ReadJson(name + ".json");
    for (Json& task : json["tasks"]) task.erase("seconds");
    return json.dump() + ReadFile(dir_ / (name + ".jsonl"));
  };
  const auto lines = [&] {
    std::ifstream journal(dir_ / "journal");  // the program may just have removed it
    return std::count(std::istreambuf_iterator<char>(journal), {}, '\n');
  };
  ASSERT_EQ(Call(arguments("whole")).status, 0);
  EXPECT_FALSE(fs::exists(dir_ / "journal"));
  for (const int64_t batches : {2, 6, 12}) {
    // On a busy machine the program may be done before this one looks; then once more.
    int status = 0;
    for (int attempt = 0; status != 128 + SIGKILL; ++attempt) {
      ASSERT_LT(attempt, 50);
      const pid_t child = Start(arguments("killed"), dir_ / "stdout", dir_ / "stderr");
      while (lines() < batches && !Ended(child)) ::usleep(200);
      ::kill(child, SIGKILL);
      status = Wait(child);
    }
    EXPECT_FALSE(fs::exists(dir_ / "killed.json"));
    ASSERT_GE(lines(), batches);
    fs::resize_file(dir_ / "journal", fs::file_size(dir_ / "journal") - 10);
    const Outcome resumed = Call(arguments("resumed"));
    ASSERT_EQ(resumed.status, 0) << resumed.err;
    EXPECT_NE(resumed.err.find("batches of an evaluation that was interrupted"), std::string::npos) << resumed.err;
    EXPECT_EQ(result("resumed"), result("whole"));
    EXPECT_FALSE(fs::exists(dir_ / "journal"));
  }
}

}  // namespace
}  // namespace shiftrt
