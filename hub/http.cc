// SPDX-License-Identifier: Apache-2.0
#include "hub/http.h"

// libcurl's type-checking macro would call the linked functions, not the loaded ones.
#define CURL_DISABLE_TYPECHECK
#define CURL_DISABLE_DEPRECATION
#include <curl/curl.h>
#undef curl_easy_setopt
#undef curl_easy_getinfo
#undef curl_multi_setopt

#include <algorithm>
#include <array>
#include <chrono>
#include <ctime>
#include <utility>

#include "runtime/files.h"
#include "runtime/parse.h"
#include "runtime/printable.h"
#include "runtime/shared_library.h"

namespace shiftrt {

namespace {

constexpr size_t kMaxText = size_t{1} << 27;  // bytes of an answer that is kept: listings of large repositories

struct Curl {
  SharedLibrary library{
      "downloading needs libcurl, which is not installed (Debian and Ubuntu: apt-get install libcurl4);",
      {"libcurl.so.4", "libcurl-gnutls.so.4"}};
  decltype(&curl_global_init) global_init = library.Find("curl_global_init");
  decltype(&curl_easy_init) easy_init = library.Find("curl_easy_init");
  decltype(&curl_easy_cleanup) easy_cleanup = library.Find("curl_easy_cleanup");
  decltype(&curl_easy_setopt) set = library.Find("curl_easy_setopt");
  decltype(&curl_easy_getinfo) get = library.Find("curl_easy_getinfo");
  decltype(&curl_easy_strerror) message = library.Find("curl_easy_strerror");
  decltype(&curl_slist_append) append = library.Find("curl_slist_append");
  decltype(&curl_slist_free_all) free_list = library.Find("curl_slist_free_all");
  decltype(&curl_multi_init) multi_init = library.Find("curl_multi_init");
  decltype(&curl_multi_cleanup) multi_cleanup = library.Find("curl_multi_cleanup");
  decltype(&curl_multi_add_handle) add = library.Find("curl_multi_add_handle");
  decltype(&curl_multi_remove_handle) remove = library.Find("curl_multi_remove_handle");
  decltype(&curl_multi_perform) perform = library.Find("curl_multi_perform");
  decltype(&curl_multi_poll) poll = library.Find("curl_multi_poll");
  decltype(&curl_multi_info_read) info_read = library.Find("curl_multi_info_read");
  decltype(&curl_multi_strerror) multi_message = library.Find("curl_multi_strerror");
  decltype(&curl_url) url = library.Find("curl_url");
  decltype(&curl_url_cleanup) url_cleanup = library.Find("curl_url_cleanup");
  decltype(&curl_url_set) url_set = library.Find("curl_url_set");
  decltype(&curl_url_get) url_get = library.Find("curl_url_get");
  decltype(&curl_free) free = library.Find("curl_free");
  decltype(&curl_getdate) date = library.Find("curl_getdate");

  Curl() { Check(global_init(CURL_GLOBAL_DEFAULT) == CURLE_OK, "libcurl cannot be initialised"); }
};

const Curl& LoadCurl() {
  static const Curl curl;
  return curl;
}

Trouble TroubleOf(CURLcode code) {
  switch (code) {
    case CURLE_OK: return Trouble::kNone;
    case CURLE_ABORTED_BY_CALLBACK: return Trouble::kSlow;
    case CURLE_COULDNT_RESOLVE_HOST:
    case CURLE_COULDNT_RESOLVE_PROXY:
    case CURLE_COULDNT_CONNECT: return Trouble::kUnreachable;
    case CURLE_PEER_FAILED_VERIFICATION:
    case CURLE_SSL_CACERT_BADFILE:
    case CURLE_SSL_ISSUER_ERROR:
    case CURLE_SSL_CERTPROBLEM: return Trouble::kTls;
    default: return Trouble::kBroken;
  }
}

// One part of an address; "" if it is not an address of http or https.
std::string PartOf(const std::string& url, CURLUPart part) {
  const Curl& curl = LoadCurl();
  const std::unique_ptr<CURLU, decltype(curl.url_cleanup)> parsed(curl.url(), curl.url_cleanup);
  if (parsed == nullptr || curl.url_set(parsed.get(), CURLUPART_URL, url.c_str(), 0) != CURLUE_OK) return "";
  char* text = nullptr;
  if (curl.url_get(parsed.get(), part, &text, CURLU_DEFAULT_PORT) != CURLUE_OK) return "";
  std::string value = text;
  curl.free(text);
  std::transform(value.begin(), value.end(), value.begin(), [](unsigned char c) { return std::tolower(c); });
  return value;
}

}  // namespace

struct Exchange::Handle {
  const Curl& curl = LoadCurl();
  CURL* easy = curl.easy_init();
  curl_slist* fields = nullptr;
  CURLM* multi = nullptr;  // while it is under way
  std::array<char, CURL_ERROR_SIZE> error{};
  const HttpOptions* options = nullptr;
  // The window in which the speed is measured: when it began, and how many bytes of the body were there.
  std::chrono::steady_clock::time_point began = std::chrono::steady_clock::now();
  curl_off_t bytes_before = 0;

