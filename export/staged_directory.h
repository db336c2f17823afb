// SPDX-License-Identifier: Apache-2.0
// A directory that is written under a temporary name beside its own, checked there, and then renamed.
#pragma once

#include <filesystem>
#include <vector>

namespace shiftrt {

// Throws UsageError for the field "output" where an export may not be written to `target`: it is a file, or a directory
// that is not empty. Nothing of the user's is ever mixed with an export or replaced by it.
void CheckNewDirectory(const std::filesystem::path& target);

class StagedDirectory {
 public:
  // Creates TARGET.tmpPID and the directories above it. Throws as CheckNewDirectory does, and Error with the system's
  // reason.
  explicit StagedDirectory(const std::filesystem::path& target);
  // Without Commit() removes all that was created.
  ~StagedDirectory();
  StagedDirectory(const StagedDirectory&) = delete;
  StagedDirectory& operator=(const StagedDirectory&) = delete;

  const std::filesystem::path& path() const { return staged_; }
  // Gives the directory, whose files are on disk already, its name.
  void Commit();

 private:
  std::filesystem::path target_, staged_;
  std::vector<std::filesystem::path> made_;  // directories above it, the deepest first
};

}  // namespace shiftrt
