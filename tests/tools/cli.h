// SPDX-License-Identifier: Apache-2.0
// The command line from outside: the program runs on a small random model, and its status, output and files are read.
#pragma once

#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <csignal>
#include <cstdio>
#include <filesystem>
#include <iterator>
#include <nlohmann/json.hpp>
#include <sstream>
#include <string>
#include <utility>
#include <vector>

#include "models/weights.h"
#include "runtime/files.h"
#include "tests/test_directory.h"
#include "tests/write_text.h"

namespace shiftrt {

namespace fs = std::filesystem;
using Json = nlohmann::json;

constexpr int64_t kLayers = 4, kHidden = 32, kVocab = 544, kContext = 128;

struct Outcome {
  int status = 0;
  std::string out, err;
};

// Starts the program as a child with its standard error in `err`. The child calls `prepare` first.
template <typename Prepare>
pid_t StartPrepared(const std::vector<std::string>& arguments, const fs::path& err, Prepare&& prepare,
                    const fs::path& program = SHIFTRT_TOOL) {
  std::vector<const char*> argv = {program.c_str()};
  for (const std::string& argument : arguments) argv.push_back(argument.c_str());
  argv.push_back(nullptr);
  const pid_t child = ::fork();
  if (child != 0) return child;
  if (std::freopen(err.c_str(), "w", stderr) == nullptr) _exit(99);
  prepare();
  ::execv(program.c_str(), const_cast<char* const*>(argv.data()));
  _exit(98);
}

// The same with its standard output in the file `out`.
inline pid_t Start(const std::vector<std::string>& arguments, const fs::path& out, const fs::path& err,
                   const fs::path& program = SHIFTRT_TOOL) {
  return StartPrepared(
      arguments, err,
      [&] {
        if (std::freopen(out.c_str(), "w", stdout) == nullptr) _exit(99);
      },
      program);
}

// Exit status; 128 + signal for a crash.
inline int Wait(pid_t child) {
  int status = 0;
  ::waitpid(child, &status, 0);
  return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
}

// The status of the program, whose child process calls `prepare` first; its standard error is in `err`.
template <typename Prepare>
int StatusOf(const std::vector<std::string>& arguments, const fs::path& err, Prepare&& prepare) {
  return Wait(StartPrepared(arguments, err, prepare));
}

// True if the child has ended; Wait() must still be called.
inline bool Ended(pid_t child) {
  siginfo_t info{};
  return ::waitid(P_PID, child, &info, WEXITED | WNOHANG | WNOWAIT) == 0 && info.si_pid == child;
}

inline std::vector<std::string> Split(const std::string& text) {
  std::istringstream words(text);
  return {std::istream_iterator<std::string>(words), {}};
}

inline std::string Words(int64_t count) {
  const char* const words[] = {"the", "sea", "was", "calm", "and", "nobody", "spoke", "of", "home"};
  std::string text;
  for (int64_t i = 0; i < count; ++i) text += std::string(words[(i * i + 3 * i) % 9]) + (i % 7 == 6 ? ".\n" : " ");
  return text;
}

// Rows of PIQA that begin with a number each, so that none is another's prefix.
inline std::string PiqaRows(int count) {
  std::string rows;
  for (int i = 0; i < count; ++i)
    rows +=
        Json{{"goal", std::to_string(i) + " " + Words(10)}, {"sol1", Words(i % 20)}, {"sol2", Words(40)}, {"label", 1}}
            .dump() +
        "\n";
  return rows;
}

inline std::string EvalData() { return (TestDirectory() / "goldens/eval/data").string(); }

class Cli : public ::testing::Test {
 protected:
  void SetUp() override {
    ASSERT_NE(::mkdtemp(root_.data()), nullptr);
    dir_ = root_;
    ::setenv("XDG_CACHE_HOME", Path("cache").c_str(), 1);  // for the program, whose caches are then the test's own
    ::setenv("HF_HUB_OFFLINE", "1", 1);
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
      fs::copy_file(TestDirectory() / "goldens/tokenizers/gpt2-json" / file, dir_ / name / file);
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
    const auto given = [&](const char* option) { return std::find(more.begin(), more.end(), option) != more.end(); };
    // A repair of random weights is often left out; a test of what it is needs it.
    if (command == "run" && !given("--gate") && !given("--no-gate")) more.emplace_back("--no-gate");
    if (command != "tokenize") more.insert(more.begin(), {"--threads", "1"});
    more.insert(more.begin(), {command, "--model", Path(model)});
    return Call(more);
  }
  // A `run` of `more` that has all else it needs.
  Outcome Run(std::vector<std::string> more) const {
    const auto given = [&](const char* option) { return std::find(more.begin(), more.end(), option) != more.end(); };
    if (!given("--correction") && !given("--lra")) more.insert(more.end(), {"--lra", "4"});
    const std::pair<const char*, std::string> defaults[] = {{"--calib", Path("calibration.txt:16x64")},
                                                            {"--text", Path("heldout.txt")},
                                                            {"--prompt", "the sea was"},
                                                            {"--max-tokens", "12"}};
    for (const auto& [option, value] : defaults)
      if (!given(option)) more.insert(more.end(), {option, value});
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

}  // namespace shiftrt
