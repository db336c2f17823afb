// SPDX-License-Identifier: Apache-2.0
// GPUs of several processes: emulated devices in processes that mpirun has started. Every result equals that of one
// process with one device, to the last bit.
#include "tests/tools/processes_cli.h"

namespace shiftrt {
namespace {

class GpusInProcesses : public ProcessesCli {
 protected:
  void SetUp() override {
    ::setenv("SHIFTRT_EMULATED_DEVICES", "3", 1);
    ProcessesCli::SetUp();
    if (IsSkipped()) return;
    fs::remove_all(dir_ / "model");
    WriteModel("model", {{"hidden_size", 64},
                         {"head_dim", 64},
                         {"num_hidden_layers", 4},
                         {"num_attention_heads", 1},
                         {"num_key_value_heads", 1}});
    WriteText(dir_ / "heldout.txt", Words(400));
  }
  void TearDown() override {
    ::unsetenv("SHIFTRT_EMULATED_WRONG_ORDER");
    ProcessesCli::TearDown();
  }

  // The lines of tests/emulated/worker.cc.
  Outcome Worker(int processes, const std::vector<std::string>& arguments) const {
    std::vector<std::string> all = {"-n", std::to_string(processes), SHIFTRT_WORKER, Path("model")};
    all.insert(all.end(), arguments.begin(), arguments.end());
    Outcome outcome;
    outcome.status = Wait(Start(all, dir_ / "stdout", dir_ / "stderr", launcher_));
    outcome.out = ReadFile(dir_ / "stdout");
    outcome.err = ReadFile(dir_ / "stderr");
    return outcome;
  }
  std::string Found(int processes, const std::string& device) const {
    const Outcome outcome = Worker(processes, {device});
    EXPECT_EQ(outcome.status, 0) << processes << " processes on " << device << ": " << outcome.err;
    EXPECT_NE(outcome.out, "");
    return outcome.out;
  }
  // Expects the JSON of a command in one process, but for times. A training is saved under the command's name and the
  // number of processes.
  void ExpectSameNumbers(const std::vector<std::string>& command, int several) const {
    const auto numbers = [&](int processes) {
      const std::string name = command.front() + std::to_string(processes);
      std::vector<std::string> all = command;
      for (const std::string& word : {std::string("--model"), Path("model"), std::string("--device"),
                                      std::string("cuda"), std::string("--threads"), std::string("1"),
                                      std::string("--quiet"), std::string("--json"), Path(name + ".json")})
        all.push_back(word);
      if (command.front() == "finetune") all.insert(all.end(), {"--save", Path(name)});
      const Outcome outcome = In(processes, all);
      EXPECT_EQ(outcome.status, 0) << command.front() << ": " << outcome.err;
      return Timeless(ReadJson(name + ".json"));
    };
    const Json expected = numbers(1);
    EXPECT_EQ(numbers(several), expected) << command.front();
  }
};

TEST_P(GpusInProcesses, TheMethodGivesTheSameBits) {
  const std::string expected = Found(1, "cuda");
  EXPECT_EQ(Found(2, "cuda"), expected);
  EXPECT_EQ(Found(3, "cuda:2,0,1"), expected);
  EXPECT_EQ(Found(3, "cuda:0,0,1"), expected) << "two processes with one GPU, whose rows go through the host";
  ::setenv("SHIFTRT_EMULATED_WRONG_ORDER", "1", 1);
  EXPECT_NE(Found(3, "cuda"), expected) << "a wrong order of additions is not noticed";
}

TEST_P(GpusInProcesses, ASplitModelGivesTheSameBits) {
  const std::string all = Found(1, "cuda"), expected = all.substr(0, all.find("correctable"));
  EXPECT_NE(expected, "");
  for (const int processes : {2, 4}) {  // one group, and two that share the batches
    const Outcome outcome = Worker(processes, {processes == 2 ? "cuda" : "cuda:0,1,2,0", "split", "2"});
    EXPECT_EQ(outcome.status, 0) << outcome.err;
    EXPECT_EQ(outcome.out, expected) << processes << " processes";
  }
  const auto reply = [&](int processes, const std::string& command) {
    std::vector<std::string> words = Split(command);
    for (const std::string& word :
         {std::string("--model"), Path("model"), std::string("--device"), std::string("cuda"), std::string("--threads"),
          std::string("1"), std::string("--quiet"), std::string("--split"), std::to_string(processes)})
      words.push_back(word);
    const Outcome outcome = In(processes, words);
    EXPECT_EQ(outcome.status, 0) << outcome.err;
    return outcome.out.substr(0, outcome.out.find(" tokens,"));
  };
  for (const std::string& command : {std::string("generate --prompt sea --max-tokens 5 --temperature 0.7"),
                                     "ppl --protocol seq128 --text " + Path("heldout.txt")})
    EXPECT_EQ(reply(3, command), reply(1, command));
}

TEST_P(GpusInProcesses, MemoryThatOneLacksAllLack) {
  const auto without_passes = [](const std::string& found) { return found.substr(0, found.find(" passes")); };
  const Outcome enough = Worker(2, {"cuda", "memory", "100000000"});
  ASSERT_EQ(enough.status, 0) << enough.err;
  bool divided = false;
  for (int64_t memory = 1'040'000; memory > 0; memory -= 60'000) {
    const Outcome outcome = Worker(2, {"cuda", "memory", std::to_string(memory)});
    if (outcome.status != 0) {
      EXPECT_NE(outcome.err.find("process 1 of 2 on"), std::string::npos) << outcome.err;
      EXPECT_NE(outcome.err.find("the GPU is out of memory"), std::string::npos) << outcome.err;
      break;
    }
    EXPECT_EQ(without_passes(outcome.out), without_passes(enough.out));
    divided = divided || outcome.out != enough.out;
  }
  EXPECT_TRUE(divided);
}

TEST_P(GpusInProcesses, EveryCommandGivesTheSameNumbers) {
  const std::vector<std::string> commands[] = {
      {"ppl", "--text", Path("heldout.txt"), "--protocol", "seq128"},
      {"eval", "--tasks", "piqa", "--data", Piqa(6)},
      {"sweep", "--prune", "reverse*:1", "--lra", "4,full", "--calib", Path("calibration.txt:8x32"), "--text",
       Path("heldout.txt"), "--text-tokens", "128"},
      Split("finetune --length 16 --pass-tokens 32 --batch 4 --validation 2 --rate 0.01 --method lora --steps 2 "
            "--epochs 1000 --calib " +
            Path("calibration.txt"))};
  for (const std::vector<std::string>& command : commands)
    ExpectSameNumbers(command, command.front() == "finetune" ? 3 : 2);
  EXPECT_EQ(fmt::format("{}", fmt::join(Differences("finetune1", "finetune3"), ", ")), "");
}

// Mixtures of experts and recurrent layers: calibration, scores and training.
TEST_P(GpusInProcesses, MixedLayersGiveTheSameNumbers) {
  Json mixed = MixedLayers();
  mixed.update({{"hidden_size", 64}, {"head_dim", 64}, {"num_attention_heads", 1}, {"num_key_value_heads", 1}});
  fs::remove_all(dir_ / "model");
  WriteModel("model", mixed);
  ExpectSameNumbers({"sweep", "--prune", "bi:1", "--correction", "lra", "--lra", "4", "--calib",
                     Path("calibration.txt:8x32"), "--text", Path("heldout.txt"), "--text-tokens", "128"},
                    3);
  ExpectSameNumbers({"eval", "--tasks", "piqa", "--data", Piqa(6)}, 2);
  ExpectSameNumbers(Split("finetune --length 16 --pass-tokens 32 --batch 4 --validation 2 --rate 0.01 --method lora "
                          "--targets q,k,v,o --steps 2 --epochs 1000 --calib " +
                          Path("calibration.txt")),
                    3);
  EXPECT_EQ(fmt::format("{}", fmt::join(Differences("finetune1", "finetune3"), ", ")), "");
}

TEST_P(GpusInProcesses, MoreThanThereAreIsRefused) {
  for (const auto& [device, message] :
       {std::pair("cuda", " for 3 GPUs: start as many as there are GPUs, name a GPU once for each of its processes"),
        {"cuda:1", " for 1 GPU: start"}}) {
    const Outcome outcome = In(4, {"ppl", "--model", Path("model"), "--text", Path("heldout.txt"), "--device", device});
    EXPECT_NE(outcome.status, 0);
    EXPECT_NE(outcome.err.find(message), std::string::npos) << outcome.err;
  }
}

INSTANTIATE_TEST_SUITE_P(Launchers, GpusInProcesses,
                         ::testing::Values(Launcher{"mpirun.openmpi", "OMPI_COMM_WORLD_RANK"}),
                         [](const auto& info) { return std::string(info.param.name).substr(7); });

}  // namespace
}  // namespace shiftrt
