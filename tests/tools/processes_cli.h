// SPDX-License-Identifier: Apache-2.0
// The program in several processes, which a launcher has started.
#pragma once

#include <cstdlib>
#include <fstream>
#include <map>
#include <sstream>

#include "tests/tools/cli.h"

namespace shiftrt {

struct Launcher {
  const char* name;      // name of its program, which is searched on the PATH
  const char* variable;  // with the rank of a process that it has started
};

// Changes of a model's configuration that make its layers, in turns, gated delta networks and attentions with gates,
// and its MLPs mixtures of experts with a shared one.
inline Json MixedLayers() {
  return {{"architectures", {"Qwen3NextForCausalLM"}},
          {"model_type", "qwen3_next"},
          {"layer_types", {"linear_attention", "full_attention", "linear_attention", "full_attention"}},
          {"num_hidden_layers", 4},
          {"head_dim", 16},
          {"linear_conv_kernel_dim", 4},
          {"linear_key_head_dim", 8},
          {"linear_value_head_dim", 16},
          {"linear_num_key_heads", 1},
          {"linear_num_value_heads", 2},
          {"partial_rotary_factor", 0.25},
          {"num_experts", 6},
          {"num_experts_per_tok", 2},
          {"moe_intermediate_size", 16},
          {"shared_expert_intermediate_size", 24},
          {"norm_topk_prob", true}};
}

class ProcessesCli : public Cli, public ::testing::WithParamInterface<Launcher> {
 protected:
  void SetUp() override {
    launcher_ = OnPath(GetParam().name);
    if (launcher_.empty()) GTEST_SKIP() << "there is no " << GetParam().name << " on the PATH";
    // OpenMPI starts nothing as root, on more processes than cores, or without a remote shell, unless it is told to.
    ::setenv("OMPI_ALLOW_RUN_AS_ROOT", "1", 1);
    ::setenv("OMPI_ALLOW_RUN_AS_ROOT_CONFIRM", "1", 1);
    ::setenv("OMPI_MCA_rmaps_base_oversubscribe", "1", 1);
    ::setenv("OMPI_MCA_plm", "isolated", 1);
    ::setenv("ASAN_OPTIONS", "detect_leaks=0", 1);  // MPI leaves memory to the end of the process
    Cli::SetUp();
    WriteText(dir_ / "calibration.txt", Words(30000));
    WriteText(dir_ / "heldout.txt", Words(6000));
  }

  static fs::path OnPath(const std::string& name) {
    std::istringstream path(std::getenv("PATH"));
    for (std::string directory; std::getline(path, directory, ':');)
      if (fs::exists(fs::path(directory) / name)) return fs::path(directory) / name;
    return {};
  }

  std::vector<std::string> Launched(int processes, const std::vector<std::string>& arguments) const {
    std::vector<std::string> all = {"-n", std::to_string(processes), SHIFTRT_TOOL};
    all.insert(all.end(), arguments.begin(), arguments.end());
    return all;
  }
  // One process is started without a launcher.
  Outcome In(int processes, const std::vector<std::string>& arguments) const {
    if (processes == 1) return Call(arguments);
    Outcome outcome;
    outcome.status = Wait(Start(Launched(processes, arguments), dir_ / "stdout", dir_ / "stderr", launcher_));
    outcome.out = ReadFile(dir_ / "stdout");
    outcome.err = ReadFile(dir_ / "stderr");
    return outcome;
  }

  // `command` with text enough for several batches per process, and output that changes with nothing but the numbers.
  std::vector<std::string> Arguments(const std::string& command, const std::vector<std::string>& more) const {
    std::vector<std::string> all = {command, "--model", Path("model"), "--threads", "1", "--quiet"};
    if (command != "eval")
      all.insert(all.end(), {"--calib", Path("calibration.txt:300x64"), "--text", Path("heldout.txt")});
    all.insert(all.end(), more.begin(), more.end());
    return all;
  }
  // The data of a suite of several batches, as --data takes it.
  std::string Piqa(int items = 60) {
    std::string rows;
    for (int i = 0; i < items; ++i)
      rows += Json({{"goal", std::to_string(7919 * i) + Words(9 + i % 7)},
                    {"sol1", Words(5 + i % 11)},
                    {"sol2", Words(20 - i % 5)},
                    {"label", i % 2}})
                  .dump() +
              "\n";
    WriteText(dir_ / "piqa.jsonl", rows);
    return "piqa=" + Path("piqa.jsonl");
  }

