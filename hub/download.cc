// SPDX-License-Identifier: Apache-2.0
#include "hub/download.h"

#include <algorithm>
#include <charconv>
#include <chrono>
#include <deque>
#include <filesystem>
#include <memory>
#include <optional>
#include <utility>

#include "hub/partial_file.h"
#include "runtime/check.h"
#include "runtime/files.h"
#include "runtime/printable.h"
#include "runtime/stopwatch.h"

namespace shiftrt {

namespace {

namespace fs = std::filesystem;
using Clock = std::chrono::steady_clock;

constexpr int kMaxRestarts = 2;  // restarts of one file whose contents were wrong
constexpr int kMaxOpenFiles = 8;
constexpr int64_t kCheckBytes = int64_t{4} << 20;  // bytes hashed between two looks at the network
constexpr auto kWait = std::chrono::milliseconds(100);

// "bytes 0-99/1000": first byte and size of the whole.
struct ContentRange {
  int64_t first = -1, size = -1;
};
ContentRange ParseContentRange(std::string_view field) {
  ContentRange range;
  const auto number = [&](size_t from) {
    int64_t value = -1;
    std::from_chars(field.data() + from, field.data() + field.size(), value);
    return value;
  };
  const size_t slash = field.find('/');
  if (field.starts_with("bytes ") && slash != field.npos) range = {number(6), number(slash + 1)};
  return range;
}

class FileDownload;

// One range of a file, or a whole file.
class PieceExchange : public Exchange {
 public:
  PieceExchange(FileDownload& file, int64_t piece, std::string url, std::vector<std::string> fields)
      : Exchange(std::move(url), std::move(fields)), file_(file), piece_(piece) {}

  FileDownload& file() const { return file_; }
  int64_t piece() const { return piece_; }
  bool brought() const { return brought_; }
  const std::string& wrong() const { return wrong_; }  // why it was stopped
  bool restart() const { return restart_; }            // the bytes on disk are wrong: start again
  bool no_ranges() const { return no_ranges_; }

 protected:
  bool OnHead() override;
  bool OnBody(std::string_view bytes) override;

 private:
  bool Wrong(std::string why, bool restart);

  FileDownload& file_;
  int64_t piece_;
  bool brought_ = false, restart_ = false, no_ranges_ = false;
  std::string wrong_;
};

// The state of one piece between its exchanges.
struct PieceState {
  std::unique_ptr<PieceExchange> exchange;
  int failures = 0;  // since data last arrived
  int redirects = 0;
  std::string url;  // the next address; "" for the file's
  Clock::time_point not_before;
};

class FileDownload {
 public:
  FileDownload(const RemoteFile& file, const fs::path& folder, const fs::path& lock, int64_t piece_bytes)
      : remote(file), blob(folder / "blobs" / file.checksum), lock_(std::in_place, lock), piece_bytes_(piece_bytes) {}

  // True if this program may download the file now; false while another program has the lock.
  bool Open() {
    if (!lock_->Try()) return false;
    if (Exists(blob)) return true;  // the other program brought it
    partial.emplace(blob, remote.size, piece_bytes_);
    pieces.resize(partial->pieces());
    began = Clock::now();
    present_before = partial->present();
    return true;
  }
  void StartAgain() {
    pieces.clear();
    partial->StartAgain(fault->no_ranges);
    pieces.resize(partial->pieces());
    present_before = 0;
    fault.reset();
    ForgetUrl();
  }
  void ForgetUrl() { url = validator = ""; }
  void Close() {
    partial.reset();
    pieces.clear();
    lock_.reset();  // another file of the commit may have the same contents
    done = true;
  }

