// SPDX-License-Identifier: Apache-2.0
// Tests --device on a machine with GPUs: which devices it selects and what it refuses.
#include "tools/options.h"

#include <gtest/gtest.h>

#include "kernels/emulated/device.h"
#include "runtime/check.h"
#include "tests/runtime/thread_link.h"
#include "tools/gpus.h"

namespace shiftrt {
namespace {

Context Chosen(const std::string& device) {
  CommonOptions options;
  options.device = device;
  return options.MakeContext();
}

TEST(DeviceOption, NamesGpusInOrder) {
  const emu::Devices three(3);
  EXPECT_EQ(Chosen("cpu").device, Device::kCpu);
  const std::pair<const char*, std::vector<int>> cases[] = {
      {"auto", {0}}, {"cuda", {0}}, {"cuda:2", {2}}, {"cuda:2,0", {2, 0}}, {"cuda:all", {0, 1, 2}}};
  for (const auto& [device, gpus] : cases) {
    const Context context = Chosen(device);
    EXPECT_EQ(context.device, Device::kCuda) << device;
    EXPECT_EQ(context.gpus, gpus) << device;
    EXPECT_NE(context.solver, nullptr) << device;
  }
  const Context second = Chosen("cuda:2,0").WithGpu(1);
  EXPECT_EQ(second.gpus, std::vector<int>{0});
}

TEST(DeviceOption, GivesEachProcessAGpuOfItsHost) {
  const emu::Devices three(3);
  const std::pair<const char*, std::vector<int>> cases[] = {
      {"auto", {0, 1, 2}}, {"cuda", {0, 1}}, {"cuda:2,0", {2, 0}}, {"cuda:all", {0, 1, 2}}, {"cuda:1,1,0", {1, 1, 0}}};
  for (const auto& one : cases)
    InProcesses(static_cast<int>(one.second.size()), [&](const std::shared_ptr<Processes>& processes) {
      EXPECT_EQ(ChooseGpus(one.first, *processes), std::vector<int>{one.second[processes->rank()]}) << one.first;
    });
  InProcesses(3, [&](const std::shared_ptr<Processes>& processes) {
    try {
      ChooseGpus("cuda:0,1", *processes);
      ADD_FAILURE() << "three processes with two GPUs";
    } catch (const UsageError& error) {
      EXPECT_NE(std::string(error.what()).find("for 2 GPUs: start as many as there are GPUs"), std::string::npos)
          << error.what();
    }
  });
}

TEST(DeviceOption, RefusesGpusThatAreNotThere) {
  const emu::Devices two(2);
  for (const char* device : {"cuda:2", "cuda:0,2"}) {
    try {
      Chosen(device);
      ADD_FAILURE() << device;
    } catch (const UsageError& error) {
      EXPECT_NE(std::string(error.what()).find("there is no GPU 2; this machine has 0 to 1"), std::string::npos)
          << error.what();
    }
  }
  EXPECT_THROW(Chosen("cuda:0,0"), UsageError);
  EXPECT_THROW(Chosen("cuda:"), UsageError);
}

}  // namespace
}  // namespace shiftrt
