// SPDX-License-Identifier: Apache-2.0
// Downloads files of one commit into the cache: several files at once, and several ranges of large files at once.
#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <vector>

#include "hub/client.h"
#include "include/shiftrt/downloads.h"

namespace shiftrt {

struct DownloadOptions {
  int connections = 8;                      // at once
  int64_t piece_bytes = int64_t{32} << 20;  // larger files are downloaded in pieces of this size
};

// Downloads the blobs of `files` into the cache, and links each in the commit's snapshot as soon as its size and
// checksum are right. If another program is downloading a blob, waits for it. Throws Error that names the file and says
// what to do; Interrupted. Bytes that have arrived stay on disk and are not downloaded again.
void Download(HubClient& hub, const Repository& repository, const std::string& commit,
              const std::vector<RemoteFile>& files, const DownloadProgress& progress,
              const DownloadOptions& options = {});

}  // namespace shiftrt
