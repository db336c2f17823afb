// SPDX-License-Identifier: Apache-2.0
// Commands that are killed at random moments and then given again, whose outputs must have the bits of a run that
// nobody disturbed. SHIFTRT_KILLS is the number of kills of each command (default 3); scripts/kill-campaign sets it.
#include <chrono>
#include <cstdlib>
#include <map>

#include "runtime/random.h"
#include "tests/tools/cli.h"

namespace shiftrt {
namespace {

class KillCampaign : public Cli {
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

  // The bytes of an output: a file, or the files of a directory without those that hold times.
  std::map<std::string, std::string> Bytes(const std::string& output) const {
    std::map<std::string, std::string> bytes;
    if (fs::is_regular_file(dir_ / output)) bytes[""] = ReadFile(dir_ / output);
    if (!fs::is_directory(dir_ / output)) return bytes;
    for (const auto& entry : fs::recursive_directory_iterator(dir_ / output))
      if (entry.is_regular_file() && entry.path().filename() != "shiftrt.json")
        bytes[fs::relative(entry.path(), dir_ / output).string()] = ReadFile(entry.path());
    return bytes;
  }

  // `arguments` with "OUT" in the place of the output.
  void Expect(const std::vector<std::string>& arguments) {
    const auto with = [&](const std::string& output) {
      std::vector<std::string> all = arguments;
      std::replace(all.begin(), all.end(), std::string("OUT"), Path(output));
      return all;
    };
    const auto start = Clock::now();
    const Outcome whole = Call(with("whole"));
    const auto duration = std::chrono::duration_cast<std::chrono::microseconds>(Clock::now() - start);
    ASSERT_EQ(whole.status, 0) << whole.err;
    const auto expected = Bytes("whole");
    ASSERT_FALSE(expected.empty());
    Random random(std::hash<std::string>()(arguments[0]));
    for (int kill = 0; kill < Kills(); ++kill) {
      fs::remove_all(dir_ / "killed");
      fs::remove_all(dir_ / "cache");
      const pid_t child = Start(with("killed"), dir_ / "stdout", dir_ / "stderr");
      ::usleep(static_cast<useconds_t>(random.Below(duration.count())));
      ::kill(child, SIGKILL);
      const bool killed = Wait(child) == 128 + SIGKILL;
      // An export that was renamed in time is done; it is written to new directories only.
      if (arguments[0] != "export" || !fs::exists(dir_ / "killed")) {
        const Outcome again = Call(with("killed"));
        ASSERT_EQ(again.status, 0) << arguments[0] << ", kill " << kill << ": " << again.err;
      }
      EXPECT_TRUE(Bytes("killed") == expected)
          << arguments[0] << ", kill " << kill << (killed ? "" : ", which was late");
      for (const auto& entry : fs::recursive_directory_iterator(dir_))
        EXPECT_EQ(entry.path().string().find(".tmp"), std::string::npos) << arguments[0] << ": " << entry.path();
    }
    fs::remove_all(dir_ / "whole");
    fs::remove_all(dir_ / "killed");
  }

  std::vector<std::string> With(const std::string& command, const std::string& model, const std::string& more) const {
    std::vector<std::string> arguments = {command, "--model", Path(model), "--threads", "1", "--quiet"};
    const std::vector<std::string> words = Split(more);
    arguments.insert(arguments.end(), words.begin(), words.end());
    return arguments;
  }
};

TEST_F(KillCampaign, TheSameCommandGivesTheSameBits) {
  const std::string texts = " --calib " + Path("calibration.txt:16x64") + " --text " + Path("heldout.txt");
  Expect(With("run", "model", "--prune bi:2 --lra 4 --prompt the --max-tokens 4 --save OUT" + texts));
  Expect(With("run", "model",
              "--prune bi:1 --lra 4 --prompt the --max-tokens 4 --gram-layers all --save-gram OUT" + texts));
  Expect(With("sweep", "model", "--prune bi:2 --lra 2,4 --journal " + Path("journal") + " --csv OUT" + texts));
  Expect(With("eval", "model", "--tasks piqa,boolq --data " + EvalData() + " --items OUT"));
  ASSERT_EQ(Run({"--prune", "layers=1,2", "--save", Path("saved")}).status, 0);
  Expect(With(
      "finetune", "saved",
      "--calib " + Path("calibration.txt") + " --length 32 --batch 4 --steps 6 --validation 4 --rate 0.01 --save OUT"));
  ASSERT_EQ(Run({"--prune", "layers=1", "--correction", "none", "--save", Path("pruned")}).status, 0);
  std::vector<std::string> exported = {"export", "--model", Path("pruned"), "--format", "hf", "--save", "OUT"};
  Expect(exported);
}

}  // namespace
}  // namespace shiftrt