  ~Handle() {
    if (multi != nullptr) curl.remove(multi, easy);
    curl.easy_cleanup(easy);
    curl.free_list(fields);
  }
};

Exchange::Exchange(std::string url, std::vector<std::string> fields, bool head_only)
    : url_(std::move(url)), fields_(std::move(fields)), head_only_(head_only) {}
Exchange::~Exchange() = default;

std::string Exchange::Field(const std::string& name) const {
  const auto at = answer_.find(name);
  return at == answer_.end() ? "" : at->second;
}

bool TextExchange::OnBody(std::string_view bytes) {
  if (body_.size() + bytes.size() > kMaxText) return false;
  body_ += bytes;
  return true;
}

struct HttpClient::State {
  const Curl& curl = LoadCurl();
  HttpOptions options;
  CURLM* multi = curl.multi_init();
  ~State() { curl.multi_cleanup(multi); }

  // Calls `body` and keeps what it throws, because exceptions cannot pass through libcurl.
  template <typename Body>
  static size_t Guarded(Exchange& exchange, size_t size, Body&& body) {
    try {
      return body() ? size : 0;
    } catch (...) {
      exchange.thrown_ = std::current_exception();
      return 0;
    }
  }

  static size_t OnHeaderLine(char* data, size_t one, size_t size, void* user) {
    auto& exchange = *static_cast<Exchange*>(user);
    std::string_view line(data, one * size);
    while (!line.empty() && (line.back() == '\n' || line.back() == '\r' || line.back() == ' ')) line.remove_suffix(1);
    if (line.starts_with("HTTP/")) {
      exchange.answer_.clear();
      return one * size;
    }
    if (line.empty()) {
      long status = 0;
      exchange.handle_->curl.get(exchange.handle_->easy, CURLINFO_RESPONSE_CODE, &status);
      exchange.status_ = static_cast<int>(status);
      if (status < kOk) return one * size;  // 1xx: the answer is still to come
      return Guarded(exchange, one * size, [&] { return exchange.OnHead(); });
    }
    const size_t colon = line.find(':');
    if (colon == line.npos) return one * size;
    std::string name(line.substr(0, colon));
    std::transform(name.begin(), name.end(), name.begin(), [](unsigned char c) { return std::tolower(c); });
    const size_t value = line.find_first_not_of(" \t", colon + 1);
    exchange.answer_[name] = value == line.npos ? "" : line.substr(value);
    return one * size;
  }

  static size_t OnData(char* data, size_t one, size_t size, void* user) {
    auto& exchange = *static_cast<Exchange*>(user);
    return Guarded(exchange, one * size, [&] { return exchange.OnBody({data, one * size}); });
  }

  // Called at least once a second. Anything but 0 ends the exchange.
  static int OnProgress(void* user, curl_off_t, curl_off_t bytes, curl_off_t, curl_off_t) {
    Exchange::Handle& handle = *static_cast<Exchange*>(user)->handle_;
    const auto now = std::chrono::steady_clock::now();
    const std::chrono::seconds window(handle.options->slow_seconds);
    if (now - handle.began < window) return 0;
    if (bytes - handle.bytes_before < curl_off_t{handle.options->slow_bytes} * window.count()) return 1;
    handle.began = now;
    handle.bytes_before = bytes;
    return 0;
  }

