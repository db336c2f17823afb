// SPDX-License-Identifier: Apache-2.0
// Processes under mpirun of which one is killed or stopped at a random moment. The others must end within 30 seconds,
// and the same command in one process must then give the bits of a run that nobody disturbed. SHIFTRT_KILLS is the
// number of disturbances of each command (default 1); scripts/kill-campaign sets it.
#include <chrono>

#include "runtime/random.h"
#include "tests/tools/campaign.h"
#include "tests/tools/processes_cli.h"

namespace shiftrt {
namespace {

class RanksCampaign : public ProcessesCli {
 protected:
  static constexpr int kProcesses = 3, kSeconds = 30;

  // True if none of the processes is left but those in `but`.
  bool AllEnded(pid_t but) const {
    for (int rank = 0; rank < kProcesses; ++rank)
      if (const pid_t process = ProcessOf(rank); process != 0 && process != but) return false;
    return true;
  }

  // Starts the command and disturbs a process after so many microseconds, or as soon as there is one if they are 0.
  // Returns the seconds that the others took to end.
  double Disturb(const std::vector<std::string>& arguments, int64_t delay, int rank, int signal,
                 const char* timeout = "2") const {
    // Not for the runs that nobody disturbs: on a machine with other work, two seconds without an answer are no
    // failure.
    ::setenv("SHIFTRT_PEER_TIMEOUT", timeout, 1);
    const pid_t launcher = Start(Launched(kProcesses, arguments), dir_ / "stdout", dir_ / "stderr", launcher_);
    ::unsetenv("SHIFTRT_PEER_TIMEOUT");
    ::usleep(static_cast<useconds_t>(delay));
    pid_t process = ProcessOf(rank);
    while (delay == 0 && process == 0 && !Ended(launcher)) process = ProcessOf(rank);
    if (process > 0) ::kill(process, signal);
    // A process that has not started yet has not ended.
    for (int other = 0; delay == 0 && other < kProcesses; ++other)
      while (other != rank && ProcessOf(other) == 0 && !Ended(launcher)) ::usleep(1'000);
    const auto start = std::chrono::steady_clock::now();
    double seconds = 0;
    // A launcher waits for the stopped process, too.
    while (!Ended(launcher) && !(process > 0 && AllEnded(process)) && seconds < kSeconds) {
      ::usleep(20'000);
      seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
    }
    EXPECT_LT(seconds, kSeconds) << arguments[0] << ": the others go on after signal " << signal << " to process "
                                 << rank << "\n"
                                 << ReadFile(dir_ / "stderr");
    if (process > 0) ::kill(process, SIGKILL);
    ::kill(launcher, SIGTERM);
    // mpirun of OpenMPI 4.1 has been seen to hang while it ended, with a lock of PMIx held and no process left.
    for (int i = 0; i < 250 && !Ended(launcher); ++i) ::usleep(20'000);
    if (!Ended(launcher)) ::kill(launcher, SIGKILL);
    Wait(launcher);
    for (int i = 0; i < 100 && !AllEnded(0); ++i) ::usleep(20'000);
    return seconds;
  }

  void Expect(const std::string& name, const std::vector<std::string>& arguments, const std::string& output) {
    const auto start = std::chrono::steady_clock::now();
    std::vector<std::string> whole = arguments, disturbed = arguments;
    whole.insert(whole.end(), {output, Path("whole")});
    disturbed.insert(disturbed.end(), {output, Path("disturbed")});
    ASSERT_EQ(In(kProcesses, whole).status, 0) << ReadFile(dir_ / "stderr");
    const int64_t duration =
        std::chrono::duration_cast<std::chrono::microseconds>(std::chrono::steady_clock::now() - start).count();
    Random random(std::hash<std::string>()(name));
    double slowest = 0;
    for (int kill = 0; kill < Kills(1); ++kill) {
      fs::remove_all(dir_ / "disturbed");
      const int signal = kill % 2 == 0 ? SIGKILL : SIGSTOP, rank = static_cast<int>(random.Below(kProcesses));
      slowest = std::max(slowest, Disturb(disturbed, 1 + random.Below(duration), rank, signal));
      ASSERT_EQ(In(1, disturbed).status, 0) << ReadFile(dir_ / "stderr");
      EXPECT_EQ(fmt::format("{}", fmt::join(Differences("whole", "disturbed"), ", ")), "") << name << ", kill " << kill;
    }
    std::printf("%s: the others ended within %.1f s\n", name.c_str(), slowest);
    std::fflush(stdout);  // before a child inherits what is not written
    fs::remove_all(dir_ / "whole");
  }
};

// The suite disturbs each command under one of the launchers, the campaign under both.
TEST_P(RanksCampaign, TheOthersEndAndTheSameCommandGivesTheSameBits) {
  const bool campaign = std::getenv("SHIFTRT_KILLS") != nullptr, openmpi = launcher_.extension() == ".openmpi";
  if (campaign || openmpi) {
    Expect("run", Arguments("run", Split("--prune bi:2 --lra 4 --prompt the --max-tokens 2")), "--save");
    Expect("sweep", Arguments("sweep", {"--prune", "bi:2", "--lra", "2,4", "--journal", Path("journal")}), "--csv");
  }
  if (campaign || !openmpi) {
    Expect("sums", Arguments("run", Split("--prune bi:1 --lra 4 --prompt the --max-tokens 2")), "--save-gram");
    Expect("eval", Arguments("eval", {"--tasks", "piqa", "--data", Piqa()}), "--items");
  }
}

// MPI_Init of the others waits for it.
TEST_P(RanksCampaign, OneThatDoesNotStartStopsTheOthers) {
  Disturb({"ppl", "--model", Path("model"), "--text", Path("heldout.txt"), "--quiet"}, 0, 1, SIGSTOP, "1");
  const std::string said = ReadFile(dir_ / "stderr");
  EXPECT_NE(said.find("not all processes have started within 5 s"), std::string::npos) << said;
}

INSTANTIATE_TEST_SUITE_P(Launchers, RanksCampaign,
                         ::testing::Values(Launcher{"mpirun.openmpi", "OMPI_COMM_WORLD_RANK"},
                                           Launcher{"mpirun.mpich", "PMI_RANK"}),
                         [](const ::testing::TestParamInfo<Launcher>& info) {
                           return std::string(info.param.name).substr(7);
                         });

}  // namespace
}  // namespace shiftrt