  RemoteFile remote;
  fs::path blob;
  std::optional<PartialFile> partial;
  std::deque<PieceState> pieces;
  std::string url;        // the address that the hub redirected to; "" to ask the hub
  std::string validator;  // the ETag there
  // The reason why the bytes on disk are wrong. Advance() then starts again, at a moment when no exchange is being
  // processed.
  struct Fault {
    std::string why;
    bool no_ranges = false;
  };
  std::optional<Fault> fault;
  int restarts = 0;
  bool done = false;
  Clock::time_point began = Clock::now();
  int64_t present_before = 0;

 private:
  std::optional<FileLock> lock_;
  int64_t piece_bytes_;
};

bool PieceExchange::Wrong(std::string why, bool restart) {
  wrong_ = std::move(why);
  restart_ = restart;
  return false;
}

bool PieceExchange::OnHead() {
  if (status() != kOk && status() != kPartial) return true;  // an error or a redirect: its body is not the file's
  PartialFile& partial = *file_.partial;
  const int64_t next = partial.Next(piece_), size = file_.remote.size;
  const std::string etag = Field("etag");
  if (status() == kOk && (next > 0 || partial.pieces() > 1)) {
    no_ranges_ = true;
    return Wrong("the server sends the whole file instead of a part", true);
  }
  if (Field("content-type").starts_with("text/html")) return Wrong("a web page came instead of the file", false);
  int64_t says = -1;
  if (status() == kPartial) {
    const ContentRange range = ParseContentRange(Field("content-range"));
    if (range.first != next) return Wrong("the server sends another part than was asked for", true);
    says = range.size;
  } else if (const std::string length = Field("content-length"); !length.empty()) {
    std::from_chars(length.data(), length.data() + length.size(), says);
  }
  if (says >= 0 && says != size)
    return Wrong(fmt::format("the server has {} bytes of it, the hub's listing {}", says, size), true);
  if (!file_.validator.empty() && !etag.empty() && etag != file_.validator)
    return Wrong("the file changed while it was downloaded", true);
  if (file_.validator.empty() && !etag.starts_with("W/")) file_.validator = etag;
  return true;
}

bool PieceExchange::OnBody(std::string_view bytes) {
  if (status() != kOk && status() != kPartial) return true;
  PartialFile& partial = *file_.partial;
  if (partial.Next(piece_) + std::ssize(bytes) > partial.End(piece_))
    return Wrong("the server sends more bytes than the file has", true);
  partial.Append(piece_, bytes);
  brought_ = true;
  return true;
}

// The state of one call of Download(): all its files.
class Downloads {
 public:
  Downloads(HubClient& hub, const Repository& repository, std::string commit, const DownloadOptions& options)
      : hub_(hub),
        repository_(repository),
        commit_(std::move(commit)),
        options_(options),
        folder_(hub.settings().cache / repository.Folder()),
        snapshot_(folder_ / "snapshots" / commit_) {}

  void Add(const RemoteFile& file) {
    files_.emplace_back(file, folder_,
                        hub_.settings().cache / ".locks" / repository_.Folder() / (file.checksum + ".lock"),
                        options_.piece_bytes);
    progress_.emplace_back();
    progress_.back().path = file.path;
    progress_.back().size = file.size;
  }

  void Run(const DownloadProgress& report) {
    auto reported = Clock::now() - kWait;
    while (true) {
      const bool busy = Advance();
      if (const auto now = Clock::now(); now - reported >= kWait) {
        Report(report);
        reported = now;
      }
      if (std::all_of(files_.begin(), files_.end(), [](const FileDownload& file) { return file.done; })) break;
      for (Exchange* ended : hub_.http().Run(busy ? std::chrono::milliseconds(0) : kWait))
        Ended(static_cast<PieceExchange&>(*ended));
    }
    Report(report);
  }

