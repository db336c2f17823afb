// SPDX-License-Identifier: Apache-2.0
#include "hub/settings.h"

#include <algorithm>
#include <cctype>
#include <cstdlib>
#include <initializer_list>

#include "runtime/check.h"
#include "runtime/files.h"
#include "runtime/parse.h"

namespace shiftrt {

namespace {

namespace fs = std::filesystem;

// The first of these variables that is set and not empty, or "".
std::string Environment(std::initializer_list<const char*> names) {
  for (const char* name : names)
    if (const char* value = std::getenv(name); value != nullptr && *value != '\0') return value;
  return "";
}

bool IsTrue(std::string value) {
  std::transform(value.begin(), value.end(), value.begin(), [](unsigned char c) { return std::toupper(c); });
  return value == "1" || value == "ON" || value == "YES" || value == "TRUE";
}

// Replaces `~`, `$NAME` and `${NAME}`, as os.path.expanduser and expandvars do; an unknown variable stays as it is.
std::string Expand(std::string path) {
  if (path == "~" || path.starts_with("~/")) path.replace(0, 1, Environment({"HOME"}));
  for (size_t at = path.find('$'); at != path.npos; at = path.find('$', at + 1)) {
    const bool braced = path.substr(at + 1, 1) == "{";
    const size_t begin = at + 1 + (braced ? 1 : 0);
    size_t end = begin;
    while (end < path.size() && (std::isalnum(static_cast<unsigned char>(path[end])) != 0 || path[end] == '_')) ++end;
    if (end == begin || (braced && path.substr(end, 1) != "}")) continue;
    const char* value = std::getenv(path.substr(begin, end - begin).c_str());
    if (value != nullptr) path.replace(at, end + (braced ? 1 : 0) - at, value);
  }
  return path;
}

fs::path HuggingFaceHome() {
  if (const auto home = Environment({"HF_HOME"}); !home.empty()) return Expand(home);
  const auto caches = Environment({"XDG_CACHE_HOME"});
  return fs::path(Expand(caches.empty() ? "~/.cache" : caches)) / "huggingface";
}

std::string FirstLine(const std::string& text) {
  const size_t begin = text.find_first_not_of(" \t\r\n");
  if (begin == text.npos) return "";
  return text.substr(begin, text.find_first_of(" \t\r\n", begin) - begin);
}

int Seconds(const char* name, int fallback) {
  const std::string value = Environment({name});
  if (value.empty()) return fallback;
  int seconds = 0;
  Check(ParseNumber(value, &seconds) && seconds > 0, "{} is \"{}\", expected a whole number of seconds above 0", name,
        value);
  return seconds;
}

}  // namespace

fs::path HuggingFaceCache() {
  const auto cache = Environment({"HF_HUB_CACHE", "HUGGINGFACE_HUB_CACHE"});
  return cache.empty() ? HuggingFaceHome() / "hub" : fs::path(Expand(cache));
}

bool HubIsOffline() { return IsTrue(Environment({"HF_HUB_OFFLINE", "TRANSFORMERS_OFFLINE"})); }

HubSettings HubSettings::FromEnvironment() {
  HubSettings settings;
  if (const auto endpoint = Environment({"HF_ENDPOINT"}); !endpoint.empty()) settings.endpoint = endpoint;
  while (settings.endpoint.ends_with('/')) settings.endpoint.pop_back();
  const auto token_file = Environment({"HF_TOKEN_PATH"});
  settings.token_file = token_file.empty() ? HuggingFaceHome() / "token" : fs::path(Expand(token_file));
  if (!IsTrue(Environment({"HF_HUB_DISABLE_IMPLICIT_TOKEN"}))) {
    const std::string given = Environment({"HF_TOKEN", "HUGGING_FACE_HUB_TOKEN"});
    settings.token = FirstLine(given);
    // A request would carry what follows a line break as another field of its header.
    const size_t end = given.find_last_not_of(" \t\r\n");
    Check(end == given.npos || given.find(settings.token) + settings.token.size() == end + 1,
          "HF_TOKEN has a line break or a blank in it, expected a token such as hf_...");
    if (settings.token.empty() && Exists(settings.token_file))
      settings.token = FirstLine(ReadFile(settings.token_file, 1 << 16));
  }
  settings.cache = HuggingFaceCache();
  settings.certificates = Environment({"SSL_CERT_FILE", "CURL_CA_BUNDLE", "REQUESTS_CA_BUNDLE"});
  settings.connect_seconds = Seconds("HF_HUB_ETAG_TIMEOUT", settings.connect_seconds);
  settings.stall_seconds = Seconds("HF_HUB_DOWNLOAD_TIMEOUT", settings.stall_seconds);
  return settings;
}

}  // namespace shiftrt
