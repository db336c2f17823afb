// SPDX-License-Identifier: Apache-2.0
// HTTP by libcurl, many exchanges at once on one thread. libcurl is loaded when the first client is made, so that
// programs that never use the network start without it.
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

// Why an exchange ended before its answer was complete.
enum class Trouble {
  kNone,
  kUnreachable,  // no such name, or nobody there: perhaps there is no network
  kBroken,       // the connection was cut, stalled or spoke nonsense
  kTls,          // the other side is not who it should be
  kStopped,      // OnHead() or OnBody() wanted no more
};

class HttpClient;

// One request and its answer. Redirects are answers like any other: following them is for whoever knows which hosts
// may see what. An exchange that ends its life early is cancelled.
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
  const std::string& reason() const { return reason_; }  // of the trouble, for people

 protected:
  // The header is complete. False stops the exchange. What these functions throw reaches the caller of Run().
  virtual bool OnHead() { return true; }
  // More of the body. False stops the exchange.
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

// An exchange whose body is kept, up to a limit.
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
  std::string certificates;  // a file of certificate authorities; "" for those of the system
};

class HttpClient {
 public:
  // Throws Error saying what to install where libcurl is missing.
  explicit HttpClient(const HttpOptions& options);
  ~HttpClient();
  HttpClient(const HttpClient&) = delete;
  HttpClient& operator=(const HttpClient&) = delete;

  // Begins an exchange, which must not be destroyed after the client.
  void Start(Exchange& exchange);
  // Works on all exchanges, for `wait` at most where nothing arrives, and returns those that ended. Throws Interrupted,
  // and what an exchange's functions threw.
  std::vector<Exchange*> Run(std::chrono::milliseconds wait);
  // Begins an exchange and works until it ends. For when nothing else is under way.
  void Send(Exchange& exchange);

 private:
  friend class Exchange;
  struct State;
  std::unique_ptr<State> state_;
};

// Scheme, host and port of an address, in lower case with the port written out: two addresses with the same origin are
// the same server. "" for what is not an address of http or https.
std::string OriginOf(const std::string& url);
// The host alone.
std::string HostOf(const std::string& url);

// `text` as one part of an address's path: all but letters, digits, '-', '.', '_' and '~' as %XX; with `keep_slashes`
// '/' too.
std::string EscapeUrl(std::string_view text, bool keep_slashes);

// Seconds that a Retry-After field asks for: a number, or a date after now. Below 0 where it says neither.
double RetryAfterSeconds(const std::string& field);

}  // namespace shiftrt
