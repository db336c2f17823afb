// The command line from outside: the program runs on a small random model, and its status, output and files are read.
#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>
#include <zlib.h>

#include <algorithm>
#include <cmath>
#include <csignal>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <nlohmann/json.hpp>
#include <sstream>

#include "models/weights.h"
#include "runtime/files.h"
#include "tests/file_size_limit.h"
#include "tests/write_text.h"

namespace shiftrt {
namespace {

namespace fs = std::filesystem;
using Json = nlohmann::json;

constexpr int64_t kLayers = 4, kHidden = 32, kVocab = 544, kContext = 128;

struct Outcome {
  int status = 0;
  std::string out, err;
};

// The program as a child, its standard output in a file `out` and its standard error in `err`.
pid_t Start(const std::vector<std::string>& arguments, const fs::path& out, const fs::path& err,
            const fs::path& program = SHIFTRT_TOOL) {
  std::vector<const char*> argv = {program.c_str()};
  for (const std::string& argument : arguments) argv.push_back(argument.c_str());
  argv.push_back(nullptr);
  const pid_t child = ::fork();
  if (child != 0) return child;
  if (std::freopen(out.c_str(), "w", stdout) == nullptr || std::freopen(err.c_str(), "w", stderr) == nullptr) _exit(99);
  ::execv(program.c_str(), const_cast<char* const*>(argv.data()));
  _exit(98);
}

// Exit status; 128 + signal for a crash.
int Wait(pid_t child) {
  int status = 0;
  ::waitpid(child, &status, 0);
  return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
}

// Whether the child has ended; Wait() is still to come.
bool Ended(pid_t child) {
  siginfo_t info{};
  return ::waitid(P_PID, child, &info, WEXITED | WNOHANG | WNOWAIT) == 0 && info.si_pid == child;
}

std::vector<std::string> Split(const std::string& text) {
  std::istringstream words(text);
  return {std::istream_iterator<std::string>(words), {}};
}

std::string Words(int64_t count) {
  const char* const words[] = {"the", "sea", "was", "calm", "and", "nobody", "spoke", "of", "home"};
  std::string text;
  for (int64_t i = 0; i < count; ++i) text += std::string(words[(i * i + 3 * i) % 9]) + (i % 7 == 6 ? ".\n" : " ");
  return text;
}

class Cli : public ::testing::Test {
 protected:
  void SetUp() override {
    ASSERT_NE(::mkdtemp(root_.data()), nullptr);
    dir_ = root_;
    WriteModel("model");
    WriteText(dir_ / "calibration.txt", Words(3000));
    WriteText(dir_ / "heldout.txt", Words(1001));
  }
  void TearDown() override { fs::remove_all(dir_); }

  // A model of random weights and a tokenizer, its configuration changed as `changes` say.
  void WriteModel(const std::string& name, const Json& changes = Json::object()) {
    Json config = {{"architectures", {"LlamaForCausalLM"}},
                   {"model_type", "llama"},
                   {"hidden_act", "silu"},
                   {"hidden_size", kHidden},
                   {"intermediate_size", 48},
                   {"num_hidden_layers", kLayers},
                   {"num_attention_heads", 4},
                   {"num_key_value_heads", 2},
                   {"vocab_size", kVocab},
                   {"max_position_embeddings", kContext},
                   {"rms_norm_eps", 1e-5},
                   {"rope_theta", 10000.0},
                   {"tie_word_embeddings", false}};
    config.update(changes);
    WriteText(dir_ / "shape.json", config.dump());
    WriteRandomCheckpoint(dir_ / "shape.json", DType::kFloat32, 7, dir_ / name);
    for (const char* file : {"tokenizer.json", "tokenizer_config.json"})
      fs::copy_file(fs::path(SHIFTRT_TEST_DIR) / "goldens/tokenizers/gpt2-json" / file, dir_ / name / file);
  }

  std::string Path(const std::string& name) const { return (dir_ / name).string(); }
  Json ReadJson(const std::string& name) const { return Json::parse(ReadFile(dir_ / name)); }