  void Finish(Exchange& exchange, CURLcode code) const {
    Exchange::Handle& handle = *exchange.handle_;
    exchange.trouble_ = TroubleOf(code);
    if (exchange.trouble_ != Trouble::kNone)
      exchange.reason_ = Printable(handle.error[0] != '\0' ? handle.error.data() : curl.message(code));
    if (exchange.trouble_ == Trouble::kSlow)
      exchange.reason_ = fmt::format("less than {} bytes per second over {} seconds", handle.options->slow_bytes,
                                     handle.options->slow_seconds);
    if (code == CURLE_WRITE_ERROR) exchange.trouble_ = Trouble::kStopped;
    const char* target = nullptr;
    if (curl.get(handle.easy, CURLINFO_REDIRECT_URL, &target) == CURLE_OK && target != nullptr)
      exchange.redirect_ = target;
    const std::exception_ptr thrown = exchange.thrown_;
    exchange.handle_.reset();
    if (thrown) std::rethrow_exception(thrown);
  }
};

HttpClient::HttpClient(const HttpOptions& options) : state_(std::make_unique<State>()) { state_->options = options; }
HttpClient::~HttpClient() = default;

void HttpClient::Start(Exchange& exchange) {
  const Curl& curl = state_->curl;
  exchange.handle_ = std::make_unique<Exchange::Handle>();
  Exchange::Handle& handle = *exchange.handle_;
  CURL* const easy = handle.easy;
  for (const std::string& field : exchange.fields_) handle.fields = curl.append(handle.fields, field.c_str());
  curl.set(easy, CURLOPT_URL, exchange.url_.c_str());
  curl.set(easy, CURLOPT_PRIVATE, &exchange);
  curl.set(easy, CURLOPT_HTTPHEADER, handle.fields);
  curl.set(easy, CURLOPT_NOBODY, exchange.head_only_ ? 1L : 0L);
  curl.set(easy, CURLOPT_USERAGENT, "shiftrt/" SHIFTRT_VERSION);
  curl.set(easy, CURLOPT_FOLLOWLOCATION, 0L);
  // This option is deprecated, but libcurl before 7.85 does not know the one that replaces it.
  curl.set(easy, CURLOPT_PROTOCOLS, static_cast<long>(CURLPROTO_HTTP | CURLPROTO_HTTPS));
  // HTTP/2 would put all ranges of a file on one connection, which is slower than several.
  curl.set(easy, CURLOPT_HTTP_VERSION, static_cast<long>(CURL_HTTP_VERSION_1_1));
  curl.set(easy, CURLOPT_SUPPRESS_CONNECT_HEADERS, 1L);
  curl.set(easy, CURLOPT_NOSIGNAL, 1L);
  curl.set(easy, CURLOPT_CONNECTTIMEOUT, static_cast<long>(state_->options.connect_seconds));
  handle.options = &state_->options;
  curl.set(easy, CURLOPT_NOPROGRESS, 0L);
  curl.set(easy, CURLOPT_XFERINFOFUNCTION, &State::OnProgress);
  curl.set(easy, CURLOPT_XFERINFODATA, &exchange);
  curl.set(easy, CURLOPT_LOW_SPEED_LIMIT, 1L);
  curl.set(easy, CURLOPT_LOW_SPEED_TIME, static_cast<long>(state_->options.stall_seconds));
  curl.set(easy, CURLOPT_ERRORBUFFER, handle.error.data());
  if (!state_->options.certificates.empty()) curl.set(easy, CURLOPT_CAINFO, state_->options.certificates.c_str());
  curl.set(easy, CURLOPT_HEADERFUNCTION, &State::OnHeaderLine);
  curl.set(easy, CURLOPT_HEADERDATA, &exchange);
  curl.set(easy, CURLOPT_WRITEFUNCTION, &State::OnData);
  curl.set(easy, CURLOPT_WRITEDATA, &exchange);
  const CURLMcode added = curl.add(state_->multi, easy);
  Check(added == CURLM_OK, "libcurl: {}", curl.multi_message(added));
  handle.multi = state_->multi;
}

std::vector<Exchange*> HttpClient::Run(std::chrono::milliseconds wait) {
  CheckInterrupted();
  const Curl& curl = state_->curl;
  int running = 0;
  CURLMcode code = curl.perform(state_->multi, &running);
  if (code == CURLM_OK) code = curl.poll(state_->multi, nullptr, 0, static_cast<int>(wait.count()), nullptr);
  if (code == CURLM_OK) code = curl.perform(state_->multi, &running);
  Check(code == CURLM_OK, "libcurl: {}", curl.multi_message(code));
  std::vector<std::pair<Exchange*, CURLcode>> finished;
  int left = 0;
  while (CURLMsg* message = curl.info_read(state_->multi, &left)) {
    if (message->msg != CURLMSG_DONE) continue;
    Exchange* exchange = nullptr;
    curl.get(message->easy_handle, CURLINFO_PRIVATE, &exchange);
    finished.emplace_back(exchange, message->data.result);
  }
  std::vector<Exchange*> ended;
  for (const auto& [exchange, result] : finished) {
    state_->Finish(*exchange, result);
    ended.push_back(exchange);
  }
  return ended;
}

void HttpClient::Send(Exchange& exchange) {
  Start(exchange);
  while (exchange.handle_ != nullptr) Run(std::chrono::milliseconds(100));
}

std::string OriginOf(const std::string& url) {
  const std::string scheme = PartOf(url, CURLUPART_SCHEME);
  if (scheme != "http" && scheme != "https") return "";
  return fmt::format("{}://{}:{}", scheme, PartOf(url, CURLUPART_HOST), PartOf(url, CURLUPART_PORT));
}

std::string HostOf(const std::string& url) { return PartOf(url, CURLUPART_HOST); }

std::string EscapeUrl(std::string_view text, bool keep_slashes) {
  std::string escaped;
  for (const char c : text) {
    const bool plain = (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') ||
                       std::string_view("-._~").find(c) != std::string_view::npos || (keep_slashes && c == '/');
    escaped += plain ? std::string(1, c) : fmt::format("%{:02X}", static_cast<unsigned char>(c));
  }
  return escaped;
}

double RetryAfterSeconds(const std::string& field) {
  int seconds = 0;
  if (ParseNumber(field, &seconds)) return seconds;
  const time_t date = field.empty() ? -1 : LoadCurl().date(field.c_str(), nullptr);
  return date < 0 ? -1 : std::max(0.0, std::difftime(date, std::time(nullptr)));
}

}  // namespace shiftrt
