// Models for tests: made from the deterministic rule into a directory that goes with the object.
#pragma once

#include <unistd.h>

#include <atomic>
#include <filesystem>
#include <string>

#include "models/weights.h"
#include "runtime/check.h"

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

inline std::filesystem::path GoldenModel(const std::string& name) {
  return std::filesystem::path(SHIFTRT_TEST_DIR) / "goldens/models" / name;
}

// The golden's weights (seed 1) in `dtype`; the mapping outlives the files' names.
inline std::shared_ptr<const Weights> GoldenWeights(const std::string& name, DType dtype = DType::kFloat32) {
  const TemporaryDirectory directory;
  WriteRandomCheckpoint(GoldenModel(name) / "config.json", dtype, 1, directory.path());
  return LoadWeights(directory.path());
}

}  // namespace shiftrt