 private:
  // Opens files, begins exchanges and computes checksums. True if there is more to do at once.
  bool Advance() {
    bool busy = false;
    int open = 0, under_way = 0;
    for (const FileDownload& file : files_)
      for (const PieceState& piece : file.pieces) under_way += piece.exchange != nullptr ? 1 : 0;
    for (size_t i = 0; i < files_.size(); ++i) {
      FileDownload& file = files_[i];
      if (file.done) continue;
      progress_[i].note.clear();
      if (!file.partial && (open >= kMaxOpenFiles || under_way >= options_.connections)) continue;
      if (!file.partial && !file.Open()) {
        progress_[i].note = "another program downloads it";
        continue;
      }
      ++open;
      if (file.partial) {
        if (file.fault) Restart(file);
        under_way += Begin(file, options_.connections - under_way, progress_[i].note);
        busy = file.partial->Check(kCheckBytes) || busy;
        if (!file.partial->Checked()) continue;
        if (!file.partial->Right()) {
          file.fault = {"its checksum is wrong"};
          busy = true;
          continue;
        }
        file.partial->Commit();
        progress_[i].brought = file.remote.size - file.present_before;
        progress_[i].seconds = SecondsSince(file.began);
      }
      Link(file);
      file.Close();
      busy = true;
    }
    return busy;
  }

  // Begins at most `at_most` exchanges, for the first pieces that lack bytes. Returns how many.
  int Begin(FileDownload& file, int at_most, std::string& note) {
    int begun = 0;
    const auto now = Clock::now();
    for (int64_t p = 0; p < std::ssize(file.pieces) && begun < at_most; ++p) {
      PieceState& piece = file.pieces[p];
      if (piece.exchange != nullptr || file.partial->Complete(p)) continue;
      if (piece.not_before > now) {
        note = fmt::format("next try in {:.0f} s", std::chrono::duration<double>(piece.not_before - now).count());
        continue;
      }
      const std::string url = !piece.url.empty()  ? std::exchange(piece.url, "")
                              : !file.url.empty() ? file.url
                                                  : hub_.FileUrl(repository_, commit_, file.remote.path);
      std::vector<std::string> fields = hub_.Fields(url);
      if (file.partial->pieces() > 1 || file.partial->Next(p) > 0) {
        fields.push_back(fmt::format("Range: bytes={}-{}", file.partial->Next(p), file.partial->End(p) - 1));
        if (!file.validator.empty()) fields.push_back("If-Range: " + file.validator);
      }
      piece.exchange = std::make_unique<PieceExchange>(file, p, url, std::move(fields));
      hub_.http().Start(*piece.exchange);
      ++begun;
    }
    return begun;
  }

  void Ended(PieceExchange& ended) {
    FileDownload& file = ended.file();
    PieceState& piece = file.pieces[ended.piece()];
    const std::unique_ptr<PieceExchange> exchange = std::move(piece.exchange);
    if (file.fault) return;
    if (exchange->brought() && exchange->trouble() != Trouble::kSlow) piece.failures = 0;
    if (exchange->restart()) {
      file.fault = {exchange->wrong(), exchange->no_ranges()};
      return;
    }
    if (!exchange->wrong().empty()) hub_.FailAnswer(repository_, Name(file), *exchange);
    if (exchange->status() >= 300 && exchange->status() < 400) return Redirect(file, piece, *exchange);
    if (file.partial->Complete(ended.piece())) {
      piece.redirects = 0;
      return;
    }
    if (exchange->trouble() == Trouble::kNone && exchange->status() == kUnsatisfiable) {
      file.fault = {"the server has fewer bytes of it than the hub's listing says"};
      return;
    }
    // Addresses that the hub redirects to expire. The hub then gives another.
    const bool expired = exchange->status() == kForbidden && !hub_.IsHub(exchange->url());
    const bool cut =
        exchange->trouble() == Trouble::kNone && (exchange->status() == kOk || exchange->status() == kPartial);
    if (expired || piece.failures > 0) file.ForgetUrl();
    piece.redirects = 0;
    if ((!IsPassing(*exchange) && !cut && !expired) || ++piece.failures >= HubClient::kTries)
      hub_.FailAnswer(repository_, Name(file), *exchange);
    const double delay = RetryDelay(*exchange, std::max(piece.failures, 1), hub_.settings().retry_seconds);
    piece.not_before = Clock::now() + std::chrono::duration_cast<Clock::duration>(std::chrono::duration<double>(delay));
  }

