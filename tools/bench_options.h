// What the forms of `shiftrt bench` share.
#pragma once

#include <unistd.h>

#include <filesystem>
#include <memory>
#include <string>

#include "bench/model_bench.h"
#include "runtime/check.h"
#include "tools/options.h"

namespace shiftrt {

struct BenchOptions {
  CommonOptions common;
  std::string what = "cpu", config, keep;
  ModelBenchOptions bench;
};

// A checkpoint of random weights that goes with the object, unless it is to be kept.
class RandomModel {
 public:
  RandomModel(const std::string& config, const std::string& keep)
      : directory_(keep.empty() ? std::filesystem::temp_directory_path() / fmt::format("shiftrt-bench-{}", ::getpid())
                                : std::filesystem::path(keep)),
        kept_(!keep.empty()) {
    WriteRandomCheckpoint(config, DType::kBFloat16, 1, directory_);
  }
  ~RandomModel() {
    std::error_code ignored;
    if (!kept_) std::filesystem::remove_all(directory_, ignored);
  }
  RandomModel(const RandomModel&) = delete;
  RandomModel& operator=(const RandomModel&) = delete;
  const std::filesystem::path& directory() const { return directory_; }

 private:
  std::filesystem::path directory_;
  bool kept_;
};

// `shiftrt bench gpu`. Throws UsageError in a build without the CUDA backend.
int BenchGpu(const BenchOptions& options);

}  // namespace shiftrt
