// SPDX-License-Identifier: Apache-2.0
// What the environment says about the Hugging Face hub. Names and meanings are those of Python's huggingface_hub 1.x
// and 2.x (constants.py), so that both programs work on one cache.
#pragma once

#include <filesystem>
#include <string>

namespace shiftrt {

// Where models and data sets of the hub are kept: HF_HUB_CACHE (formerly HUGGINGFACE_HUB_CACHE), or else HF_HOME/hub,
// where HF_HOME is XDG_CACHE_HOME/huggingface or ~/.cache/huggingface unless it is set. `~` and `$NAME` in these
// variables are replaced.
std::filesystem::path HuggingFaceCache();

// Whether HF_HUB_OFFLINE or TRANSFORMERS_OFFLINE is 1, on, yes or true.
bool HubIsOffline();

struct HubSettings {
  std::string endpoint = "https://huggingface.co";  // HF_ENDPOINT, without a final slash
  std::string token;  // HF_TOKEN (formerly HUGGING_FACE_HUB_TOKEN), or the first line of token_file; "" for none
  std::filesystem::path token_file;  // HF_TOKEN_PATH, or HF_HOME/token
  std::filesystem::path cache;       // HuggingFaceCache()
  std::string certificates;          // SSL_CERT_FILE, CURL_CA_BUNDLE or REQUESTS_CA_BUNDLE; "" for those of the system
  int connect_seconds = 10;          // HF_HUB_ETAG_TIMEOUT: until a connection stands
  int stall_seconds = 10;            // HF_HUB_DOWNLOAD_TIMEOUT: without any byte before a connection is given up
  double retry_seconds = 0.5;        // before the first retry; doubled for each further one

  // HF_HUB_DISABLE_IMPLICIT_TOKEN leaves the token out. Throws Error for a variable that is no number.
  static HubSettings FromEnvironment();
};

}  // namespace shiftrt
