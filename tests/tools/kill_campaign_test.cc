// SPDX-License-Identifier: Apache-2.0
// Commands that are killed at random moments and then given again, whose outputs must have the bits of a run that
// nobody disturbed. SHIFTRT_KILLS is the number of kills of each command (default 3); scripts/kill-campaign sets it.
#include <chrono>
#include <cstdlib>

#include "runtime/random.h"
#include "tests/tools/jobs.h"

namespace shiftrt {
namespace {

class KillCampaign : public Jobs {
 protected:
  using Clock = std::chrono::steady_clock;

  static int Kills() {
    const char* const kills = std::getenv("SHIFTRT_KILLS");
#if defined(__SANITIZE_ADDRESS__)
    constexpr int kDefault = 1;  // the program is slow there
#else
    constexpr int kDefault = 3;
#endif
    return kills == nullptr ? kDefault : std::atoi(kills);
  }

  void Expect(const Job& job) {
    const auto start = Clock::now();
    const Outcome whole = Call(With(job, "whole"));
    const auto duration = std::chrono::duration_cast<std::chrono::microseconds>(Clock::now() - start);
    ASSERT_EQ(whole.status, 0) << whole.err;
    const auto expected = Bytes("whole");
    ASSERT_FALSE(expected.empty());
    Random random(std::hash<std::string>()(job[0]));
    for (int kill = 0; kill < Kills(); ++kill) {
      fs::remove_all(dir_ / "killed");
      fs::remove_all(dir_ / "cache");
      const pid_t child = Start(With(job, "killed"), dir_ / "stdout", dir_ / "stderr");
      ::usleep(static_cast<useconds_t>(random.Below(duration.count())));
      ::kill(child, SIGKILL);
      const bool killed = Wait(child) == 128 + SIGKILL;
      // An export that was renamed in time is done; it is written to new directories only.
      if (job[0] != "export" || !fs::exists(dir_ / "killed")) {
        const Outcome again = Call(With(job, "killed"));
        ASSERT_EQ(again.status, 0) << job[0] << ", kill " << kill << ": " << again.err;
      }
      EXPECT_TRUE(Bytes("killed") == expected) << job[0] << ", kill " << kill << (killed ? "" : ", which was late");
      ExpectNoTemporaries(job[0]);
    }
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

}  // namespace
}  // namespace shiftrt
