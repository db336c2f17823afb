// SPDX-License-Identifier: Apache-2.0
// Brings files of one commit into the cache: several at once, large ones in several ranges at once.
#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <vector>

#include "hub/client.h"

namespace shiftrt {

// How far a file is, for people.
struct FileProgress {
  enum class State { kWaiting, kUnderWay, kChecking, kDone };

  std::string path;
  int64_t size = 0;
  int64_t present = 0;  // bytes that are on the disk
  int64_t brought = 0;  // of these, by this run
  double seconds = 0;   // since it began
  State state = State::kWaiting;
  std::string note;  // why nothing happens at the moment, or ""
};

// Called about ten times a second, on the calling thread, and a last time when all is done.
using DownloadProgress = std::function<void(std::span<const FileProgress>)>;

struct DownloadOptions {
  int connections = 8;                      // at once
  int64_t piece_bytes = int64_t{32} << 20;  // of a file that is larger than this, several pieces come at once
};

// Brings the blobs of `files` into the cache and links them in the commit's snapshot, each as soon as its size and
// checksum are right. What another program downloads at the moment is waited for. Throws Error that names the file and
// says what to do; Interrupted. Whatever had arrived stays, and is not fetched again.
void Download(HubClient& hub, const Repository& repository, const std::string& commit,
              const std::vector<RemoteFile>& files, const DownloadProgress& progress,
              const DownloadOptions& options = {});

}  // namespace shiftrt
