// SPDX-License-Identifier: Apache-2.0
/// \file
/// The files that a download brings, and its progress.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <span>
#include <string>
#include <vector>

namespace shiftrt {

/// The progress of one file, for display.
struct FileProgress {
  /// Says what happens to the file.
  enum class State {
    kWaiting,   ///< another program is downloading it, or nothing has begun
    kUnderWay,  ///< bytes arrive
    kChecking,  ///< its checksum is computed
    kDone,      ///< it is there
  };

  std::string path = {};          ///< in the repository
  int64_t size = 0;               ///< bytes
  int64_t present = 0;            ///< bytes that are on the disk
  int64_t brought = 0;            ///< bytes of these that this call downloaded
  double seconds = 0;             ///< since the download of the file began
  State state = State::kWaiting;  ///< state of the file
  std::string note = {};          ///< the reason for waiting, or empty
};

/// Called about ten times per second on the calling thread, and once at the end.
using DownloadProgress = std::function<void(std::span<const FileProgress>)>;

/// Says what a download would bring.
struct PulledRepository {
  std::string name = {};                 ///< name of the repository and its revision
  std::string renamed_to = {};           ///< the hub's name for it, if that is another one; or empty
  std::string commit = {};               ///< 40 hexadecimal digits
  std::filesystem::path directory = {};  ///< directory of its files, present or to come
  /// A file of the repository.
  struct File {
    std::string path = {};      ///< in the repository
    int64_t size = 0;           ///< bytes
    std::string checksum = {};  ///< as the hub gives it
  };
  std::vector<File> files = {};           ///< requested files, the smallest first
  int64_t bytes = 0;                      ///< bytes of all of them
  int64_t missing_bytes = 0;              ///< bytes that are not on this machine
  std::vector<std::string> damaged = {};  ///< damage of files that are there and are downloaded again
};

}  // namespace shiftrt
