// SPDX-License-Identifier: Apache-2.0
// The settings of the Hugging Face hub in the environment. Names and meanings are those of Python's huggingface_hub 1.x
// and 2.x (constants.py), so that both programs use one cache.
#pragma once

#include <filesystem>
#include <string>

namespace shiftrt {

// The directory of models and data sets of the hub: HF_HUB_CACHE (formerly HUGGINGFACE_HUB_CACHE), or else HF_HOME/hub,
// where HF_HOME defaults to XDG_CACHE_HOME/huggingface or ~/.cache/huggingface. `~` and `$NAME` in these variables are
// replaced.
std::filesystem::path HuggingFaceCache();

// True if HF_HUB_OFFLINE or TRANSFORMERS_OFFLINE is 1, on, yes or true.
bool HubIsOffline();

struct HubSettings {
  std::string endpoint = "https://huggingface.co";  // HF_ENDPOINT, without a final slash
  std::string token;  // HF_TOKEN (formerly HUGGING_FACE_HUB_TOKEN), or the first line of token_file; "" for none
  std::filesystem::path token_file;  // HF_TOKEN_PATH, or HF_HOME/token
  std::filesystem::path cache;       // HuggingFaceCache()
  std::string certificates;          // SSL_CERT_FILE, CURL_CA_BUNDLE or REQUESTS_CA_BUNDLE; "" for those of the system
  int connect_seconds = 10;          // HF_HUB_ETAG_TIMEOUT: limit for establishing a connection
  int stall_seconds = 10;            // HF_HUB_DOWNLOAD_TIMEOUT: limit for a connection without data
  int slow_seconds = 60;             // over so long, a connection must bring a kilobyte per second
  double retry_seconds = 0.5;        // before the first retry; doubled for each further one

  // Reads the variables. HF_HUB_DISABLE_IMPLICIT_TOKEN leaves the token out. Throws Error for a number that is
  // malformed.
  static HubSettings FromEnvironment();
};

}  // namespace shiftrt
