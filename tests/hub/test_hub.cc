// SPDX-License-Identifier: Apache-2.0
#include "tests/hub/test_hub.h"

#include <arpa/inet.h>
#include <fmt/format.h>
#include <netinet/in.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <charconv>
#include <stdexcept>

#include "hub/digest.h"

namespace shiftrt {

using Json = nlohmann::json;

struct TestHub::Request : SeenRequest {
  std::string path;  // the target without its query, decoded
};

struct TestHub::Answer {
  int status = 200;
  std::vector<std::string> fields;
  std::string body;
  bool file = false, large = false;
  std::optional<size_t> cut = {};
};

namespace {

constexpr const char* kHosts = "127.0.0.1";

std::string Decoded(std::string_view text) {
  std::string plain;
  for (size_t i = 0; i < text.size(); ++i) {
    if (text[i] != '%') {
      plain += text[i];
      continue;
    }
    int code = 0;
    std::from_chars(text.data() + i + 1, text.data() + i + 3, code, 16);
    plain += static_cast<char>(code);
    i += 2;
  }
  return plain;
}

std::string Lower(std::string text) {
  std::transform(text.begin(), text.end(), text.begin(), [](unsigned char c) { return std::tolower(c); });
  return text;
}

bool WriteAll(int connection, std::string_view bytes) {
  while (!bytes.empty()) {
    const ssize_t n = ::send(connection, bytes.data(), bytes.size(), MSG_NOSIGNAL);
    if (n <= 0) return false;
    bytes.remove_prefix(n);
  }
  return true;
}

}  // namespace

std::string TestRepository::etag_of(const TestFile& file) const {
  Digest digest(std::string(file.lfs ? 64 : 40, '0'), std::ssize(file.content));
  digest.Update(std::as_bytes(std::span(file.content)));
  return digest.Hex();
}

TestHub::TestHub() {
  for (int i = 0; i < 2; ++i) {
    sockets_[i] = ::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    sockaddr_in address{};
    address.sin_family = AF_INET;
    ::inet_pton(AF_INET, kHosts, &address.sin_addr);
    socklen_t size = sizeof address;
    if (::bind(sockets_[i], reinterpret_cast<sockaddr*>(&address), size) != 0 || ::listen(sockets_[i], 64) != 0 ||
        ::getsockname(sockets_[i], reinterpret_cast<sockaddr*>(&address), &size) != 0)
      throw std::runtime_error("no port on the loopback");
    ports_[i] = ntohs(address.sin_port);
  }
  threads_.reserve(2);
  for (int i = 0; i < 2; ++i) threads_.emplace_back([this, i] { Listen(i == 1); });
}

TestHub::~TestHub() {
  stop_ = true;
  for (std::thread& thread : threads_) thread.join();
  for (const int socket : sockets_) ::close(socket);
}

std::string TestHub::endpoint() const { return fmt::format("http://{}:{}", kHosts, ports_[0]); }

void TestHub::Add(const std::string& name, TestRepository repository) {
  const auto lock = Lock();
  repositories_[name] = std::move(repository);
}

std::vector<SeenRequest> TestHub::Requests() {
  const auto lock = Lock();
  return seen_;
}

int64_t TestHub::BodyBytes() {
  const auto lock = Lock();
  return body_bytes_;
}

int64_t TestHub::Cuts() {
  const auto lock = Lock();
  return cuts_;
}

bool TestHub::Hangs() {
  const auto lock = Lock();
  return hangs_;
}

void TestHub::Listen(bool cdn) {
  std::vector<std::thread> connections;
  while (!stop_) {
    pollfd ready{sockets_[cdn ? 1 : 0], POLLIN, 0};
    if (::poll(&ready, 1, 20) <= 0) continue;
    const int connection = ::accept4(ready.fd, nullptr, nullptr, SOCK_CLOEXEC);
    if (connection >= 0) connections.emplace_back([this, connection, cdn] { Serve(connection, cdn); });
  }
  for (std::thread& thread : connections) thread.join();
}

void TestHub::Serve(int connection, bool cdn) {
  std::string buffer;
  while (!stop_) {
    const size_t end = buffer.find("\r\n\r\n");
    if (end == buffer.npos) {
      pollfd ready{connection, POLLIN, 0};
      if (::poll(&ready, 1, 20) <= 0) continue;
      char bytes[4096];
      const ssize_t n = ::recv(connection, bytes, sizeof bytes, 0);
      if (n <= 0) break;
      buffer.append(bytes, n);
      if (buffer[0] < 'A' || buffer[0] > 'Z') break;  // not HTTP, but perhaps TLS
      continue;
    }
    Request request;
    request.cdn = cdn;
    const std::string head = buffer.substr(0, end + 2);
    buffer.erase(0, end + 4);
    size_t at = head.find("\r\n");
    const std::string first = head.substr(0, at);
    request.method = first.substr(0, first.find(' '));
    request.target = first.substr(request.method.size() + 1, first.rfind(' ') - request.method.size() - 1);
    request.path = Decoded(request.target.substr(0, request.target.find('?')));
    for (at += 2; at < head.size();) {
      const size_t stop = head.find("\r\n", at), colon = head.find(':', at);
      request.fields[Lower(head.substr(at, colon - at))] = head.substr(colon + 2, stop - colon - 2);
      at = stop + 2;
    }
    Answer answer;
    {
      const auto lock = Lock();
      seen_.push_back(request);
      answer = AnswerOf(request, cdn);
    }
    if (!Send(connection, request, answer)) break;
  }
  ::close(connection);
}

TestHub::Answer TestHub::AnswerOf(const Request& request, bool cdn) {
  const auto take = [](int& count) { return count > 0 && count-- > 0; };
  if (take(behaviour.too_many)) return {429, {"Retry-After: " + behaviour.retry_after}, "slow down"};
  if (take(behaviour.unavailable)) return {503, {}, "later"};
  if (cdn && take(behaviour.expired)) return {403, {}, "the signature has expired"};
  if (cdn ? behaviour.pages : behaviour.api_pages)
    return {200, {"Content-Type: text/html; charset=utf-8"}, "<html><body>Please log in to the network</body></html>"};
  if (!cdn) return HubAnswer(request);
  // "/ETAG": the contents are found by their checksum, as on a real one.
  for (const auto& [name, repository] : repositories_)
    for (const TestFile& file : repository.files)
      if (request.path == "/" + repository.etag_of(file))
        return FileAnswer(request, file, repository.etag_of(file).substr(0, 8) + "-cdn", true);
  return {404, {}, ""};
}

TestHub::Answer TestHub::HubAnswer(const Request& request) {
  const auto failed = [](int status, const char* code, const char* message) {
    return Answer{status, {fmt::format("X-Error-Code: {}", code), fmt::format("X-Error-Message: {}", message)}, "{}"};
  };
  const auto sent = request.fields.find("authorization");
  if (sent != request.fields.end() && sent->second != "Bearer " + behaviour.token)
    return {401, {"X-Error-Message: Invalid credentials in Authorization header"}, "{}"};
  for (const auto& [before, now] : behaviour.renamed) {
    // Files of models lie at /ORG/NAME, everything else below /api/models/ or /datasets/.
    std::string target = request.target;
    const std::string plain = before.substr(before.find('/') + 1);
    if (const size_t at = target.find("/" + plain + "/"); at != target.npos)
      return {307, {"Location: " + target.replace(at + 1, plain.size(), now.substr(now.find('/') + 1))}, ""};
  }
  for (const auto& [name, repository] : repositories_) {
    const std::string api = "/api/" + name + "/revision/";
    const std::string files = "/" + (name.starts_with("models/") ? name.substr(7) : name) + "/resolve/";
    const bool listing = request.path.starts_with(api);
    if (!listing && !request.path.starts_with(files)) continue;
    const std::string rest = request.path.substr(listing ? api.size() : files.size());
    std::string revision;
    for (const char* known : {"main", "refs/convert/parquet", "refs/pr/1", repository.commit.c_str()})
      if (rest == known || rest.starts_with(std::string(known) + "/")) revision = known;
    if (revision.empty()) return failed(404, "RevisionNotFound", "Invalid rev id");
    if (listing) {
      Json json = {{"id", name.substr(name.find('/') + 1)}, {"sha", repository.commit}, {"siblings", Json::array()}};
      for (const TestFile& file : repository.files) {
        Json sibling = {{"rfilename", file.path}};
        const int64_t size = std::ssize(file.content) + behaviour.listed_size_error;
        if (!behaviour.names_only) {
          sibling["size"] = size;
          sibling["blobId"] = std::string(40, 'b');
          if (file.lfs)
            sibling["lfs"] = {{"sha256", repository.etag_of(file)}, {"size", size}, {"pointerSize", 134}};
          else
            sibling["blobId"] = repository.etag_of(file);
        }
        json["siblings"].push_back(sibling);
      }
      return {200, {"Content-Type: application/json; charset=utf-8"}, json.dump()};
    }
    if (behaviour.gated.count(name) > 0 && (sent == request.fields.end() || behaviour.token.starts_with("stranger")))
      return failed(sent == request.fields.end() ? 401 : 403, "GatedRepo", "Access to this repository is restricted");
    for (const TestFile& file : repository.files) {
      if (rest != revision + "/" + file.path) continue;
      const std::string etag = repository.etag_of(file);
      if (!file.lfs || behaviour.direct) {
        Answer answer = FileAnswer(request, file, etag, false);
        answer.fields.push_back("X-Repo-Commit: " + repository.commit);
        return answer;
      }
      return {302,
              {fmt::format("Location: http://{}:{}/{}", kHosts, ports_[1], etag), "X-Repo-Commit: " + repository.commit,
               fmt::format("X-Linked-Etag: \"{}\"", etag), fmt::format("X-Linked-Size: {}", file.content.size())},
              "Found. Redirecting"};
    }
    return failed(404, "EntryNotFound", "Entry not found");
  }
  return failed(sent == request.fields.end() ? 401 : 404, "RepoNotFound", "Repository not found");
}

TestHub::Answer TestHub::FileAnswer(const Request& request, const TestFile& file, const std::string& etag, bool cdn) {
  Answer answer{200, {"Content-Type: application/octet-stream"}, file.content};
  answer.file = true;
  answer.large = file.lfs;
  std::string tag = fmt::format("\"{}\"", etag);
  if (cdn && behaviour.change_after >= 0 && ranges_ >= behaviour.change_after) {
    tag = "\"changed\"";
    std::reverse(answer.body.begin(), answer.body.end());
  }
  answer.fields.push_back("ETag: " + tag);
  const auto range = request.fields.find("range");
  const auto condition = request.fields.find("if-range");
  const bool unchanged = condition == request.fields.end() || condition->second == tag;
  if (range != request.fields.end() && !behaviour.ignores_ranges && unchanged) {
    const std::string& text = range->second;  // "bytes=A-B"
    size_t first = 0, last = answer.body.size() - 1;
    std::from_chars(text.data() + 6, text.data() + text.size(), first);
    std::from_chars(text.data() + text.find('-') + 1, text.data() + text.size(), last);
    if (first >= answer.body.size()) return {416, {}, ""};
    answer.status = 206;
    answer.fields.push_back(fmt::format("Content-Range: bytes {}-{}/{}", first, last, answer.body.size()));
    answer.body = answer.body.substr(first, last - first + 1);
    ++ranges_;
  }
  if (request.method == "GET" && std::uniform_real_distribution<>()(random_) < behaviour.cut) {
    // At least a byte arrives: five tries without one are rightly an error, and would be met here by chance.
    answer.cut =
        std::uniform_int_distribution<size_t>(std::min<size_t>(1, answer.body.size()), answer.body.size())(random_);
    ++cuts_;
  }
  return answer;
}

bool TestHub::Send(int connection, const Request& request, const Answer& answer) {
  std::string head = fmt::format("HTTP/1.1 {} Status\r\nContent-Length: {}\r\n", answer.status, answer.body.size());
  for (const std::string& field : answer.fields) head += field + "\r\n";
  if (!WriteAll(connection, head + "\r\n")) return false;
  if (request.method == "HEAD") return true;
  constexpr size_t kAtOnce = 16 << 10;
  const size_t end = answer.cut.value_or(answer.body.size());
  for (size_t at = 0; at < end;) {
    size_t size = std::min(end - at, kAtOnce);
    bool hang = false;
    if (answer.large && behaviour.trickle_ms > 0) {
      if (stop_) return false;
      std::this_thread::sleep_for(std::chrono::milliseconds(behaviour.trickle_ms));
      size = 1;
    }
    if (answer.file) {
      const auto lock = Lock();
      if (answer.large && behaviour.hang_after >= 0) {
        const int64_t left = behaviour.hang_after - large_bytes_;
        if (left < static_cast<int64_t>(size)) size = std::max<int64_t>(left, 0), hang = true;
      }
      if (answer.large) large_bytes_ += static_cast<int64_t>(size);
      body_bytes_ += static_cast<int64_t>(size);
    }
    if (!WriteAll(connection, std::string_view(answer.body).substr(at, size))) return false;
    at += size;
    while (hang && !stop_) {  // until the other side goes away
      {
        const auto lock = Lock();
        hangs_ = true;
      }
      char byte;
      if (::recv(connection, &byte, 1, MSG_DONTWAIT | MSG_PEEK) == 0) return false;
      std::this_thread::sleep_for(std::chrono::milliseconds(5));
    }
    if (hang) return false;
  }
  return !answer.cut;
}

}  // namespace shiftrt
