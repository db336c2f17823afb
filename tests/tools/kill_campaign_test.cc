// SPDX-License-Identifier: Apache-2.0
// Commands that are killed at random moments and then given again, whose outputs must have the bits of a run that
// nobody disturbed. SHIFTRT_KILLS is the number of kills of each command (default 3); scripts/kill-campaign sets it.
#include <chrono>

#include "runtime/random.h"
#include "tests/tools/campaign.h"
#include "tests/tools/jobs.h"

namespace shiftrt {
namespace {

class KillCampaign : public Jobs {
 protected:
  using Clock = std::chrono::steady_clock;
  using Files = std::map<std::string, std::string>;

  // The names of the files that only one of the two has, or that differ.
  static std::string Differences(const Files& found, const Files& expected) {
    std::string names;
    for (const auto& [name, bytes] : expected)
      if (!found.contains(name)) names += " lacks " + name;
    for (const auto& [name, bytes] : found)
      if (const auto other = expected.find(name); other == expected.end() || other->second != bytes)
        names += " " + name;
    return names;
  }

  static int64_t Since(Clock::time_point start) {
    return std::chrono::duration_cast<std::chrono::microseconds>(Clock::now() - start).count();
  }

  // Kills the child after so many microseconds. If it has ended before, returns false and sets `duration` to the time
  // that it took.
  static bool KillAt(int64_t moment, pid_t child, int64_t& duration) {
    const auto start = Clock::now();
    while (Since(start) < moment && !Ended(child)) ::usleep(200);
    const int64_t took = Since(start);
    ::kill(child, SIGKILL);
    const bool killed = Wait(child) == 128 + SIGKILL;
    if (!killed) duration = std::max<int64_t>(took, 1);
    return killed;
  }

  void Expect(const Job& job) {
    const auto start = Clock::now();
    const Outcome whole = Call(With(job, "whole"));
    auto duration = Since(start);
    ASSERT_EQ(whole.status, 0) << whole.err;
    const auto expected = Bytes("whole");
    ASSERT_FALSE(expected.empty());
    Random random(std::hash<std::string>()(job[0]));
    int in_time = 0;
    for (int kill = 0; kill < Kills(3); ++kill) {
      fs::remove_all(dir_ / "killed");
      fs::remove_all(dir_ / "cache");
      const pid_t child = Start(With(job, "killed"), dir_ / "stdout", dir_ / "stderr");
      const bool killed = KillAt(random.Below(duration), child, duration);
      in_time += killed ? 1 : 0;
      // An export that was renamed in time is done; it is written to new or empty directories only.
      if (job[0] != "export" || Bytes("killed") != expected) {
        const Outcome again = Call(With(job, "killed"));
        ASSERT_EQ(again.status, 0) << job[0] << ", kill " << kill << ": " << again.err;
      }
      const auto found = Bytes("killed");
      EXPECT_TRUE(found == expected) << job[0] << ", kill " << kill << (killed ? "" : ", which was late") << ": "
                                     << Differences(found, expected);
      ExpectNoTemporaries(job[0]);
    }
    std::printf("%s: %d killed, %d had ended before\n", job[0].c_str(), in_time, Kills(3) - in_time);
    std::fflush(stdout);  // before a child inherits what is not written
    fs::remove_all(dir_ / "whole");
    fs::remove_all(dir_ / "killed");
  }
};

TEST_F(KillCampaign, TheSameCommandGivesTheSameBits) {
  for (const Job& job : All()) {
    if (job[0] == "tokenize" || job[0] == "ppl" || job[0] == "generate") continue;  // too short to be killed at a place
    Expect(job);
  }
}

// Two programs that write the same output at the same time. What is there afterwards is that of one of them, never a
// mixture, and a third command opens it.
class TwoAtOnce : public Jobs {
 protected:
  // Runs both jobs at once, the second a random time later, and expects the output of one of them.
  void Expect(const Job& a, const Job& b, const std::vector<std::string>& opens) {
    std::vector<std::map<std::string, std::string>> right;
    for (const Job* job : {&a, &b}) {
      fs::remove_all(dir_ / "one");
      ASSERT_EQ(Call(With(*job, "one")).status, 0) << ReadFile(dir_ / "stderr");
      right.push_back(Bytes("one"));
      ASSERT_FALSE(right.back().empty());
    }
    ASSERT_FALSE(right[0] == right[1]);
    Random random(std::hash<std::string>()(a[0]));
    for (int round = 0; round < Kills(3); ++round) {
      fs::remove_all(dir_ / "both");
      fs::remove_all(dir_ / "cache");
      const pid_t first = Start(With(a, "both"), dir_ / "stdout1", dir_ / "stderr1");
      ::usleep(static_cast<useconds_t>(random.Below(20'000)));
      const pid_t second = Start(With(b, "both"), dir_ / "stdout2", dir_ / "stderr2");
      const int statuses[] = {Wait(first), Wait(second)};
      const std::string said = ReadFile(dir_ / "stderr1") + ReadFile(dir_ / "stderr2");
      for (const int status : statuses) EXPECT_TRUE(status == 0 || status == 1) << status << ": " << said;
      EXPECT_TRUE(statuses[0] == 0 || statuses[1] == 0) << said;
      const auto found = Bytes("both");
      EXPECT_TRUE(found == right[0] || found == right[1]) << a[0] << ", round " << round << ": " << said;
      ExpectNoTemporaries(a[0]);
      if (opens.empty()) continue;
      const Outcome opened = Call(With(opens, "both"));
      EXPECT_EQ(opened.status, 0) << opened.err;
    }
  }
};

TEST_F(TwoAtOnce, SavedModels) {
  const std::string texts = " --calib " + Path("calibration.txt:16x64") + " --text " + Path("heldout.txt");
  const auto job = [&](const std::string& more) {
    return Split("run --model " + Path("model") +
                 " --threads 1 --quiet --prompt the --max-tokens 2 --no-gate --save OUT" + texts + more);
  };
  Expect(job(" --prune layers=1 --lra 4"), job(" --prune layers=2 --lra 2"), Split("inspect --model OUT"));
}

TEST_F(TwoAtOnce, Sums) {
  const auto job = [&](const std::string& samples) {
    return Split("run --model " + Path("model") +
                 " --threads 1 --quiet --prompt the --max-tokens 2 --prune bi:1 --lra 4" +
                 " --gram-layers all --save-gram OUT --text " + Path("heldout.txt") + " --calib " +
                 Path("calibration.txt:" + samples));
  };
  Expect(job("16x64"), job("12x64"), {});
}

// Both journals of an evaluation and of a sweep are shared, too.
TEST_F(TwoAtOnce, JournalsAndTheirResults) {
  const std::string eval = "eval --model " + Path("model") + " --threads 1 --quiet --data " + EvalData() +
                           " --journal " + Path("journal.eval") + " --items OUT --tasks ";
  Expect(Split(eval + "piqa"), Split(eval + "boolq"), {});
  const std::string sweep = "sweep --model " + Path("model") + " --threads 1 --quiet --prune layers=1 --calib " +
                            Path("calibration.txt:16x64") + " --text " + Path("heldout.txt") + " --journal " +
                            Path("journal.sweep") + " --csv OUT --lra ";
  Expect(Split(sweep + "2"), Split(sweep + "4"), {});
}

}  // namespace
}  // namespace shiftrt