  // Every file below a directory, or the one of that name, by its path there; of JSON, what is not measured by a clock.
  std::map<std::string, std::string> Files(const std::string& name) const {
    std::map<std::string, std::string> files;
    if (fs::is_regular_file(dir_ / name)) return {{"", ReadFile(dir_ / name)}};
    for (const auto& entry : fs::recursive_directory_iterator(dir_ / name)) {
      if (!entry.is_regular_file()) continue;
      std::string& bytes = files[fs::relative(entry.path(), dir_ / name).string()] = ReadFile(entry.path());
      if (entry.path().extension() == ".json") bytes = Timeless(Json::parse(bytes)).dump();
    }
    return files;
  }
  // Files that differ, or are in one of the two only, by name: their contents would be hard to read.
  std::vector<std::string> Differences(const std::string& a, const std::string& b) const {
    std::map<std::string, std::string> left = Files(a), right = Files(b);
    std::vector<std::string> names;
    for (const auto& [name, bytes] : left)
      if (!right.contains(name) || right.at(name) != bytes) names.push_back(name);
    for (const auto& [name, bytes] : right)
      if (!left.contains(name)) names.push_back(name);
    return names;
  }

  // Without what a command measures with a clock.
  static Json Timeless(Json json) {
    for (const char* field : {"seconds", "validation_seconds", "tokens_per_second", "processes", "peak_bytes"})
      if (json.is_object()) json.erase(field);
    if (json.is_structured())
      for (Json& value : json) value = Timeless(std::move(value));
    return json;
  }

  // The record without times, without the gain of the repair and without the fidelity, which a model that is split
  // among processes does not have.
  static Json WithoutGain(const Json& record) {
    Json json = Timeless(record);
    for (const char* measured : {"gain", "other_choice"}) {
      json.erase(measured);
      if (json.contains("provenance")) json["provenance"].erase(measured);
    }
    json.erase("fidelity");
    return json;
  }
  // Names the outputs that differ between one process and several. With a split, the record of a saved model is
  // compared without the gain.
  std::vector<std::string> DifferencesOf(const std::string& one, const std::string& several, int split) const {
    std::vector<std::string> names = Differences(one, several);
    if (split == 1) return names;
    const auto record = std::find(names.begin(), names.end(), "shiftrt.json");
    if (record != names.end() &&
        WithoutGain(ReadJson(one + "/shiftrt.json")) == WithoutGain(ReadJson(several + "/shiftrt.json")))
      names.erase(record);
    return names;
  }

  // Runs the command in 1 process and in each of `counts`, and compares JSON, standard output but for times, and what
  // `outputs` are named, whose options get a file each per run. With `split` of them holding a model together.
  void ExpectSame(const std::vector<int>& counts, const std::string& command, const std::vector<std::string>& more,
                  const std::vector<std::string>& outputs, int split = 1) {
    const auto named = [](const std::string& option, int processes) {
      return option.substr(2) + std::to_string(processes);
    };
    const auto run = [&](int processes) {
      std::vector<std::string> arguments = Arguments(command, more);
      arguments.insert(arguments.end(), {"--json", Path(named("--json", processes))});
      if (processes > 1 && split > 1) arguments.insert(arguments.end(), {"--split", std::to_string(split)});
      for (const std::string& option : outputs)
        arguments.insert(arguments.end(), {option, Path(named(option, processes))});
      const Outcome outcome = In(processes, arguments);
      ASSERT_EQ(outcome.status, 0) << processes << " processes: " << outcome.err;
    };
    run(1);
    const Json expected = ReadJson(named("--json", 1));
    EXPECT_FALSE(expected.contains("processes"));
    for (const int processes : counts) {
      run(processes);
      const Json found = ReadJson(named("--json", processes));
      EXPECT_EQ(Timeless(found), split > 1 ? WithoutGain(expected) : Timeless(expected)) << processes << " processes";
      ASSERT_EQ(found["processes"].size(), static_cast<size_t>(processes));
      EXPECT_EQ(found["processes"][processes - 1]["rank"], processes - 1);
      for (int rank = 0; rank < std::min(processes, 3); ++rank)
        EXPECT_GT(found["processes"][rank]["batches"], 0) << "process " << rank << " did nothing";
      for (const std::string& option : outputs)
        EXPECT_TRUE(fs::exists(dir_ / named(option, 1)) &&
                    DifferencesOf(named(option, 1), named(option, processes), split).empty())
            << option << " of " << processes << " processes: "
            << fmt::format("{}", fmt::join(DifferencesOf(named(option, 1), named(option, processes), split), ", "));
    }
  }

  // The process of this test with the rank; 0 if there is none.
  pid_t ProcessOf(int rank) const {
    const std::string variable = GetParam().variable + std::string("=") + std::to_string(rank);
    for (const auto& entry : fs::directory_iterator("/proc")) {
      const pid_t process = std::atoi(entry.path().filename().c_str());
      const auto read = [&](const char* name) {
        // A process may end while its files are read. The operator then sets a flag; an iterator would throw.
        std::ostringstream text;
        text << std::ifstream(entry.path() / name).rdbuf();
        return text.str();
      };
      if (process == 0 || !read("cmdline").starts_with(SHIFTRT_TOOL)) continue;
      if (read("cmdline").find(root_) == std::string::npos) continue;
      std::istringstream environment(read("environ"));
      for (std::string one; std::getline(environment, one, '\0');)
        if (one == variable) return process;
    }
    return 0;
  }

  fs::path launcher_;
};

}  // namespace shiftrt
