// SPDX-License-Identifier: Apache-2.0
#include "hub/client.h"

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>
#include <thread>
#include <utility>

#include "hub/digest.h"
#include "runtime/check.h"
#include "runtime/files.h"
#include "runtime/json.h"
#include "runtime/parse.h"
#include "runtime/printable.h"

namespace shiftrt {

namespace {

using Json = nlohmann::json;

constexpr int64_t kLargest = int64_t{1} << 45;  // bytes of one file; the hub's own limit is far below

bool IsRedirect(int status) { return status >= 300 && status < 400; }

const char* TypePath(const Repository& repository) {
  return repository.type == RepositoryType::kModel ? "models" : "datasets";
}

// The part of a page's address before the name of a repository.
const char* Prefix(const Repository& repository) {
  return repository.type == RepositoryType::kModel ? "" : "datasets/";
}

// `"abc"` or `W/"abc"` without what HTTP puts around it.
std::string BareEtag(std::string etag) {
  if (etag.starts_with("W/")) etag.erase(0, 2);
  std::erase(etag, '"');
  return etag;
}

int64_t Number(const std::string& text) {
  int64_t value = -1;
  return ParseNumber(text, &value) ? value : -1;
}

bool IsPage(const Exchange& exchange) { return exchange.Field("content-type").starts_with("text/html"); }

void Wait(double seconds) {
  for (; seconds > 0; seconds -= 0.1) {
    CheckInterrupted();
    std::this_thread::sleep_for(std::chrono::duration<double>(std::min(seconds, 0.1)));
  }
}

// A file of a listing (`siblings` of /api/models/ID/revision/REV?blobs=true). LFS files are named by their SHA-256.
RemoteFile ParseSibling(const Json& sibling, const std::string& where) {
  Check(sibling.is_object() && sibling.contains("rfilename") && sibling["rfilename"].is_string(),
        "{}: the listing has a file without a name", where);
  RemoteFile file{sibling["rfilename"].get<std::string>(), -1, ""};
  Check(IsRelativePath(file.path), "{}: the listing has a file called \"{}\", which is no path below the repository",
        where, Printable(file.path));
  const auto lfs = sibling.find("lfs");
  if (lfs != sibling.end() && lfs->is_object()) {
    if (lfs->contains("sha256") && (*lfs)["sha256"].is_string()) file.checksum = (*lfs)["sha256"].get<std::string>();
  } else if (sibling.contains("blobId") && sibling["blobId"].is_string()) {
    file.checksum = sibling["blobId"].get<std::string>();
  }
  if (sibling.contains("size") && sibling["size"].is_number_unsigned()) {
    const auto size = sibling["size"].get<uint64_t>();
    Check(size <= static_cast<uint64_t>(kLargest), "{}: the listing says that {} has {} bytes", where,
          Printable(file.path), size);
    file.size = static_cast<int64_t>(size);
  }
  return file;
}

}  // namespace

bool IsPassing(const Exchange& exchange) {
  const Trouble trouble = exchange.trouble();
  if (trouble == Trouble::kBroken || trouble == Trouble::kSlow || trouble == Trouble::kUnreachable) return true;
  const int status = exchange.status();
  return trouble == Trouble::kNone && (status == kTimeout || status == kTooMany || status >= kServer);
}

double RetryDelay(const Exchange& exchange, int attempt, double first) {
  const double asked = RetryAfterSeconds(exchange.Field("retry-after"));
  return asked >= 0 ? std::min(asked, HubClient::kLongestWait) : first * std::pow(2.0, attempt - 1);
}

HubClient::HubClient(HubSettings settings)
    : settings_(std::move(settings)),
      origin_(OriginOf(settings_.endpoint)),
      http_({.connect_seconds = settings_.connect_seconds,
             .stall_seconds = settings_.stall_seconds,
             .slow_seconds = settings_.slow_seconds,
             .certificates = settings_.certificates}) {
  Check(!origin_.empty(), "HF_ENDPOINT is \"{}\", expected an address such as https://huggingface.co",
        settings_.endpoint);
}

std::vector<std::string> HubClient::Fields(const std::string& url) const {
  std::vector<std::string> fields = {"Accept-Encoding: identity"};  // sizes and ranges are those of the file itself
  if (!settings_.token.empty() && IsHub(url)) fields.push_back("Authorization: Bearer " + settings_.token);
  return fields;
}

bool HubClient::MayFollow(const std::string& from, const std::string& to) const {
  const std::string target = OriginOf(to);
  return !target.empty() && (target.starts_with("https:") || OriginOf(from).starts_with("http:"));
}

std::string HubClient::FileUrl(const Repository& repository, const std::string& commit, const std::string& path) const {
  return fmt::format("{}/{}{}/resolve/{}/{}", settings_.endpoint, Prefix(repository), repository.id,
                     EscapeUrl(commit, false), EscapeUrl(path, true));
}

void HubClient::FailAnswer(const Repository& repository, const std::string& what, const Exchange& exchange) const {
  const std::string host = HostOf(exchange.url());
  const std::string page = fmt::format("{}/{}{}", settings_.endpoint, Prefix(repository), repository.id);
  switch (exchange.trouble()) {
    case Trouble::kUnreachable:
      Fail(
          "{}: {} cannot be reached: {}. Is there a network? Behind a proxy, set https_proxy; for a mirror of the hub, "
          "HF_ENDPOINT. Other commands use what has been pulled without a network with --offline",
          what, host, exchange.reason());
    case Trouble::kTls:
      Fail(
          "{}: {} cannot prove who it is: {}. Where a proxy of your network looks into TLS, name the file of its "
          "certificate authority with SSL_CERT_FILE; a wrong clock or missing ca-certificates cause the same",
          what, host, exchange.reason());
    case Trouble::kBroken:
      Fail("{}: the connection to {} broke {} times: {}. What is there is kept: give the command again", what, host,
           kTries, exchange.reason());
    case Trouble::kSlow:
      Fail("{}: {} sends too slowly, {} times in a row: {}. What is there is kept: give the command again", what, host,
           kTries, exchange.reason());
    case Trouble::kStopped:
    case Trouble::kNone: break;
  }
  const int status = exchange.status();
  const std::string code = exchange.Field("x-error-code"), said = Printable(exchange.Field("x-error-message"));
  const std::string token_advice =
      fmt::format("make one at {}/settings/tokens and give it as HF_TOKEN, or store it in {}", settings_.endpoint,
                  settings_.token_file.string());
  if (code == "GatedRepo" && settings_.token.empty())
    Fail("{}: {} is gated: ask for access at {}, and then let the hub know who you are with a token: {}", what,
         repository.id, page, token_advice);
  if (code == "GatedRepo")
    Fail(
        "{}: {} is gated, and the token that was sent has no access to it: ask for access at {} with the same account, "
        "or wait until it is granted; a fine-grained token must also be allowed to read gated repositories",
        what, repository.id, page);
  if (status == kUnauthorized && !settings_.token.empty() && said.find("Invalid credentials") != said.npos)
    Fail("{}: the hub does not know the token that was sent (HF_TOKEN, or {}): {}", what, settings_.token_file.string(),
         token_advice);
  if (code == "RevisionNotFound")
    Fail("{}: {} has no branch, tag or commit called {}: those it has are listed at {}", what, repository.id,
         repository.revision, page);
  if (code == "EntryNotFound")
    Fail("{}: {} has no such file: its files are listed at {}/tree/{}", what, repository.Description(), page,
         repository.revision);
  if (code == "RepoNotFound" || (IsHub(exchange.url()) && (status == kUnauthorized || status == kNotFound)))
    Fail("{}: there is no {} {} on {}, or it is private: check the spelling{}", what,
         repository.type == RepositoryType::kModel ? "model" : "data set", repository.id, host,
         settings_.token.empty() ? "; for a private one a token is needed: " + token_advice
                                 : ", and that the token that was sent may read it");
  if (status == kForbidden)
    Fail("{}: {} forbids it (403{}): the token that was sent lacks the permission, or {} allows no access from here",
         what, host, said.empty() ? "" : ": " + said, host);
  if (status == kTooMany)
    Fail("{}: {} gets too many requests (429) and stayed at that for {} tries: wait some minutes{}", what, host, kTries,
         settings_.token.empty() ? "; requests with a token (HF_TOKEN) may be more" : "");
  if (IsPage(exchange))
    Fail(
        "{}: a web page came from {} instead of the hub's answer (status {}). A proxy or the login page of a network "
        "sends such pages: open {} in a browser, or set https_proxy",
        what, host, status, page);
  Fail("{}: {} answered with status {}{}", what, host, status, said.empty() ? "" : ": " + said);
}

namespace {

// Sends a request, and repeats it if that may help. Redirects within the hub's own server are followed (a renamed
// repository). The caller handles other redirects, because their answer describes the file.
template <typename Kind>
std::unique_ptr<Kind> Ask(HubClient& hub, const Repository& repository, const std::string& what, std::string url,
                          bool head_only) {
  int redirects = 0;
  for (int attempt = 1;; ++attempt) {
    auto exchange = std::make_unique<Kind>(url, hub.Fields(url), head_only);
    hub.http().Send(*exchange);
    if (IsRedirect(exchange->status()) && hub.IsHub(exchange->redirect())) {
      Check(++redirects <= kMaxRedirects, "{}: {} redirects in circles", what, HostOf(url));
      url = exchange->redirect();
      attempt = 0;
      continue;
    }
    // If the server cannot be reached twice, there is no network.
    const int tries = exchange->trouble() == Trouble::kUnreachable ? 2 : HubClient::kTries;
    if (IsPassing(*exchange) && attempt < tries) {
      Wait(RetryDelay(*exchange, attempt, hub.settings().retry_seconds));
      continue;
    }
    const bool right = exchange->trouble() == Trouble::kNone &&
                       (exchange->status() == kOk || (head_only && IsRedirect(exchange->status())));
    if (!right) hub.FailAnswer(repository, what, *exchange);
    return exchange;
  }
}

}  // namespace

Listing HubClient::List(const Repository& repository) {
  const std::string what = repository.Description();
  const auto answer =
      Ask<TextExchange>(*this, repository, what,
                        fmt::format("{}/api/{}/{}/revision/{}?blobs=true", settings_.endpoint, TypePath(repository),
                                    repository.id, EscapeUrl(repository.revision, false)),
                        false);
  if (IsPage(*answer)) FailAnswer(repository, what, *answer);
  return ParseListing(answer->body(), repository, HostOf(answer->url()));
}

Listing ParseListing(std::string_view body, const Repository& repository, const std::string& host) {
  const std::string what = repository.Description();
  const Json json = ParseJson(body, "the listing of " + what);
  Check(json.is_object() && json.contains("sha") && json["sha"].is_string() && json.contains("siblings") &&
            json["siblings"].is_array(),
        "{}: the answer of {} is no listing of a repository (no \"sha\" or no \"siblings\"): is HF_ENDPOINT a hub?",
        what, host);
  Listing listing{repository.id, json["sha"].get<std::string>(), {}};
  // The name of a repository that the hub has renamed. What is no name of a repository is not shown.
  if (json.contains("id") && json["id"].is_string() && ParseRepository(json["id"].get_ref<const std::string&>()))
    listing.id = json["id"].get<std::string>();
  Check(IsChecksum(listing.commit), "{}: the commit is called \"{}\", expected 40 hexadecimal digits", what,
        Printable(listing.commit));
  for (const Json& sibling : json["siblings"]) listing.files.push_back(ParseSibling(sibling, what));
  return listing;
}

Listing HubClient::Look(const Repository& repository, const std::string& path) {
  const std::string what = repository.Description() + ": " + path;
  const auto answer = Ask<TextExchange>(*this, repository, what, FileUrl(repository, repository.revision, path), true);
  Listing listing{repository.id, answer->Field("x-repo-commit"), {}};
  if (listing.commit.empty() && IsPage(*answer)) FailAnswer(repository, what, *answer);
  Check(IsChecksum(listing.commit),
        "{}: the answer of {} names no commit (X-Repo-Commit): it is no hub, or something between changes its answers",
        what, HostOf(answer->url()));
  RemoteFile file{path, Number(answer->Field("x-linked-size")), BareEtag(answer->Field("x-linked-etag"))};
  if (file.checksum.empty()) file.checksum = BareEtag(answer->Field("etag"));
  if (file.size < 0 && !IsRedirect(answer->status())) file.size = Number(answer->Field("content-length"));
  Check(
      file.size >= 0 && file.size <= kLargest && IsChecksum(file.checksum),
      "{}: {} names no size or no checksum of it (X-Linked-Size, X-Linked-Etag, ETag), so that it could not be checked",
      what, HostOf(answer->url()));
  listing.files.push_back(std::move(file));
  return listing;
}

}  // namespace shiftrt
