// SPDX-License-Identifier: Apache-2.0
// The file from which an interrupted training continues, to the same bits.
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "include/shiftrt/training.h"

namespace shiftrt {

// Everything that decides the result of a training, by name: fingerprints of model, plan and text, and each setting.
using TrainingSettings = std::vector<std::pair<std::string, std::string>>;

// The arrays of a training without the gradients (train/loop.h), in host memory.
struct TrainingNumbers {
  std::span<const float> values, first, second;
  std::span<const float> best;  // the values at the lowest validation loss, where they are kept; else empty
  bool best_in_file = false;    // these are in memory of AllocateInFile()
};

// The contents of a checkpoint file.
struct TrainingState {
  std::vector<float> values, first, second, best;
  TrainingHistory history;  // its steps are those taken; the next step reads the text from there
};

class CheckpointFile {
 public:
  // An empty path is no file: Read() finds nothing and Write() writes nothing.
  CheckpointFile(std::filesystem::path path, TrainingSettings settings)
      : path_(std::move(path)), settings_(std::move(settings)) {}

  const std::filesystem::path& path() const { return path_; }
  // Makes the directory of the file if it is missing. Throws Error where the file could not be written there.
  void Try() const;
  // Returns what an interrupted training with these settings left for arrays of `count` numbers; nothing if there is no
  // file. Throws Error naming file and setting for one of another training, and for a malformed file.
  std::optional<TrainingState> Read(int64_t count) const;
  // Replaces the file in one step, also while an interruption is requested. Throws Error where there is no space: the
  // file that was there stays.
  void Write(const TrainingNumbers& numbers, const TrainingHistory& history) const;

 private:
  std::filesystem::path path_;
  TrainingSettings settings_;
};

}  // namespace shiftrt
