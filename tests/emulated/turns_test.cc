// SPDX-License-Identifier: Apache-2.0
// Threads that were given the same prepared resources use their GPU one after the other.
#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <thread>

#include "include/shiftrt/runner.h"
#include "kernels/emulated/device.h"
#include "tests/models/fixtures.h"

namespace shiftrt {
namespace {

using Logits = std::vector<float>;

Logits LogitsOf(const LanguageModel& model, const Resources& resources, const std::vector<int32_t>& tokens) {
  ModelRunner runner(model, resources);
  Logits logits(tokens.size() * model.Shape().vocabulary);
  runner.Logits(tokens, logits);
  return logits;
}

// A model on an emulated GPU, and resources that its callers share.
struct GpuTurns : testing::Test {
  static LanguageModel MakeModel() {
    const TemporaryDirectory directory;
    WriteRandomCheckpoint(GoldenModel("llama_wide_heads") / "config.json", DType::kFloat32, 1, directory.path());
    return LanguageModel::Open(directory.path());
  }

  const emu::Devices one{1};
  const LanguageModel model = MakeModel();
  const Resources shared = Prepare({.gpus = {0}});
  const std::vector<int32_t> tokens = {3, 1, 4, 1, 5};
};

TEST_F(GpuTurns, AThreadWaitsForTheCallOfAnother) {
  const Logits alone = LogitsOf(model, shared, tokens);

  std::atomic<bool> done = false;
  Logits found;
  std::thread other;
  ModelRunner runner(model, shared);
  runner.HiddenStates(tokens, [&](int64_t, std::span<const float>) {
    if (other.joinable()) return;
    other = std::thread([&] {
      found = LogitsOf(model, shared, tokens);
      done = true;
    });
    // The other thread's call takes some milliseconds; if it did not wait, it would end here.
    for (int i = 0; i < 50 && !done; ++i) std::this_thread::sleep_for(std::chrono::milliseconds(10));
    EXPECT_FALSE(done);
  });
  other.join();
  EXPECT_EQ(found, alone);
}

TEST_F(GpuTurns, ACallbackMayUseTheSameResources) {
  ModelRunner runner(model, shared);
  int calls = 0;
  runner.HiddenStates(tokens, [&](int64_t, std::span<const float>) {
    if (calls++ == 0) LogitsOf(model, shared, tokens);
  });
  EXPECT_GT(calls, 1);
}

}  // namespace
}  // namespace shiftrt
