// SPDX-License-Identifier: Apache-2.0
// A hub of the tests' own on the loopback, and the server that it redirects to for large files. It answers as
// huggingface.co does (listing, HEAD and GET of files, ranges, gated and renamed repositories), and misbehaves as told.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <map>
#include <mutex>
#include <nlohmann/json.hpp>
#include <optional>
#include <random>
#include <set>
#include <string>
#include <string_view>
#include <thread>
#include <vector>

namespace shiftrt {

struct TestFile {
  std::string path, content;
  bool lfs = false;
};

struct TestRepository {
  std::vector<TestFile> files;
  std::string commit = std::string(40, 'c');
  std::string etag_of(const TestFile& file) const;
};

// A request as a server saw it.
struct SeenRequest {
  bool cdn = false;  // by the second server
  std::string method, target;
  std::map<std::string, std::string> fields;  // names in lower case
};

class TestHub {
 public:
  TestHub();
  ~TestHub();
  TestHub(const TestHub&) = delete;
  TestHub& operator=(const TestHub&) = delete;

  std::string endpoint() const;  // "http://127.0.0.1:PORT"
  // "models/org/name" or "datasets/org/name".
  void Add(const std::string& name, TestRepository repository);

  // The server's misbehaviour. Set it before requests are made, or while Lock() is held.
  struct Behaviour {
    std::string token;                           // requests to gated repositories need it
    std::set<std::string> gated;                 // names
    std::map<std::string, std::string> renamed;  // old name -> new name
    bool names_only = false;                     // the listing has neither sizes nor checksums
    bool direct = false;                         // LFS files are not redirected
    bool ignores_ranges = false;
    bool pages = false;      // a web page with status 200 instead of every answer of the second server
    bool api_pages = false;  // the same of the hub
    double cut = 0;          // the share of bodies that are cut after a random byte, never before the first
    int too_many = 0;        // as many requests are answered with 429
    int unavailable = 0;     // as many with 503
    int expired = 0;         // as many requests to the second server with 403
    std::string retry_after = "0";
    int64_t listed_size_error = 0;  // added to the sizes in the listing
    int64_t hang_after = -1;        // so many bytes of large files: then silence, with the connection open
    int trickle_ms = 0;             // if above 0, large files come a byte at a time, with such a pause before each
    int change_after = -1;          // after as many ranges, a file's bytes and ETag are others
  };
  Behaviour behaviour;
  std::unique_lock<std::mutex> Lock() { return std::unique_lock(mutex_); }

  // The requests so far.
  std::vector<SeenRequest> Requests();
  int64_t BodyBytes();  // bytes of files that both servers sent
  int64_t Cuts();       // bodies that were cut so far
  bool Hangs();         // a body is held back for hang_after

 private:
  struct Request;
  struct Answer;
  void Listen(bool cdn);
  void Serve(int connection, bool cdn);
  Answer AnswerOf(const Request& request, bool cdn);
  Answer HubAnswer(const Request& request);
  Answer FileAnswer(const Request& request, const TestFile& file, const std::string& etag, bool cdn);
  bool Send(int connection, const Request& request, const Answer& answer);

  std::mutex mutex_;
  std::map<std::string, TestRepository> repositories_;
  std::vector<SeenRequest> seen_;
  std::minstd_rand random_{7};
  int64_t body_bytes_ = 0, large_bytes_ = 0, cuts_ = 0;
  int ranges_ = 0;
  bool hangs_ = false;
  std::atomic<bool> stop_ = false;
  int sockets_[2] = {-1, -1}, ports_[2] = {0, 0};
  std::vector<std::thread> threads_;
};

}  // namespace shiftrt
