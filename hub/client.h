// SPDX-License-Identifier: Apache-2.0
// The protocol of the Hugging Face hub: the files of a revision, their addresses, and the meaning of its errors. It is
// the protocol of Python's huggingface_hub (hf_api.py, file_download.py, utils/_http.py).
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "hub/cache.h"
#include "hub/http.h"
#include "hub/settings.h"
#include "include/shiftrt/downloads.h"

namespace shiftrt {

// A file of a commit. Its checksum (hub/digest.h) is the name of its blob in the cache.
using RemoteFile = PulledRepository::File;

struct Listing {
  std::string id;      // the repository's name; it differs from the requested one if the hub has renamed it
  std::string commit;  // 40 hexadecimal digits
  std::vector<RemoteFile> files;
};

// True if the same request may succeed later: too many requests (429), a temporary failure of the server (408, 5xx), a
// broken connection.
bool IsPassing(const Exchange& exchange);

// The seconds to wait before try number `attempt` (from 1): as Retry-After says, or `first`, doubled for each earlier
// try.
double RetryDelay(const Exchange& exchange, int attempt, double first);

// Reads the answer to a request for the listing of a repository: /api/models/ID/revision/REV?blobs=true. Errors name
// the repository and the server `host`. Throws Error for names that lead out of the repository, for a commit that is
// no checksum, and for sizes out of range.
Listing ParseListing(std::string_view body, const Repository& repository, const std::string& host);

class HubClient {
 public:
  // A request fails after so many tries in a row that brought no data.
  static constexpr int kTries = 5;
  // The longest wait, in seconds, that a server can impose by Retry-After.
  static constexpr double kLongestWait = 300;

  explicit HubClient(HubSettings settings);

  const HubSettings& settings() const { return settings_; }
  HttpClient& http() { return http_; }

  // Lists all files of the revision. A renamed repository is found under its new name. Throws Error, which says what to
  // do.
  Listing List(const Repository& repository);
  // Looks up one file of a revision or commit, and the commit.
  Listing Look(const Repository& repository, const std::string& path);

  // The address of a file. The hub answers with the file or redirects to another address.
  std::string FileUrl(const Repository& repository, const std::string& commit, const std::string& path) const;
  // The header fields of a request to `url`. They contain the token only if the server is the hub's own.
  std::vector<std::string> Fields(const std::string& url) const;
  // False for a redirect from HTTPS to HTTP.
  bool MayFollow(const std::string& from, const std::string& to) const;
  bool IsHub(const std::string& url) const { return OriginOf(url) == origin_; }

  // Throws Error for an exchange without an answer, or with an error as the answer. The message says what to do.
  [[noreturn]] void FailAnswer(const Repository& repository, const std::string& what, const Exchange& exchange) const;

 private:
  HubSettings settings_;
  std::string origin_;
  HttpClient http_;
};

}  // namespace shiftrt
