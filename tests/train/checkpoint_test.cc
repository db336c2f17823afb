// SPDX-License-Identifier: Apache-2.0
#include "train/checkpoint.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>

#include "runtime/files.h"
#include "runtime/interrupts_held.h"
#include "tests/file_size_limit.h"
#include "tests/runtime/refusal.h"
#include "tests/write_text.h"

namespace shiftrt {
namespace {

namespace fs = std::filesystem;

class CheckpointTest : public testing::Test {
 protected:
  CheckpointTest() : file_(fs::temp_directory_path() / ("shiftrt_checkpoint" + std::to_string(getpid()))) {}
  ~CheckpointTest() override { fs::remove(file_); }

  static void Write(const CheckpointFile& checkpoint, const TrainingState& state) {
    checkpoint.Write({state.values, state.first, state.second, state.best}, state.history);
  }
  static TrainingState State(float of, int64_t count = 3) {
    TrainingState state;
    state.values.assign(count, of);
    state.first.assign(count, of + 1);
    state.second.assign(count, of + 2);
    state.history.losses = {3.25, 1.0 / 3};
    state.history.gradient_norms = {0.1, 0.7};
    state.history.validations = {{0, 3.5}, {2, 1.0 / 7}};
    state.history.tokens = 77;
    state.history.seconds = 1.5;
    return state;
  }

  fs::path file_;
  TrainingSettings settings_ = {{"model", "abc"}, {"rate", "0.001"}};
};

TEST_F(CheckpointTest, ComesBackToTheBit) {
  const CheckpointFile checkpoint(file_, settings_);
  EXPECT_FALSE(checkpoint.Read(3).has_value());
  Write(checkpoint, State(0.1f));
  const TrainingState expected = State(0.1f), found = *checkpoint.Read(3);
  EXPECT_EQ(found.values, expected.values);
  EXPECT_EQ(found.first, expected.first);
  EXPECT_EQ(found.second, expected.second);
  EXPECT_EQ(found.history.losses, expected.history.losses);
  EXPECT_EQ(found.history.gradient_norms, expected.history.gradient_norms);
  ASSERT_EQ(found.history.validations.size(), size_t{2});
  EXPECT_EQ(found.history.validations[1].loss, 1.0 / 7);
  EXPECT_EQ(found.history.tokens, 77);
  EXPECT_EQ(found.history.resumed, 2);
}

TEST_F(CheckpointTest, OfAnotherTrainingIsRefusedByName) {
  Write(CheckpointFile(file_, settings_), State(1));
  const std::string name = file_.string();
  const auto read = [&](const TrainingSettings& settings, int64_t count) {
    return [this, settings, count] { CheckpointFile(file_, settings).Read(count); };
  };
  ExpectRefusal(read({{"model", "abd"}, {"rate", "0.001"}}, 3), name, "its model is \"abc\"");
  ExpectRefusal(read({{"model", "abc"}, {"rate", "0.002"}}, 3), name, "its rate is \"0.001\"");
  ExpectRefusal(read({{"model", "abc"}, {"rate", "0.001"}, {"clip", "1"}}, 3), name, "its clip is null");
  ExpectRefusal(read({{"model", "abc"}}, 3), name, "rate");
  ExpectRefusal(read(settings_, 4), name, "tensor values");
  WriteText(file_, "no safetensors");
  EXPECT_NE(Refusal(read(settings_, 3)), "");
}

TEST_F(CheckpointTest, WithoutSpaceTheOldOneStands) {
  const CheckpointFile checkpoint(file_, settings_);
  Write(checkpoint, State(1, 1000));
  {
    const FileSizeLimit limit(4096);
    ExpectRefusal([&] { Write(checkpoint, State(2, 1000)); }, file_.string(), "write it");
  }
  EXPECT_EQ(checkpoint.Read(1000)->values, State(1, 1000).values);
}

TEST(InterruptsHeld, PutsAnInterruptionOff) {
  // In a process of its own, since what is requested stays requested.
  EXPECT_EXIT(
      {
        RequestInterrupt();
        {
          const InterruptsHeld held;
          CheckInterrupted();
        }
        try {
          CheckInterrupted();
        } catch (const Interrupted&) {
          std::_Exit(7);
        }
        std::_Exit(1);
      },
      testing::ExitedWithCode(7), "");
}

}  // namespace
}  // namespace shiftrt
