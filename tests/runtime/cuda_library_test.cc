// SPDX-License-Identifier: Apache-2.0
#include <dlfcn.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <cmath>
#include <filesystem>

#include "runtime/cuda/library.h"
#include "tests/runtime/refusal.h"

namespace shiftrt::gpu {
namespace {

class CudaLibraries : public testing::Test {
 protected:
  CudaLibraries() {
    std::filesystem::create_directories(directory_);
    Dl_info libm{};
    double (*const function)(double, int) = &std::ldexp;
    dladdr(reinterpret_cast<void*>(function), &libm);
    library_ = libm.dli_fname;
  }
  ~CudaLibraries() override { std::filesystem::remove_all(directory_); }
  // A library that the loader accepts.
  void Install(const std::string& name) { std::filesystem::copy_file(library_, directory_ / name); }
  std::string Stem() const { return directory_ / "libtest"; }

  const std::filesystem::path directory_ =
      testing::TempDir() + fmt::format("cuda_libraries_{}_{}", ::getpid(), next_++);
  std::string library_;

 private:
  // Each test has a directory of its own, because the loader keeps what it has loaded by its path.
  inline static int next_ = 0;
};

TEST_F(CudaLibraries, TheVersionOfTheBuildComesFirst) {
  Install("libtest.so.12");
  Install("libtest.so.13");
  Install("libtest.so.14");
  testing::internal::CaptureStderr();
  EXPECT_EQ(SharedLibrary("products", Stem(), 13).name(), Stem() + ".so.13");
  EXPECT_EQ(testing::internal::GetCapturedStderr(), "");
}

TEST_F(CudaLibraries, ANeighbouringVersionIsUsedAndNamed) {
  for (const char* const version : {"12", "14"}) {
    const std::string installed = fmt::format("libtest.so.{}", version);
    Install(installed);
    testing::internal::CaptureStderr();
    EXPECT_EQ(SharedLibrary("products", Stem(), 13).name(), directory_ / installed);
    const std::string said = testing::internal::GetCapturedStderr();
    EXPECT_NE(said.find("the GPU's products need"), std::string::npos) << said;
    EXPECT_NE(said.find("libtest.so.13, which is not installed"), std::string::npos) << said;
    EXPECT_NE(said.find(installed + " is used"), std::string::npos) << said;
  }
}

TEST_F(CudaLibraries, AMissingLibraryIsNamedWithAllVersionsAndTheWayToFindIt) {
  const std::string said = Refusal([&] { SharedLibrary("products", Stem(), 13); });
  EXPECT_TRUE(said.starts_with("the GPU's products need a library that LD_LIBRARY_PATH or the system's search finds:"))
      << said;
  EXPECT_NE(said.find("libtest.so.13 or " + Stem() + ".so.14 or " + Stem() + ".so.12"), std::string::npos) << said;
}

}  // namespace
}  // namespace shiftrt::gpu