  Outcome Call(const std::vector<std::string>& arguments) const {
    Outcome outcome;
    outcome.status = Wait(Start(arguments, dir_ / "stdout", dir_ / "stderr"));
    outcome.out = ReadFile(dir_ / "stdout");
    outcome.err = ReadFile(dir_ / "stderr");
    return outcome;
  }
  Outcome Command(const std::string& command, std::vector<std::string> more, const std::string& model = "model") const {
    more.insert(more.begin(), {command, "--model", Path(model), "--threads", "1"});
    return Call(more);
  }
  // A `run` of `more` that has all else it needs.
  Outcome Run(std::vector<std::string> more) const {
    const std::pair<const char*, std::string> defaults[] = {{"--calib", Path("calibration.txt:16x64")},
                                                            {"--text", Path("heldout.txt")},
                                                            {"--lra", "4"},
                                                            {"--prompt", "the sea was"},
                                                            {"--max-tokens", "12"}};
    for (const auto& [option, value] : defaults)
      if (std::find(more.begin(), more.end(), option) == more.end()) more.insert(more.end(), {option, value});
    more.push_back("--quiet");
    return Command("run", more);
  }

  std::string root_ = (fs::temp_directory_path() / "shiftrt-cli-XXXXXX").string();
  fs::path dir_;
};

#define EXPECT_FAILS(outcome, expected_status, text)                   \
  do {                                                                 \
    const Outcome result = (outcome);                                  \
    EXPECT_EQ(result.status, expected_status) << result.err;           \
    EXPECT_NE(result.err.find(text), std::string::npos) << result.err; \
  } while (false)

TEST_F(Cli, HelpComesWithExamplesAndTheVersionIsThere) {
  EXPECT_NE(Call({}).out.find("generate"), std::string::npos);
  EXPECT_EQ(Call({"--version"}).status, 0);
  for (const char* command : {"run", "sweep", "generate", "inspect", "ppl", "eval", "tokenize", "dump"}) {
    const Outcome help = Call({command, "--help"});
    EXPECT_EQ(help.status, 0) << command;
    EXPECT_NE(help.out.find("Example"), std::string::npos) << command;
  }
}

TEST_F(Cli, WrongUsageIsStatusTwo) {
  EXPECT_EQ(Call({"frobnicate"}).status, 2);
  EXPECT_EQ(Run({"--frobnicate"}).status, 2);
  EXPECT_EQ(Run({"--threads", "many"}).status, 2);
  EXPECT_EQ(Command("generate", {}).status, 2);
  EXPECT_FAILS(Call({"runn"}), 2, "no command \"runn\"");
  EXPECT_FAILS(Run({"--prune", "guess:0.5"}), 2, "guess");
  EXPECT_FAILS(Run({"--prune", "reverse:4", "--lra", "4"}), 2, "4 of 4");
  EXPECT_FAILS(Run({"--prune", "reverse:0.1", "--lra", "4"}), 2, "removes none");
  EXPECT_FAILS(Run({"--prune", "reverse:1", "--lra", "33"}), 2, "33");
  EXPECT_FAILS(Run({"--lra", "0"}), 2, "--lra 0");
  EXPECT_FAILS(Run({"--lambda", "-1"}), 2, "-1");
  EXPECT_FAILS(Run({"--device", "cuda:9"}), 2, "--device cuda:9");
  EXPECT_FAILS(Run({"--device", "cuda:x"}), 2, "expected auto, cpu or cuda[:N]");
  EXPECT_FAILS(Command("run", {"--prune", "reverse:1", "--lra", "4"}), 2, "--calib");
  EXPECT_FAILS(Command("dump", {"--tokens", "1 2", "--out", Path("d")}), 2, "--logits");
}

TEST_F(Cli, WhatCannotBeDoneIsStatusOneAndNamed) {
  EXPECT_FAILS(Call({"ppl", "--model", "no-such-model", "--text", Path("heldout.txt")}), 1, "no-such-model");
  EXPECT_FAILS(Command("ppl", {"--text", Path("none.txt")}), 1, "none.txt");
  WriteText(dir_ / "empty.txt", "");
  EXPECT_FAILS(Command("run", {"--lra", "4", "--calib", Path("empty.txt")}), 1, "empty.txt");
  WriteText(dir_ / "short.txt", "the sea");
  EXPECT_FAILS(Command("run", {"--lra", "4", "--calib", Path("short.txt")}), 1, "short.txt");
  const Outcome too_long = Command("generate", {"--prompt", Words(500)});
  EXPECT_FAILS(too_long, 1, "context of 128");
  EXPECT_EQ(too_long.out, "");
  EXPECT_FAILS(Run({"--prompt", Words(500)}), 1, "context of 128");
  EXPECT_FAILS(Run({"--prompt", ""}), 1, "prompt is empty");
  WriteText(dir_ / "latin1.txt", Words(400) + "caf\xE9 " + Words(400));
  for (const char* option : {"--calib", "--text"}) EXPECT_FAILS(Run({option, Path("latin1.txt")}), 1, "latin1.txt");
  EXPECT_FAILS(Command("ppl", {"--text", Path("latin1.txt")}), 1, "latin1.txt: text is not valid UTF-8 at byte");
  EXPECT_FAILS(Command("generate", {"--prompt", "caf\xE9"}), 1, "not valid UTF-8");
  EXPECT_FAILS(Command("ppl", {"--text", Path("empty.txt")}), 1, "window");
  EXPECT_FAILS(Command("dump", {"--tokens", "1 99999", "--logits", "--out", Path("d")}), 1, "99999");
  EXPECT_FALSE(fs::exists(dir_ / "d"));
}

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

TEST_F(Cli, InspectShowsWhatASavedModelIsMadeOf) {
  const std::vector<std::string> run = {"--prune", "layers=1,2", "--lra", "8", "--merge", "lowrank", "--save"};
  for (const bool with_weights : {false, true}) {
    std::vector<std::string> arguments = run;
    arguments.push_back(Path("saved"));
    if (with_weights) arguments.push_back("--save-weights");
    ASSERT_EQ(Run(arguments).status, 0);
    const Outcome outcome = Command("inspect", {}, "saved");
    EXPECT_EQ(outcome.status, 0) << outcome.err;
    for (const char* words : {"2 of 4 layers", "layers removed: 1, 2\n", "adapter for", "layers 1,2"})
      EXPECT_NE(outcome.out.find(words), std::string::npos) << words << " in " << outcome.out;
  }
  EXPECT_EQ(Command("inspect", {}).out.find("removed"), std::string::npos);
}

TEST_F(Cli, WithoutHeldOutSamplesThereIsNoR2OfThem) {
  const Outcome outcome =
      Run({"--prune", "reverse:1", "--lra", "4", "--calib", Path("calibration.txt:1x64"), "--json", Path("r.json")});
  ASSERT_EQ(outcome.status, 0) << outcome.err;
  EXPECT_EQ(outcome.out.find("nan"), std::string::npos) << outcome.out;
  EXPECT_TRUE(ReadJson("r.json")["sites"][0]["r2_heldout"].is_null());
}

TEST_F(Cli, TextsMayBeCompressed) {
  const auto perplexity = [&](const char* text) {
    EXPECT_EQ(Command("ppl", {"--text", Path(text), "--json", Path("p.json")}).status, 0);
    return ReadJson("p.json")["mean_nll"].get<double>();
  };
  const gzFile out = gzopen(Path("heldout.txt.gz").c_str(), "wb");
  ASSERT_GT(gzputs(out, ReadFile(dir_ / "heldout.txt").c_str()), 0);
  gzclose(out);
  EXPECT_EQ(perplexity("heldout.txt.gz"), perplexity("heldout.txt"));
  fs::resize_file(dir_ / "heldout.txt.gz", 100);
  EXPECT_FAILS(Command("ppl", {"--text", Path("heldout.txt.gz")}), 1, "heldout.txt.gz: the gzip data breaks off");
}

TEST_F(Cli, ATokenizerOfAnotherModelIsRefused) {
  WriteModel("other", {{"vocab_size", 100}});
  for (const char* command : {"inspect", "generate"}) {
    std::vector<std::string> more;
    if (command == std::string("generate")) more = {"--prompt", "the sea"};
    EXPECT_FAILS(Command(command, more, "other"), 1, "do not belong together");
  }
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

TEST_F(Cli, SavedSumsGiveTheSameRunWithoutCalibrationText) {
  const std::vector<std::string> recipe = {"--prune",           "bi:2",  "--lra", "8", "--quiet", "--text",
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
  fs::resize_file(dir_ / "gram", fs::file_size(dir_ / "gram") / 2);
  EXPECT_FAILS(Run({"--lra", "8", "--load-gram", Path("gram")}), 1, "gram");
}

TEST_F(Cli, SweepWritesACellALine) {
  const auto sweep = [&](std::vector<std::string> more) {
    more.insert(more.begin(), {"--calib", Path("calibration.txt:16x64"), "--text", Path("heldout.txt"), "--quiet"});
    return Command("sweep", more);
  };
  const Outcome outcome =
      sweep({"--prune", "bi:1,reverse*:2", "--lra", "4,full", "--factorize", "rrr,svd", "--samples", "8,16", "--seeds",
             "0,1", "--csv", Path("s.csv"), "--json", Path("s.json"), "--report", Path("page")});
  ASSERT_EQ(outcome.status, 0) << outcome.err;
  const Json rows = ReadJson("s.json")["rows"];
  ASSERT_EQ(rows.size(), size_t{2 * 2 * 2 * 2 * 2});
  const std::string csv = ReadFile(dir_ / "s.csv");
  EXPECT_EQ(std::count(csv.begin(), csv.end(), '\n'), 33);
  EXPECT_NE(csv.find("\"reverse*:2\",1 2,0,8,"), std::string::npos) << csv;
  const std::string page = ReadFile(dir_ / "page/index.html");
  for (const char* chart : {"by rank", "by layers removed", "by calibration samples"})
    EXPECT_NE(page.find(chart), std::string::npos) << chart;
  EXPECT_TRUE(fs::exists(dir_ / "page/perplexity-by-rank.svg"));

  // A cell is what `run` finds: the pruned model's perplexity to the bit, the corrected one's up to the order of sums.
  ASSERT_EQ(Run({"--prune", "reverse*:2", "--lra", "4", "--factorize", "rrr", "--json", Path("r.json")}).status, 0);
  const Json variants = ReadJson("r.json")["variants"];
  bool found = false;
  for (const Json& row : rows) {
    if (row["prune"] != "reverse*:2" || row["rank"] != "4" || row["samples"] != 16 || row["seed"] != 0 ||
        row["factorization"] != "rrr")
      continue;
    found = true;
    EXPECT_EQ(row["perplexity"]["original"], variants[0]["perplexity"]);
    EXPECT_EQ(row["perplexity"]["pruned"], variants[1]["perplexity"]);
    EXPECT_NEAR(row["perplexity"]["corrected"].get<double>() / variants[2]["perplexity"].get<double>(), 1, 1e-4);
  }
  EXPECT_TRUE(found);

  const Outcome preset = sweep({"--preset", "paper-rank", "--samples", "16", "--json", Path("p.json")});
  ASSERT_EQ(preset.status, 0) << preset.err;
  EXPECT_EQ(ReadJson("p.json")["rows"].size(), size_t{5});  // 4, 8, 16, 32 and full: the model is 32 wide
  EXPECT_FAILS(sweep({"--preset", "paper-guess"}), 2, "paper-table1");
  EXPECT_FAILS(sweep({"--prune", "bi:1", "--lra", "33"}), 2, "33");
  EXPECT_FAILS(sweep({"--samples", "0"}), 2, "samples");
}

TEST_F(Cli, RunDrawsAReport) {
  ASSERT_EQ(Run({"--prune", "reverse*:2", "--lra", "8", "--report", Path("page")}).status, 0);
  const std::string page = ReadFile(dir_ / "page/index.html");
  for (const char* part : {"Comparison", "Layer scores: bi", "Layer scores: magnitude-l1", "Singular values",
                           "Energy explained", "held-out tokens", "Cosine", "Hidden states", "the sea was"})
    EXPECT_NE(page.find(part), std::string::npos) << part;
  for (const char* chart : {"r2", "norm-by-depth", "cosine-by-depth", "hidden-states", "explained-energy"})
    EXPECT_TRUE(fs::exists(dir_ / "page" / (std::string(chart) + ".svg"))) << chart;
}

TEST_F(Cli, DumpHoldsEveryStateAndTheUpdatesAddUp) {
  ASSERT_EQ(Command("dump", {"--tokens", "5, 6 7", "--logits", "--hidden", "--delta", "--out", Path("d")}).status, 0);
  const SafetensorsFile file(dir_ / "d");
  EXPECT_EQ(file.tensors().size(), size_t{1 + kLayers + 1 + kLayers});
  EXPECT_EQ(file.tensors().at("logits").shape, (std::vector<int64_t>{3, kVocab}));
  const auto values = [&](const std::string& name) {
    const TensorView& tensor = file.tensors().at(name);
    EXPECT_EQ(tensor.shape, (std::vector<int64_t>{3, kHidden})) << name;
    std::vector<float> out(tensor.elements());
    std::memcpy(out.data(), tensor.data, tensor.bytes());
    return out;
  };
  for (int64_t l = 0; l < kLayers; ++l) {
    const auto before = values("hidden." + std::to_string(l)), after = values("hidden." + std::to_string(l + 1));
    const auto delta = values("delta." + std::to_string(l));
    for (size_t i = 0; i < delta.size(); ++i) EXPECT_NEAR(before[i] + delta[i], after[i], 1e-5) << l << " " << i;
  }
}

TEST_F(Cli, PerplexityIsTheOneTheLogitsGive) {
  std::istringstream ids(Command("tokenize", {"--ids", "--file", Path("heldout.txt")}).out);
  std::vector<int32_t> tokens(kContext);
  std::string first_window;
  for (int32_t& id : tokens) {
    ASSERT_TRUE(ids >> id);
    first_window += std::to_string(id) + " ";
  }
  WriteText(dir_ / "ids", first_window);
  const std::string text = Command("tokenize", {"--decode", "--file", Path("ids")}).out;
  WriteText(dir_ / "window.txt", text.substr(0, text.size() - 1));  // without the line's end
  ASSERT_EQ(Command("ppl", {"--text", Path("window.txt"), "--protocol", "seq128", "--json", Path("p.json")}).status, 0);
  ASSERT_EQ(Command("dump", {"--tokens", Path("ids"), "--logits", "--out", Path("d")}).status, 0);

  const SafetensorsFile file(dir_ / "d");
  const auto* logits = static_cast<const float*>(file.tensors().at("logits").data);
  double nll = 0;
  for (int64_t t = 0; t + 1 < kContext; ++t) {
    double sum = 0;
    for (int64_t v = 0; v < kVocab; ++v) sum += std::exp(static_cast<double>(logits[t * kVocab + v]));
    nll += std::log(sum) - logits[t * kVocab + tokens[t + 1]];
  }
  const Json json = ReadJson("p.json");
  EXPECT_EQ(json["predicted"], kContext - 1);
  EXPECT_NEAR(json["mean_nll"].get<double>(), nll / (kContext - 1), 1e-5);
}

TEST_F(Cli, TokenizeGoesBothWays) {
  const std::string text = "the sea was calm \xE2\x82\xAC";
  std::string ids = Command("tokenize", {"--ids", text}).out;
  // This tokenizer puts a space before the first word; its decoder, like the reference's, keeps it.
  EXPECT_EQ(Command("tokenize", {"--decode", ids}).out, " " + text + "\n");
  for (const char* not_ids : {"1 two", "1x", "two", "99999999999", "1;2"})
    EXPECT_EQ(Command("tokenize", {"--decode", not_ids}).status, 2) << not_ids;
  EXPECT_EQ(Command("tokenize", {"--decode", "999999"}).status, 1);
  EXPECT_EQ(Command("tokenize", {"\xFF"}).status, 1);
}

TEST_F(Cli, TokenizeTakesManyTexts) {
  WriteText(dir_ / "texts", std::string("the sea\0\0of\nhome\0", 17));
  const auto ids = [&](const char* text) { return Command("tokenize", {"--ids", text}).out; };
  EXPECT_EQ(Command("tokenize", {"--ids", "--null", "--file", Path("texts")}).out,
            ids("the sea") + "\n" + ids("of\nhome"));
  EXPECT_EQ(Command("tokenize", {"--ids", "--null", "text"}).status, 2);
}

TEST_F(Cli, TokenizeNeedsNoMoreThanATokenizer) {
  const fs::path directory = fs::path(SHIFTRT_TEST_DIR) / "goldens/tokenizers/gpt2-json";
  EXPECT_EQ(Call({"tokenize", "--model", directory, "--ids", "the sea"}).out,
            Command("tokenize", {"--ids", "the sea"}).out);
}

TEST_F(Cli, ATextMayBeTheNameOfACommand) {
  const Outcome outcome = Command("tokenize", {"--ids", "run"});
  EXPECT_EQ(outcome.status, 0) << outcome.err;
  EXPECT_EQ(Command("tokenize", {"--decode", outcome.out}).out, " run\n");
}

std::string EvalData() { return std::string(SHIFTRT_TEST_DIR) + "/goldens/eval/data"; }

TEST_F(Cli, EvalComparesTheVariantsOfASavedModel) {
  ASSERT_EQ(Run({"--prune", "reverse*:1", "--lra", "8", "--save", Path("saved")}).status, 0);
  const std::vector<std::string> arguments = {"--tasks", "paper7,mmlu", "--data",       EvalData(), "--metrics",
                                              "all",     "--json",      Path("e.json"), "--items",  Path("items.jsonl"),
                                              "--quiet", "--journal",   Path("journal")};
  const Outcome outcome = Command("eval", arguments, "saved");
  ASSERT_EQ(outcome.status, 0) << outcome.err;
  for (const char* word : {"BoolQ", "PARTIAL", "/4", "acc_norm", "to original", "mean of 7 tasks", "BOS auto"})
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
    EXPECT_EQ(variant["metrics"]["acc"].contains("to_first"), v > 0);
  }
  EXPECT_EQ(json["mean"][2]["tasks"], 7);
  EXPECT_TRUE(json["mean"][2]["to_first"]["standard_error"].is_number());

  std::istringstream items(ReadFile(dir_ / "items.jsonl"));
  int64_t lines = 0;
  for (std::string line; std::getline(items, line); ++lines) {
    const Json item = Json::parse(line);
    EXPECT_EQ(item["variants"]["lra"]["log_likelihoods"].size(), item["continuation_tokens"].size());
  }
  EXPECT_EQ(lines, 4 + 3 + 3 + 3 + 3 + 2 + 2 + 6);
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
}

TEST_F(Cli, ShiftrtEvalIsTheSameProgram) {
  const fs::path other = fs::path(SHIFTRT_TOOL).parent_path() / "shiftrt-eval";
  const fs::path out = dir_ / "stdout", err = dir_ / "stderr";
  const std::vector<std::string> arguments = {"--model", Path("model"), "--tasks", "piqa",
                                              "--data",  EvalData(),    "--quiet"};
  ASSERT_EQ(Wait(Start(arguments, out, err, other)), 0) << ReadFile(err);
  EXPECT_EQ(ReadFile(out), Command("eval", {"--tasks", "piqa", "--data", EvalData(), "--quiet"}).out);
}

TEST_F(Cli, EvalRefusesWhatItCannotDo) {
  EXPECT_FAILS(Command("eval", {"--tasks", "piqa,guess", "--data", EvalData()}), 2, "guess");
  EXPECT_FAILS(Command("eval", {"--tasks", "piqa", "--data", EvalData(), "--variants", "lra"}), 2, "only original");
  EXPECT_FAILS(
      Command("eval", {"--tasks", "piqa", "--data", EvalData(), "--prune", "reverse*:1", "--variants", "fused"}), 2,
      "only original, pruned, lra here");
  EXPECT_FAILS(Command("eval", {"--tasks", "piqa", "--data", EvalData(), "--lra", "8"}), 2, "requires --prune");
  EXPECT_FAILS(Command("eval", {"--tasks", "lambada", "--data", EvalData(), "--shots", "1"}), 2, "without shots");
  EXPECT_FAILS(Command("eval", {"--tasks", "piqa", "--data", EvalData(), "--bos", "always"}), 2, "no BOS");
  EXPECT_FAILS(Command("eval", {"--tasks", "piqa", "--data", Path("model")}), 1, "piqa_validation*.jsonl");
  WriteText(dir_ / "bad.jsonl", "{\"goal\": \"g\", \"sol1\": \"a\"}\n");
  EXPECT_FAILS(Command("eval", {"--tasks", "piqa", "--data", "piqa=" + Path("bad.jsonl")}), 1, "bad.jsonl:1");
}

// SIGKILL at several points of an evaluation of some twenty-five batches; the last line of the journal is then torn,
// too.
TEST_F(Cli, AKilledEvalGoesOnToTheSameBits) {
  std::string rows;  // that begin with a number each, so that none is another's prefix
  for (int i = 0; i < 600; ++i)
    rows +=
        Json{{"goal", std::to_string(i) + " " + Words(10)}, {"sol1", Words(i % 20)}, {"sol2", Words(40)}, {"label", 1}}
            .dump() +
        "\n";
  WriteText(dir_ / "rows.jsonl", rows);
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
    std::ifstream journal(dir_ / "journal");  // which the program may just have removed
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

TEST_F(Cli, CtrlCStopsWithStatus130) {
  WriteModel("long", {{"max_position_embeddings", 1 << 17}});
  const pid_t child =
      Start({"generate", "--model", Path("long"), "--prompt", "the", "--max-tokens", "100000", "--threads", "1"},
            dir_ / "stdout", dir_ / "stderr");
  while (!fs::exists(dir_ / "stdout") || fs::file_size(dir_ / "stdout") == 0) ::usleep(1000);
  ::kill(child, SIGINT);
  EXPECT_EQ(Wait(child), 130);
}

}  // namespace
}  // namespace shiftrt
