// SPDX-License-Identifier: Apache-2.0
// The Hugging Face hub's questions and answers: which files a revision has, where they are, and what its errors mean.
// The protocol is that which Python's huggingface_hub speaks (hf_api.py, file_download.py, utils/_http.py).
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "hub/cache.h"
#include "hub/http.h"
#include "hub/settings.h"

namespace shiftrt {

// A file of a commit. `etag` is the name of its blob in the cache, and its checksum (hub/digest.h).
struct RemoteFile {
  std::string path;
  int64_t size = 0;
  std::string etag;
};

struct Listing {
  std::string id;      // of the repository as the hub calls it now: another one than was asked for where it was renamed
  std::string commit;  // 40 hexadecimal digits
  std::vector<RemoteFile> files;
};

// Whether asking the same again may give another answer: too many requests (429), a server's passing failure (408,
// 5xx), a connection that broke.
bool IsPassing(const Exchange& exchange);

// The seconds before try number `attempt` (from 1): what Retry-After asks for, or `first` doubled for each one before.
double RetryDelay(const Exchange& exchange, int attempt, double first);

class HubClient {
 public:
  // Tries of a request before it fails, of which none brought anything.
  static constexpr int kTries = 5;
  // The longest that a server's Retry-After is heeded.
  static constexpr double kLongestWait = 300;

  explicit HubClient(HubSettings settings);

  const HubSettings& settings() const { return settings_; }
  HttpClient& http() { return http_; }

  // All files of the revision. A renamed repository is found under its new name. Throws Error that says what to do.
  Listing List(const Repository& repository);
  // One file of a revision or commit, and the commit that this is.
  Listing Look(const Repository& repository, const std::string& path);

  // Where a file is fetched: the hub answers with it, or redirects to where it lies.
  std::string FileUrl(const Repository& repository, const std::string& commit, const std::string& path) const;
  // The fields of a request to `url`: the token only where it is the hub's own server.
  std::vector<std::string> Fields(const std::string& url) const;
  // Whether following a redirect keeps what HTTPS protects.
  bool MayFollow(const std::string& from, const std::string& to) const;
  bool IsHub(const std::string& url) const { return OriginOf(url) == origin_; }

  // Throws Error for an exchange that brought no answer, or not the one that was wanted, saying what to do.
  [[noreturn]] void FailAnswer(const Repository& repository, const std::string& what, const Exchange& exchange) const;

 private:
  HubSettings settings_;
  std::string origin_;
  HttpClient http_;
};

}  // namespace shiftrt
