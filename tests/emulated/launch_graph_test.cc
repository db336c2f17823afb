// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include <cstdlib>

#include "kernels/emulated/device.h"
#include "runtime/check.h"
#include "runtime/cuda/cuda.h"

namespace shiftrt::gpu {
namespace {

class LaunchGraphs : public testing::Test {
 protected:
  LaunchGraphs() : owner_(0) {}
  void Run(LaunchGraph& graph) {
    graph.Run(owner_.get(), [&] { ++launched_; });
  }
  StreamOwner owner_;
  int launched_ = 0;
};

TEST_F(LaunchGraphs, ReplayFromTheSecondRunOn) {
  LaunchGraph graph;
  const int64_t before = emu::Replays();
  Run(graph);
  EXPECT_EQ(emu::Replays(), before);
  Run(graph);
  Run(graph);
  EXPECT_EQ(emu::Replays(), before + 2);
  EXPECT_EQ(launched_, 2);  // once by itself, once to be recorded
  graph.Reset();
  Run(graph);
  EXPECT_EQ(emu::Replays(), before + 2);
  EXPECT_EQ(launched_, 3);
}

TEST_F(LaunchGraphs, AReplayHasTheArgumentsOfTheRecording) {
  LaunchGraph graph;
  const DeviceBuffer<std::byte> bytes(owner_.get(), 16, "a test");
  int value = 1;
  const auto run = [&] {
    graph.Run(owner_.get(), [&] { FillBytes(owner_.get(), bytes.data(), value, 16); });
    std::byte found{};
    CopyToHost(owner_.get(), &found, bytes.data(), 1);
    return static_cast<int>(found);
  };
  EXPECT_EQ(run(), 1);
  value = 2;
  EXPECT_EQ(run(), 2);  // the recording takes what is now
  value = 3;
  EXPECT_EQ(run(), 2);
}

TEST_F(LaunchGraphs, WhatAGpuDoesNotRecordIsRefused) {
  LaunchGraph graph;
  const DeviceBuffer<std::byte> bytes(owner_.get(), 16, "a test");
  const auto run = [&] { graph.Run(owner_.get(), [&] { Synchronize(owner_.get()); }); };
  const int64_t before = emu::Replays();
  run();
  run();
  EXPECT_EQ(emu::Replays(), before);
  EXPECT_NE(WhyLaunchGraphRefused().find("a wait for the stream while a launch graph is recorded"), std::string::npos);
}

TEST_F(LaunchGraphs, ARefusedRecordingFallsBackToPlainLaunches) {
  const emu::RefusedRecordings refused;
  LaunchGraph graph;
  const int64_t before = emu::Replays();
  for (int run = 0; run < 3; ++run) Run(graph);
  EXPECT_EQ(launched_, 3);
  EXPECT_EQ(emu::Replays(), before);
  EXPECT_NE(WhyLaunchGraphRefused(), "");
}

TEST_F(LaunchGraphs, APassingRefusalDoesNotLastAndThreeDo) {
  LaunchGraph graph;
  const int64_t before = emu::Replays();
  const auto run_refused = [&](int runs) {
    const emu::RefusedRecordings refused;
    for (int run = 0; run < runs; ++run) Run(graph);
  };
  Run(graph);
  run_refused(2);
  Run(graph);
  EXPECT_EQ(emu::Replays(), before + 1);
  graph.Reset();
  Run(graph);
  run_refused(3);
  Run(graph);
  EXPECT_EQ(emu::Replays(), before + 1);
  graph.Reset();
  Run(graph);
  Run(graph);
  EXPECT_EQ(emu::Replays(), before + 2);
}

TEST_F(LaunchGraphs, TheEnvironmentTurnsThemOff) {
  ::setenv("SHIFTRT_CUDA_GRAPHS", "0", 1);
  LaunchGraph graph;
  const int64_t before = emu::Replays();
  for (int run = 0; run < 3; ++run) Run(graph);
  ::unsetenv("SHIFTRT_CUDA_GRAPHS");
  EXPECT_EQ(emu::Replays(), before);
  EXPECT_EQ(launched_, 3);
}

TEST_F(LaunchGraphs, WhatIsWrongWithTheLaunchesIsThrown) {
  LaunchGraph graph;
  Run(graph);
  EXPECT_THROW(graph.Run(owner_.get(), [] { Fail("the launch is wrong"); }), Error);
}

}  // namespace
}  // namespace shiftrt::gpu
