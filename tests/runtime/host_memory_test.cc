// SPDX-License-Identifier: Apache-2.0
#include "runtime/host_memory.h"

#include <gtest/gtest.h>

#include <cstring>
#include <fstream>
#include <string>

#include "runtime/files.h"
#include "tests/temporary_directory.h"
#include "tests/write_text.h"

namespace shiftrt {
namespace {

class HostMemory : public ::testing::Test {
 protected:
  void Write(const std::string& name, const std::string& text) {
    std::filesystem::create_directories((root_.path() / name).parent_path());
    WriteText(root_.path() / name, text);
  }
  TemporaryDirectory root_;
};

TEST_F(HostMemory, IsWhatTheKernelCallsAvailable) {
  Write("proc/meminfo", "MemTotal:       2000 kB\nMemFree:         100 kB\nMemAvailable:    1500 kB\nBuffers: 7 kB\n");
  EXPECT_EQ(AvailableMemory(root_.path()), 1500 * 1024);
  Write("sys/fs/cgroup/memory.max", "max\n");
  EXPECT_EQ(AvailableMemory(root_.path()), 1500 * 1024);
}

TEST_F(HostMemory, IsWhatAControlGroupHasLeft) {
  Write("proc/meminfo", "MemAvailable:    1500 kB\n");
  Write("sys/fs/cgroup/memory.max", "1000000\n");
  Write("sys/fs/cgroup/memory.current", "900000\n");
  EXPECT_EQ(AvailableMemory(root_.path()), 100000);
  Write("sys/fs/cgroup/memory.stat", "anon 3\nfile 700000\ninactive_file 300000\nactive_file 400000\n");
  EXPECT_EQ(AvailableMemory(root_.path()), 800000);
  Write("sys/fs/cgroup/memory.current", "2000000\n");
  Write("sys/fs/cgroup/memory.stat", "");
  EXPECT_EQ(AvailableMemory(root_.path()), 0);
}

// As of a job of Slurm or a service of systemd: the limit is that of a group below the root.
TEST_F(HostMemory, IsWhatTheGroupsOfTheProcessHaveLeft) {
  Write("proc/meminfo", "MemAvailable:    1500 kB\n");
  Write("proc/self/cgroup", "1:name=systemd:/old\n0::/jobs/job_7/step_0\n");
  Write("sys/fs/cgroup/jobs/job_7/step_0/memory.max", "max\n");
  EXPECT_EQ(AvailableMemory(root_.path()), 1500 * 1024);
  Write("sys/fs/cgroup/jobs/job_7/memory.max", "1000000\n");
  Write("sys/fs/cgroup/jobs/job_7/memory.current", "400000\n");
  EXPECT_EQ(AvailableMemory(root_.path()), 600000);
  Write("sys/fs/cgroup/jobs/job_7/step_0/memory.max", "300000\n");
  EXPECT_EQ(AvailableMemory(root_.path()), 300000);
  Write("proc/self/cgroup", "0::/\n");
  EXPECT_EQ(AvailableMemory(root_.path()), 1500 * 1024);
}

// The contents stay when the pages are released, also where the file has to be in memory.
TEST_F(HostMemory, OfAFileKeepsItsContents) {
  constexpr int64_t kBytes = int64_t{1} << 20;
  for (const std::filesystem::path& directory : {root_.path(), root_.path() / "none"}) {
    const std::shared_ptr<std::byte> memory = AllocateInFile(kBytes, directory);
    const std::span<std::byte> bytes(memory.get(), kBytes);
    for (int64_t i = 0; i < kBytes; ++i) bytes[i] = static_cast<std::byte>(i / 3);
    ReleasePages(bytes);
    for (int64_t i = 0; i < kBytes; ++i) ASSERT_EQ(bytes[i], static_cast<std::byte>(i / 3)) << directory << i;
  }
  EXPECT_TRUE(std::filesystem::is_empty(root_.path()));
}

// Ranges of a mapped file that lie next to each other move as one, and keep addresses and bytes.
TEST_F(HostMemory, MovesAMappedFileToHugePages) {
  constexpr size_t kBytes = size_t{9} << 20;
  std::string content(kBytes, 0);
  for (size_t i = 0; i < kBytes; ++i) content[i] = static_cast<char>(i / 4096 * 7 + i % 251);
  Write("weights", content);
  const MappedFile file(root_.path() / "weights");
  const std::byte* const data = file.bytes().data();
  Context context;
  context.threads = 3;
  MoveToHugePages(context, {{data + (4 << 20) + 100, size_t{5} << 19}, {data + 1000, (4 << 20) - 1000}, {data, 10}});
  EXPECT_EQ(std::memcmp(data, content.data(), kBytes), 0);
  // A page in the middle is a copy of the file now, unless the system has no huge pages.
  std::string enabled;
  std::getline(std::ifstream("/sys/kernel/mm/transparent_hugepage/enabled"), enabled);
  if (enabled.empty() || enabled.find("[never]") != std::string::npos) GTEST_SKIP() << "no huge pages: " << enabled;
  constexpr std::streamoff kMiddle = 3 << 20, kOutside = 8 << 20;
  std::fstream changed(root_.path() / "weights", std::ios::in | std::ios::out | std::ios::binary);
  changed.seekp(kOutside).write("new", 3).seekp(kMiddle).write("new", 3);
  changed.close();
  EXPECT_EQ(std::memcmp(data + kOutside, "new", 3), 0);
  EXPECT_EQ(std::memcmp(data + kMiddle, content.data() + kMiddle, 3), 0);
}

TEST_F(HostMemory, OfAFileIsZeroAtFirstAndNeverNull) {
  const std::shared_ptr<std::byte> memory = AllocateInFile(100, root_.path());
  for (int64_t i = 0; i < 100; ++i) EXPECT_EQ(memory.get()[i], std::byte{0});
  EXPECT_NE(AllocateInFile(0, root_.path()), nullptr);
}

TEST_F(HostMemory, OfThisMachineIsSomethingAndAnOrderCounts) {
  EXPECT_GT(AvailableMemory(), 1 << 20);
  EXPECT_GT(AvailableMemory("/no/such/root"), int64_t{1} << 50);  // nothing is known, so there is no limit
  Context context;
  const auto available = static_cast<double>(AvailableMemory());
  EXPECT_NEAR(static_cast<double>(UsableMemory(context)), 0.75 * available, 0.1 * available);
  context.memory = 12345;
  EXPECT_EQ(UsableMemory(context), 12345);
}

}  // namespace
}  // namespace shiftrt
