// SPDX-License-Identifier: Apache-2.0
// A directory that is written under a temporary name next to its final one, checked there, and then renamed.
#pragma once

#include <filesystem>
#include <vector>

#include "runtime/descriptor.h"

namespace shiftrt {

// Throws UsageError for the field "output" if `target` is a file, or a directory that is not empty. An export is never
// mixed with files of the user and never replaces them.
void CheckNewDirectory(const std::filesystem::path& target);

class StagedDirectory {
 public:
  // Creates TARGET.tmp-shiftrt-PID-RANDOM and the directories above it. Throws as CheckNewDirectory does, and Error
  // with the system's reason.
  explicit StagedDirectory(const std::filesystem::path& target);
  // Removes all that was created, unless Commit() was called.
  ~StagedDirectory();
  StagedDirectory(const StagedDirectory&) = delete;
  StagedDirectory& operator=(const StagedDirectory&) = delete;

  const std::filesystem::path& path() const { return staged_; }
  // Renames the directory, whose files are on disk already, to its final name.
  void Commit();

 private:
  // Removes the directory and those above it that were created for it.
  void Discard();

  std::filesystem::path target_, staged_;
  Descriptor lock_;                          // tells other processes that this one still writes the directory
  std::vector<std::filesystem::path> made_;  // directories above it, the deepest first
};

}  // namespace shiftrt
