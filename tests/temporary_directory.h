// SPDX-License-Identifier: Apache-2.0
// A temporary directory that is removed with its object.
#pragma once

#include <fmt/format.h>
#include <unistd.h>

#include <atomic>
#include <filesystem>

namespace shiftrt {

class TemporaryDirectory {
 public:
  TemporaryDirectory() {
    static std::atomic<int> counter = 0;
    path_ = std::filesystem::temp_directory_path() / fmt::format("shiftrt-test-{}-{}", ::getpid(), counter++);
    std::filesystem::create_directories(path_);
  }
  ~TemporaryDirectory() {
    std::error_code ignored;
    std::filesystem::remove_all(path_, ignored);
  }
  TemporaryDirectory(const TemporaryDirectory&) = delete;
  TemporaryDirectory& operator=(const TemporaryDirectory&) = delete;
  const std::filesystem::path& path() const { return path_; }

 private:
  std::filesystem::path path_;
};

}  // namespace shiftrt
