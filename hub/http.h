// SPDX-License-Identifier: Apache-2.0
// HTTP through libcurl, with many exchanges at once on one thread. libcurl is loaded when the first client is made, so
// that programs that never use the network start without it.
#pragma once

#include <chrono>
#include <cstdint>
#include <exception>
#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

namespace shiftrt {

// The statuses of answers that hub/ treats by themselves.
enum HttpStatus : int {
  kOk = 200,
  kPartial = 206,
  kUnauthorized = 401,
  kForbidden = 403,
  kNotFound = 404,
  kTimeout = 408,
  kUnsatisfiable = 416,
  kTooMany = 429,
  kServer = 500,
};

constexpr int kMaxRedirects = 5;  // a request with more redirects fails

// The reason why an exchange ended before its answer was complete.
enum class Trouble {
  kNone,
  kUnreachable,  // the name is unknown or no server answers, for example without a network
  kBroken,       // the connection was cut, stalled or sent invalid data
  kSlow,         // less than HttpOptions::slow_bytes per second for slow_seconds
  kTls,          // the certificate of the server is not valid for it
  kStopped,      // OnHead() or OnBody() returned false
};

class HttpClient;

// One request and its answer. Redirects are answers like any other: the caller decides whether to follow them, because
// it knows which servers may see the token. Destroying an exchange before its end cancels it.
class Exchange {
 public:
  // `fields`: lines of the request's header, "Name: value".
  Exchange(std::string url, std::vector<std::string> fields, bool head_only = false);
  virtual ~Exchange();
  Exchange(const Exchange&) = delete;
  Exchange& operator=(const Exchange&) = delete;

  const std::string& url() const { return url_; }
  int status() const { return status_; }
  // A field of the answer's header by its name in lower case, or "".
  std::string Field(const std::string& name) const;
  const std::string& redirect() const {
    return redirect_;
  }  // once ended: the absolute address a 3xx answer names, or ""
  Trouble trouble() const { return trouble_; }
  const std::string& reason() const { return reason_; }  // describes the trouble

 protected:
  // Called when the header is complete; returning false stops the exchange. Run() passes on what these functions throw.
  virtual bool OnHead() { return true; }
  // Called for each further part of the body; returning false stops the exchange.
  virtual bool OnBody(std::string_view bytes) = 0;

 private:
  friend class HttpClient;
  struct Handle;

  std::string url_;
  std::vector<std::string> fields_;
  bool head_only_;
  int status_ = 0;
  std::map<std::string, std::string> answer_;
  std::string redirect_, reason_;
  Trouble trouble_ = Trouble::kNone;
  std::exception_ptr thrown_;
  std::unique_ptr<Handle> handle_;
};

// An exchange that stores the body, up to a limit.
class TextExchange : public Exchange {
 public:
  using Exchange::Exchange;
  const std::string& body() const { return body_; }

 protected:
  bool OnBody(std::string_view bytes) override;

 private:
  std::string body_;
};

struct HttpOptions {
  int connect_seconds = 10, stall_seconds = 10;
  // An exchange ends if its body brought less than slow_bytes per second over slow_seconds.
  int slow_seconds = 60, slow_bytes = 1024;
  std::string certificates;  // a file of certificate authorities; "" for those of the system
};

class HttpClient {
 public:
  // Throws Error, which says what to install, if libcurl is missing.
  explicit HttpClient(const HttpOptions& options);
  ~HttpClient();
  HttpClient(const HttpClient&) = delete;
  HttpClient& operator=(const HttpClient&) = delete;

  // Begins an exchange, which must not be destroyed after the client.
  void Start(Exchange& exchange);
  // Works on all exchanges until some have ended, or for at most `wait` if no data arrive, and returns those that
  // ended. Throws Interrupted, and what an exchange's functions threw.
  std::vector<Exchange*> Run(std::chrono::milliseconds wait);
  // Begins an exchange and works until it ends. No other exchange may be in progress.
  void Send(Exchange& exchange);

 private:
  friend class Exchange;
  struct State;
  std::unique_ptr<State> state_;
};

// Scheme, host and port of an address, in lower case and with the port written out: addresses with the same origin are
// on the same server. "" if it is not an address of http or https.
std::string OriginOf(const std::string& url);
// The host of an address.
std::string HostOf(const std::string& url);

// Escapes `text` as one part of an address's path: all bytes but letters, digits, '-', '.', '_' and '~' become %XX;
// with `keep_slashes`, '/' stays too.
std::string EscapeUrl(std::string_view text, bool keep_slashes);

// The seconds that a Retry-After field asks for: a number, or the time until a date. Negative if it is neither.
double RetryAfterSeconds(const std::string& field);

}  // namespace shiftrt