  void Redirect(FileDownload& file, PieceState& piece, const PieceExchange& exchange) {
    Check(hub_.MayFollow(exchange.url(), exchange.redirect()), "{}: {} redirects to \"{}\", which is not followed",
          Name(file), HostOf(exchange.url()), Printable(exchange.redirect()));
    Check(++piece.redirects <= kMaxRedirects, "{}: {} redirects in circles", Name(file), HostOf(exchange.url()));
    const std::string linked = exchange.Field("x-linked-etag");
    Check(linked.empty() || linked.find(file.remote.checksum) != linked.npos,
          "{}: the hub's listing says checksum {}, its answer {}: give the command again", Name(file),
          file.remote.checksum, Printable(linked));
    piece.url = exchange.redirect();
    if (!hub_.IsHub(piece.url)) file.url = piece.url;
  }

  // Discards the bytes of a file that turned out to be wrong.
  void Restart(FileDownload& file) {
    ++file.restarts;
    Check(file.restarts <= kMaxRestarts,
          "{}: {}, {} times in a row. A proxy or a mirror (HF_ENDPOINT) that changes files causes this; so does a new "
          "version of the repository: give the command again",
          Name(file), file.fault->why, file.restarts);
    file.StartAgain();
  }

  // Makes the link snapshots/COMMIT/path -> ../../blobs/ETAG.
  void Link(const FileDownload& file) const {
    const fs::path link = snapshot_ / file.remote.path;
    const fs::path target = folder_.lexically_relative(link.parent_path()) / "blobs" / file.remote.checksum;
    std::error_code error;
    fs::create_directories(link.parent_path(), error);
    if (!error && fs::read_symlink(link, error) == target) return;
    fs::path fresh = link;
    fresh += ".shiftrt.tmp";
    fs::remove(fresh, error);
    fs::create_symlink(target, fresh, error);
    if (!error) fs::rename(fresh, link, error);
    Check(!error,
          "{}: cannot create a symbolic link: {}. The cache needs a file system that has them: name another directory "
          "with HF_HUB_CACHE=DIR",
          link.string(), error.message());
  }

  void Report(const DownloadProgress& report) {
    for (size_t i = 0; i < files_.size(); ++i) {
      const FileDownload& file = files_[i];
      FileProgress& progress = progress_[i];
      if (file.done) {
        progress.state = FileProgress::State::kDone;
        progress.present = file.remote.size;
      } else if (file.partial) {
        progress.present = file.partial->present();
        progress.brought = progress.present - file.present_before;
        progress.seconds = SecondsSince(file.began);
        progress.state = file.partial->Complete() ? FileProgress::State::kChecking : FileProgress::State::kUnderWay;
      }
    }
    report(progress_);
  }

  std::string Name(const FileDownload& file) const { return repository_.id + ": " + file.remote.path; }

  HubClient& hub_;
  const Repository& repository_;
  const std::string commit_;
  const DownloadOptions& options_;
  const fs::path folder_, snapshot_;
  std::deque<FileDownload> files_;
  std::vector<FileProgress> progress_;
};

}  // namespace

void Download(HubClient& hub, const Repository& repository, const std::string& commit,
              const std::vector<RemoteFile>& files, const DownloadProgress& progress, const DownloadOptions& options) {
  const fs::path blobs = hub.settings().cache / repository.Folder() / "blobs";
  std::error_code error;
  fs::create_directories(blobs, error);
  Check(!error, "{}: cannot create the directory: {}", blobs.string(), error.message());
  Downloads downloads(hub, repository, commit, options);
  for (const RemoteFile& file : files) downloads.Add(file);
  downloads.Run(progress);
}

}  // namespace shiftrt
