// SPDX-License-Identifier: Apache-2.0
// One command in several processes, started by the launchers of OpenMPI and of MPICH that are installed. Every result
// equals that of one process, to the last bit.
#include "tests/tools/processes_cli.h"

#include <random>
#include <set>

#include "runtime/random.h"
#include "tests/tools/campaign.h"

namespace shiftrt {
namespace {

TEST_P(ProcessesCli, RunGivesTheSameBits) {
  ExpectSame({2, 3, 8}, "run", {"--prune", "bi:2", "--lra", "8", "--merge", "lowrank", "--prompt", "the sea was"},
             {"--save"});
}

TEST_P(ProcessesCli, SumsAreTheSameBits) {
  ExpectSame({3}, "run", {"--prune", "correctable:2,rank=4", "--lra", "energy:0.9"}, {"--save", "--save-gram"});
}

TEST_P(ProcessesCli, EveryWayToFitGivesTheSameBits) {
  for (const char* recipe : {"--prune ppl-greedy:2 --lra 4 --calibration-mode drift --token-weight norm",
                             "--prune streamline:2,keep=first:1 --correction joint --lra 4 --heal all",
                             "--prune taylor:2,tokens=512 --correction auto --lra 4 --gate",
                             "--prune correctable-greedy:2,rank=4,keep=first:1 --correction replaceme"})
    ExpectSame({3}, "run", Split(recipe), {"--save"});
}

TEST_P(ProcessesCli, SweepGivesTheSameTable) {
  ExpectSame(
      {2, 3}, "sweep",
      {"--prune", "bi:2,reverse*:1", "--lra", "4,full", "--samples", "40,80", "--eval", "piqa", "--data", EvalData()},
      {"--csv"});
}

TEST_P(ProcessesCli, EvalGivesTheSameScores) {
  ExpectSame({2, 3, 8}, "eval", {"--tasks", "piqa", "--data", Piqa(200), "--metrics", "all"}, {"--items"});
}

// A model split over processes, alone and in groups that share the batches.
class SplitCli : public ProcessesCli {};

TEST_P(SplitCli, RunGivesTheSameBits) {
  const std::vector<std::string> half = Split(
                                     "--prune bi:3,unit=half --lra energy:0.9 --token-weight norm --no-gate "
                                     "--calibration-mode independent"),
                                 block = Split("--prune bi:2 --lra 8 --calibration-mode independent --no-gate");
  // Several processes that hold one model together do not measure what the repair gains, and keep it.
  for (const int split : {2, 4}) ExpectSame({4}, "run", split == 2 ? half : block, {"--save"}, split);
  std::vector<std::string> scored =
      Split("--prune layers=2 --lra full --calibration-mode independent --no-gate --dtype bfloat16 --eval piqa --data");
  scored.push_back(Piqa());
  ExpectSame({3}, "run", scored, {"--save"}, 3);
}

TEST_P(SplitCli, ASavedPlanIsScoredTheSame) {
  ASSERT_EQ(In(1, Arguments("run", {"--prune", "layers=1.mlp-2", "--lra", "4", "--save", Path("out")})).status, 0);
  fs::rename(dir_ / "model", dir_ / "base");
  fs::rename(dir_ / "out", dir_ / "model");
  const std::string saved = ReadFile(dir_ / "model/shiftrt.json"), name = Path("model"), base = Path("base");
  std::string moved = saved;
  moved.replace(moved.find(name), name.size(), base);
  WriteText(dir_ / "model/shiftrt.json", moved);
  for (const int split : {2, 3}) ExpectSame({split}, "eval", {"--tasks", "piqa", "--data", Piqa()}, {"--items"}, split);
}

// The weights that `run --dry-run` predicts for the process that needs the most are compared with those that one has.
TEST_P(SplitCli, ThePlanIsHeldToTheRun) {
  for (const auto& [processes, split] : {std::pair(3, 3), std::pair(4, 2)}) {
    std::vector<std::string> command =
        Arguments("run", Split("--prune reverse*:2 --correction lra --lra 8 --text-tokens 4096"));
    command.insert(command.end(), {"--split", std::to_string(split), "--json", Path("numbers.json")});
    ASSERT_EQ(In(processes, command).status, 0);
    const Json done = ReadJson("numbers.json");
    command.emplace_back("--dry-run");
    ASSERT_EQ(In(1, command).status, 0);
    const Json plan = ReadJson("numbers.json");
    std::set<int64_t> weights;
    for (const Json& process : done["processes"]) weights.insert(process["weight_bytes"].get<int64_t>());
    EXPECT_EQ(plan["job"]["split"], split);
    EXPECT_TRUE(weights.contains(plan["memory"]["weights"].get<int64_t>())) << plan["memory"].dump();
  }
}

// Each process has its part of the weights, and besides what it has with a model of almost no weights.
TEST_P(SplitCli, EachProcessHasTheMemoryOfItsPart) {
#ifdef __SANITIZE_ADDRESS__
  GTEST_SKIP() << "AddressSanitizer takes memory of its own";
#endif
  constexpr int64_t kActivations = 24 << 20;
  WriteModel("large", {{"hidden_size", 512},
                       {"intermediate_size", 3072},
                       {"num_hidden_layers", 8},
                       {"num_attention_heads", 8},
                       {"num_key_value_heads", 8}});
  WriteText(dir_ / "heldout.txt", Words(200));
  const auto measured = [&](int processes, const char* model, const char* dtype) {
    std::vector<std::string> arguments = {"ppl",       "--model",    Path(model), "--text",  Path("heldout.txt"),
                                          "--threads", "1",          "--quiet",   "--dtype", dtype,
                                          "--json",    Path("json"), "--split",   "1"};
    if (processes > 1) arguments.back() = "4";
    const Outcome outcome = In(processes, arguments);
    EXPECT_EQ(outcome.status, 0) << outcome.err;
    return ReadJson("json");
  };
  const auto peak = [](const Json& process) { return process["peak_memory"].get<int64_t>(); };
  int64_t besides = 0;
  const Json tiny = measured(4, "model", "auto");
  for (const Json& process : tiny["processes"]) besides = std::max(besides, peak(process));
  for (const char* dtype : {"auto", "bfloat16"}) {  // as stored, and converted
    const Json split = measured(4, "large", dtype);
    EXPECT_EQ(split["perplexity"], measured(1, "large", dtype)["perplexity"]);
    int64_t blocks = 0, bytes = 0, largest = 0;
    for (const Json& process : split["processes"]) {
      EXPECT_EQ(process["blocks"][0], blocks);
      blocks = process["blocks"][1];
      const int64_t share = process["weight_bytes"];
      bytes += share;
      largest = std::max(largest, share);
      EXPECT_LE(peak(process), share + besides + kActivations) << dtype;
    }
    EXPECT_EQ(blocks, 8);
    EXPECT_GT(bytes, largest + 2 * kActivations) << "a process with all weights would not be noticed";
  }
}

TEST_P(SplitCli, GeneratesTheSameText) {
  const auto reply = [&](int processes, std::vector<std::string> more) {
    std::vector<std::string> arguments = {"generate",      "--model",  Path("model"), "--threads",    "1",
                                          "--quiet",       "--prompt", "the sea",     "--max-tokens", "12",
                                          "--temperature", "0.7"};
    arguments.insert(arguments.end(), more.begin(), more.end());
    const Outcome outcome = In(processes, arguments);
    EXPECT_EQ(outcome.status, 0) << outcome.err;
    return outcome.out;
  };
  EXPECT_EQ(reply(3, {"--split", "3"}), reply(1, {}));
}

// Where every process has memory for the whole model, that is no split.
TEST_P(SplitCli, MemoryDecides) {
  const std::vector<std::string> command = {
      "ppl",     "--model", Path("model"), "--text", Path("heldout.txt"), "--threads", "1",
      "--quiet", "--split", "auto",        "--json", Path("auto.json")};
  const Outcome outcome = In(2, command);
  ASSERT_EQ(outcome.status, 0) << outcome.err;
  EXPECT_EQ(ReadJson("auto.json")["processes"].size(), 2U);
  EXPECT_FALSE(ReadJson("auto.json")["processes"][0].contains("blocks"));
}

TEST_P(SplitCli, APartThatHangsIsNamed) {
  WriteText(dir_ / "long.txt", Words(300000));
  ::setenv("SHIFTRT_PEER_TIMEOUT", "2", 1);
  const pid_t launcher = Start(
      Launched(3, {"ppl", "--model", Path("model"), "--text", Path("long.txt"), "--threads", "1", "--split", "3"}),
      dir_ / "stdout", dir_ / "stderr", launcher_);
  ::unsetenv("SHIFTRT_PEER_TIMEOUT");
  const auto said_so_far = [&] { return fs::exists(dir_ / "stderr") ? ReadFile(dir_ / "stderr") : ""; };
  while (said_so_far().find("blocks by process") == std::string::npos && !Ended(launcher)) ::usleep(1000);
  const pid_t process = ProcessOf(1);
  ASSERT_GT(process, 0) << "it ended too early";
  ::kill(process, SIGSTOP);
  for (int i = 0; i < 800 && !Ended(launcher); ++i) ::usleep(50'000);
  EXPECT_TRUE(Ended(launcher)) << "the others go on";
  ::kill(process, SIGKILL);
  if (!Ended(launcher)) ::kill(launcher, SIGKILL);
  EXPECT_NE(Wait(launcher), 0);
  const std::string said = ReadFile(dir_ / "stdout") + ReadFile(dir_ / "stderr");
  EXPECT_NE(said.find("process 1 of 3 on "), std::string::npos) << said;
  EXPECT_NE(said.find("has not answered for 2 s"), std::string::npos) << said;
}

// Killed at any moment after the first scores; one process goes on with the whole model, to the same result.
TEST_P(SplitCli, AnEvaluationGoesOnWithoutSplit) {
  const auto command = [&, data = Piqa(1500)](const std::string& json) {
    return Arguments("eval", {"--tasks", "piqa", "--data", data, "--journal", Path("journal"), "--json", Path(json)});
  };
  std::vector<std::string> split = command("split.json");
  split.insert(split.end(), {"--split", "2"});
  const pid_t launcher = Start(Launched(4, split), dir_ / "stdout", dir_ / "stderr", launcher_);
  const fs::path scores = dir_ / "journal.process1";  // scores of the last process of the first group
  while ((!fs::exists(scores) || fs::file_size(scores) == 0) && !Ended(launcher)) ::usleep(1000);
  ASSERT_FALSE(Ended(launcher)) << "it ended too early: " << ReadFile(dir_ / "stderr");
  const pid_t process = ProcessOf(2);
  ASSERT_GT(process, 0) << "it ended too early";
  ::kill(process, SIGKILL);
  EXPECT_NE(Wait(launcher), 0);
  const Outcome rest = In(1, command("rest.json"));
  ASSERT_EQ(rest.status, 0) << rest.err;
  EXPECT_NE(rest.err.find("of an evaluation that was interrupted"), std::string::npos) << rest.err;
  ASSERT_EQ(In(1, command("whole.json")).status, 0);
  EXPECT_EQ(Timeless(ReadJson("rest.json")), Timeless(ReadJson("whole.json")));
}

TEST_P(SplitCli, WhatDoesNotWorkIsRefused) {
  const std::pair<std::vector<std::string>, const char*> refused[] = {
      {{"--prune", "bi:1", "--correction", "refit", "--split", "2"},
       "--correction: the correction refit does not go with a split model"},
      {{"--lra", "4", "--split", "2", "--save-weights", "--save", Path("refused")},
       "--save-weights does not work with --split"},
      {{"--split", "3"}, "--split 3: 2 processes were started; start a multiple of 3"}};
  for (const auto& [arguments, message] : refused) {
    const Outcome outcome = In(2, Arguments("run", arguments));
    EXPECT_NE(outcome.status, 0);
    EXPECT_NE(outcome.err.find(message), std::string::npos) << outcome.err;
  }
  EXPECT_FAILS(In(1, Arguments("run", {"--split", "2"})), 2, "start a multiple of 2, such as mpirun -n 2");
  EXPECT_FAILS(In(1, Arguments("run", {"--split", "0"})), 2, "expected a number of processes, or auto");
  EXPECT_FAILS(In(1, Arguments("sweep", {"--split", "2"})), 2, "--split: sweep needs the whole model in each process");
}

// Fixture for a training of so many steps, with four passes each, that saves every step.
class TrainingInProcesses : public ProcessesCli {
 protected:
  std::vector<std::string> Training(const std::string& save, int64_t steps) const {
    return {"finetune",
            "--model",
            Path("model"),
            "--threads",
            "1",
            "--calib",
            Path("calibration.txt"),
            "--length",
            "32",
            "--pass-tokens",
            "64",
            "--batch",
            "8",
            "--validation",
            "6",
            "--rate",
            "0.01",
            "--dropout",
            "0.1",
            "--method",
            "lora",
            "--epochs",
            "100000",
            "--steps",
            std::to_string(steps),
            "--checkpoint-minutes",
            "0",
            "--save",
            Path(save),
            "--json",
            Path(save + ".json"),
            "--quiet"};
  }

  // Sends a signal to one of three processes of a training, some steps after it began. Expects that the others end
  // within so many seconds, and returns what was said.
  std::string EndOne(int rank, int signal, int64_t steps, int seconds) const {
    const fs::file_time_type before = Written();
    const pid_t launcher = Start(Launched(3, Training("tuned", steps)), dir_ / "stdout", dir_ / "stderr", launcher_);
    while (Written() == before && !Ended(launcher)) ::usleep(1000);
    ::usleep(static_cast<useconds_t>(std::random_device()() % 60'000));
    const pid_t process = ProcessOf(rank);
    EXPECT_GT(process, 0) << "the training ended too early";
    if (process > 0) ::kill(process, signal);
    for (int i = 0; i < 20 * seconds && !Ended(launcher); ++i) ::usleep(50'000);
    EXPECT_TRUE(Ended(launcher)) << "the others go on";
    if (!Ended(launcher)) ::kill(launcher, SIGKILL);
    EXPECT_NE(Wait(launcher), 0);
    return ReadFile(dir_ / "stdout") + ReadFile(dir_ / "stderr");
  }

  // The time at which the checkpoint was written; every step writes it.
  fs::file_time_type Written() const {
    std::error_code error;
    const fs::file_time_type time = fs::last_write_time(dir_ / "tuned.checkpoint", error);
    return error ? fs::file_time_type::min() : time;
  }
};

TEST_P(TrainingInProcesses, GivesTheSameBits) {
  ASSERT_EQ(In(1, Training("tuned1", 3)).status, 0);
  for (const int processes : {2, 3, 8}) {
    const std::string name = "tuned" + std::to_string(processes);
    const Outcome outcome = In(processes, Training(name, 3));
    ASSERT_EQ(outcome.status, 0) << outcome.err;
    EXPECT_EQ(fmt::format("{}", fmt::join(Differences("tuned1", name), ", ")), "") << processes << " processes";
    EXPECT_EQ(Timeless(ReadJson(name + ".json")), Timeless(ReadJson("tuned1.json"))) << processes << " processes";
  }
}

// At a random moment. What was done stands, and fewer processes go on from there to the same bits.
TEST_P(TrainingInProcesses, OneThatIsKilledEndsTheOthersAndFewerGoOn) {
  constexpr int64_t kSteps = 150;
  for (const int rank : {2, 0}) {
    EndOne(rank, SIGKILL, kSteps, 20);
    EXPECT_TRUE(fs::exists(dir_ / "tuned.checkpoint"));
  }
  const Outcome rest = In(2, Training("tuned", kSteps));
  ASSERT_EQ(rest.status, 0) << rest.err;
  EXPECT_NE(rest.err.find("continuing from"), std::string::npos) << rest.err;
  ASSERT_EQ(In(1, Training("tuned1", kSteps)).status, 0);
  EXPECT_EQ(fmt::format("{}", fmt::join(Differences("tuned1", "tuned"), ", ")), "");
}

// As one whose host is gone, or whose link is cut: it neither answers nor ends.
TEST_P(TrainingInProcesses, OneThatHangsIsNamed) {
  ::setenv("SHIFTRT_PEER_TIMEOUT", "2", 1);
  const std::string said = EndOne(1, SIGSTOP, 100'000, 40);
  ::unsetenv("SHIFTRT_PEER_TIMEOUT");
  if (const pid_t left = ProcessOf(1); left > 0) ::kill(left, SIGKILL);
  EXPECT_NE(said.find("process 1 of 3 on "), std::string::npos) << said;
  EXPECT_NE(said.find("has not answered for 2 s"), std::string::npos) << said;
}

// Layers of other kinds: recurrent ones, and mixtures of experts.
class MixedLayersInProcesses : public TrainingInProcesses {
 protected:
  void SetUp() override {
    TrainingInProcesses::SetUp();
    if (IsSkipped()) return;
    fs::remove_all(dir_ / "model");
    WriteModel("model", MixedLayers());
  }
};

TEST_P(MixedLayersInProcesses, SelectionCalibrationAndScoresAreTheSameBits) {
  for (const char* recipe : {"--prune bi:1 --lra 4 --prompt sea", "--prune ppl-greedy:1 --correction norm-lra --lra 4",
                             "--prune taylor:1,tokens=512 --correction prune-comp"})
    ExpectSame({2, 3}, "run", Split(recipe), {"--save"});
  ExpectSame({2, 3}, "eval", {"--tasks", "piqa", "--data", Piqa(200), "--metrics", "all"}, {"--items"});
}

TEST_P(MixedLayersInProcesses, TrainingGivesTheSameBits) {
  const auto train = [&](int processes) {
    const std::string name = "tuned" + std::to_string(processes);
    std::vector<std::string> arguments = Training(name, 3);
    arguments.insert(arguments.end(), {"--targets", "q,k,v,o"});
    const Outcome outcome = In(processes, arguments);
    EXPECT_EQ(outcome.status, 0) << outcome.err;
    return name;
  };
  const std::string one = train(1);
  for (const int processes : {2, 3}) {
    const std::string name = train(processes);
    EXPECT_EQ(fmt::format("{}", fmt::join(Differences(one, name), ", ")), "") << processes << " processes";
    EXPECT_EQ(Timeless(ReadJson(name + ".json")), Timeless(ReadJson(one + ".json"))) << processes << " processes";
  }
}

TEST_P(MixedLayersInProcesses, ASplitModelGivesTheSameBits) {
  ExpectSame({2}, "run", Split("--prune bi:1 --lra 8 --calibration-mode independent --no-gate"), {"--save"}, 2);
}

// Two network namespaces that stand for hosts, with a link between them. Needs root, and a kernel that allows it.
class AcrossHosts : public TrainingInProcesses {
 protected:
  void SetUp() override {
    TrainingInProcesses::SetUp();
    if (IsSkipped()) return;
    if (std::string(GetParam().name) != "mpirun.openmpi") GTEST_SKIP() << "hosts are entered as OpenMPI enters them";
    if (!Do("ip netns add {0}a && ip netns add {0}b && ip link add va netns {0}a type veth peer name vb netns {0}b"))
      GTEST_SKIP() << "network namespaces are not allowed here";
    for (const char* host : {"a", "b"})
      ASSERT_TRUE(
          Do(fmt::format("ip -n {{0}}{0} addr add 10.77.0.{1}/24 dev v{0} && ip -n {{0}}{0} link set lo up && "
                         "ip -n {{0}}{0} link set v{0} up",
                         host, host[0] - 'a' + 1)));
    // mpirun starts this program on a host instead of a remote shell: AGENT ADDRESS COMMAND.
    WriteText(dir_ / "agent",
              fmt::format("#!/bin/sh\n[ $1 = 10.77.0.1 ] && host=a || host=b\nshift\n"
                          "exec ip netns exec {}$host unshare --uts sh -c \"hostname host-$host; $*\"\n",
                          name_));
    fs::permissions(dir_ / "agent", fs::perms::owner_all);
  }
  void TearDown() override {
    for (const char* host : {"a", "b"}) Do(fmt::format("ip netns del {{0}}{}", host));
    TrainingInProcesses::TearDown();
  }

  bool Do(const std::string& command) const {
    return std::system((fmt::format(fmt::runtime(command), name_) + " >/dev/null 2>&1").c_str()) == 0;
  }

  // Starts a training of four processes on the two hosts. So many microseconds later, or later than the first
  // checkpoint if it has `begun`, cuts the link, expects that every process ends within 40 s, and mends the link.
  // Returns what was said.
  std::string TrainAndCut(int64_t steps, bool begun, int64_t delay) const {
    ::unsetenv("OMPI_MCA_plm");
    std::vector<std::string> arguments = Split(fmt::format(
        "netns exec {}a unshare --uts {} --mca plm rsh --mca plm_rsh_agent {} --mca btl tcp,self --mca pml ob1 --host "
        "10.77.0.1:2,10.77.0.2:2 -x SHIFTRT_PEER_TIMEOUT=3 -n 4 {}",
        name_, launcher_.string(), Path("agent"), SHIFTRT_TOOL));
    const std::vector<std::string> training = Training("tuned", steps);
    arguments.insert(arguments.end(), training.begin(), training.end());
    const pid_t launcher = Start(arguments, dir_ / "stdout", dir_ / "stderr", "/usr/bin/ip");
    while (begun && !fs::exists(dir_ / "tuned.checkpoint") && !Ended(launcher)) ::usleep(10'000);
    for (int64_t waited = 0; waited < delay && !Ended(launcher); waited += 10'000) ::usleep(10'000);
    EXPECT_TRUE(Do("ip -n {0}b link set vb down"));
    // mpirun itself waits for its daemon at the other end of the link; what counts is that the processes end.
    const auto processes = [&] {
      int64_t count = 0;
      for (int rank = 0; rank < 4; ++rank) count += ProcessOf(rank) > 0 ? 1 : 0;
      return count;
    };
    for (int i = 0; i < 400 && processes() > 0; ++i) ::usleep(100'000);
    EXPECT_EQ(processes(), 0);
    ::kill(launcher, SIGKILL);
    Wait(launcher);
    EXPECT_TRUE(Do("ip -n {0}b link set vb up"));
    return ReadFile(dir_ / "stdout") + ReadFile(dir_ / "stderr");
  }

  const std::string name_ = fmt::format("shiftrt{}", ::getpid());
};

TEST_P(AcrossHosts, ACutLinkIsNamed) {
  const std::string said = TrainAndCut(100'000, true, 0);
  EXPECT_NE(said.find("of 4 on host-b has not answered for 3 s"), std::string::npos) << said;
  EXPECT_TRUE(fs::exists(dir_ / "tuned.checkpoint"));
}

// All processes end, and one process goes on to the same bits. Every second cut is in the first four seconds, in which
// the processes find each other; the others are in the training. SHIFTRT_KILLS is the number of cuts;
// scripts/kill-campaign sets it.
TEST_P(AcrossHosts, LinksCutAtRandomMomentsLoseNothing) {
  constexpr int64_t kSteps = 150;
  ASSERT_EQ(In(1, Training("whole", kSteps)).status, 0);
  Random random(26);
  int begun = 0;
  for (int cut = 0; cut < Kills(2); ++cut) {
    for (const char* file : {"tuned", "tuned.checkpoint", "tuned.json"}) fs::remove_all(dir_ / file);
    const bool training = cut % 2 != 0;
    const std::string said = TrainAndCut(kSteps, training, random.Below(training ? 500'000 : 4'000'000));
    begun += fs::exists(dir_ / "tuned.checkpoint") ? 1 : 0;
    const Outcome rest = In(1, Training("tuned", kSteps));
    ASSERT_EQ(rest.status, 0) << "cut " << cut << ": " << said << rest.err;
    EXPECT_EQ(fmt::format("{}", fmt::join(Differences("whole", "tuned"), ", ")), "") << "cut " << cut;
  }
  std::printf("%d links cut, %d of them between two steps\n", Kills(2), begun);
}

TEST_P(ProcessesCli, WhatDoesNotShareItsWorkIsRefused) {
  const Outcome outcome = In(2, {"tokenize", "--model", Path("model"), "the sea"});
  EXPECT_NE(outcome.status, 0) << outcome.err;  // a launcher may report that of a process which it ended
  const std::string expected = "2 processes were started, and tokenize does not share its work";
  const size_t at = outcome.err.find(expected);
  EXPECT_NE(at, std::string::npos) << outcome.err;
  EXPECT_EQ(outcome.err.find(expected, at + 1), std::string::npos) << "said twice: " << outcome.err;
}

TEST_P(ProcessesCli, AnErrorIsSaidOnce) {
  const Outcome outcome = In(3, Arguments("run", {"--prune", "bi:9"}));
  EXPECT_NE(outcome.status, 0) << outcome.err;  // a launcher may report that of a process which it ended
  const size_t at = outcome.err.find("shiftrt: ");
  EXPECT_NE(at, std::string::npos) << outcome.err;
  EXPECT_EQ(outcome.err.find("shiftrt: ", at + 1), std::string::npos) << outcome.err;
}

const auto kLaunchers =
    ::testing::Values(Launcher{"mpirun.openmpi", "OMPI_COMM_WORLD_RANK"}, Launcher{"mpirun.mpich", "PMI_RANK"});
std::string NameOf(const ::testing::TestParamInfo<Launcher>& info) { return std::string(info.param.name).substr(7); }

INSTANTIATE_TEST_SUITE_P(Launchers, ProcessesCli, kLaunchers, NameOf);
INSTANTIATE_TEST_SUITE_P(Launchers, SplitCli, kLaunchers, NameOf);
INSTANTIATE_TEST_SUITE_P(Launchers, TrainingInProcesses, kLaunchers, NameOf);
INSTANTIATE_TEST_SUITE_P(Launchers, MixedLayersInProcesses, kLaunchers, NameOf);
INSTANTIATE_TEST_SUITE_P(Launchers, AcrossHosts, kLaunchers, NameOf);

}  // namespace
}  // namespace shiftrt
