// SPDX-License-Identifier: Apache-2.0
#include "tools/pulling.h"

#include <sys/ioctl.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdio>

#include "api/pull.h"
#include "eval/files.h"
#include "eval/task.h"
#include "hub/names.h"
#include "models/model.h"
#include "runtime/check.h"
#include "runtime/stopwatch.h"
#include "runtime/words.h"
#include "text/documents.h"
#include "tools/progress_bar.h"
#include "tools/table.h"

namespace shiftrt {

namespace {

using Clock = std::chrono::steady_clock;

constexpr int kNameWidth = 32;
constexpr double kWorthALine = 1.0;  // seconds

// The end of a long name says which shard it is.
std::string Short(const std::string& name) {
  return name.size() <= kNameWidth ? name : "..." + name.substr(name.size() - kNameWidth + 3);
}

std::string Size(int64_t bytes) { return Scaled(static_cast<double>(bytes), "B"); }

// "  3.1 GB  12 MB/s  1:40 left".
std::string Pace(int64_t present, int64_t size, int64_t brought, double seconds) {
  std::string text = fmt::format("{:>8}", Size(size));
  if (brought <= 0 || seconds < kWorthALine) return text;
  const double rate = static_cast<double>(brought) / seconds;
  return text + fmt::format("  {}/s  {} left", Scaled(rate, "B"), Duration(static_cast<double>(size - present) / rate));
}

std::string Line(const FileProgress& file) {
  const double share = file.size == 0 ? 1 : static_cast<double>(file.present) / static_cast<double>(file.size);
  const std::string what = file.state == FileProgress::State::kChecking ? "  checking"
                           : !file.note.empty()                         ? "  " + file.note
                                                                        : "";
  return fmt::format("{:<{}} {} {}{}", Short(file.path), kNameWidth, Bar(share),
                     Pace(file.present, file.size, file.brought, file.seconds), what);
}

class Display {
 public:
  explicit Display(bool quiet) : quiet_(quiet), terminal_(::isatty(STDERR_FILENO) != 0) {}

  void Show(std::span<const FileProgress> files) {
    if (quiet_) return;
    std::string text;
    if (drawn_ > 0) text += fmt::format("\033[{}A\r\033[J", drawn_);
    drawn_ = 0;
    said_.resize(files.size());
    FileProgress all;
    all.seconds = SecondsSince(start_);
    for (size_t i = 0; i < files.size(); ++i) {
      const FileProgress& file = files[i];
      all.size += file.size, all.present += file.present, all.brought += file.brought;
      if (file.state == FileProgress::State::kDone && !said_[i]) {
        said_[i] = true;
        if (file.seconds >= kWorthALine && file.brought > 0)
          text += fmt::format("{}: {} in {}, {}/s\n", file.path, Size(file.size), Duration(file.seconds),
                              Scaled(static_cast<double>(file.brought) / file.seconds, "B"));
      }
    }
    if (terminal_) text += Lines(files, all);
    std::fputs(text.c_str(), stderr);
    std::fflush(stderr);
  }

 private:
  // The bars, no wider than the terminal, because a broken line could not be drawn over.
  std::string Lines(std::span<const FileProgress> files, FileProgress& all) {
    winsize size{};
    const size_t columns = ::ioctl(STDERR_FILENO, TIOCGWINSZ, &size) == 0 && size.ws_col > 0 ? size.ws_col : 80;
    std::string text;
    const auto add = [&](const FileProgress& file) {
      text += Line(file).substr(0, columns - 1) + "\n";
      ++drawn_;
    };
    for (const FileProgress& file : files)
      if (file.state == FileProgress::State::kUnderWay || file.state == FileProgress::State::kChecking ||
          (file.state == FileProgress::State::kWaiting && !file.note.empty()))
        add(file);
    if (drawn_ > 0) {
      all.path = fmt::format("all {} files", files.size());
      add(all);
    }
    return text;
  }

  bool quiet_, terminal_;
  int drawn_ = 0;  // lines to draw over
  std::vector<bool> said_;
  Clock::time_point start_ = Clock::now();
};

}  // namespace

DownloadProgress ShowDownload(bool quiet) {
  return [display = std::make_shared<Display>(quiet)](std::span<const FileProgress> files) { display->Show(files); };
}

std::string Announcement(const PulledRepository& repository) {
  std::string text = fmt::format("{}, commit {}: {}, {}", repository.name, repository.commit.substr(0, 12),
                                 Counted(std::ssize(repository.files), "file"), Size(repository.bytes));
  if (repository.missing_bytes == 0) return text + ", all of it there";
  if (repository.missing_bytes < repository.bytes)
    text += fmt::format(", of which {} are to come", Size(repository.missing_bytes));
  return text;
}

void Announce(const PulledRepository& repository, bool quiet) {
  if (!repository.renamed_to.empty())
    std::fprintf(stderr, "shiftrt: %s is now called %s\n", repository.name.c_str(), repository.renamed_to.c_str());
  for (const std::string& why : repository.damaged)
    std::fprintf(stderr, "shiftrt: %s; it is fetched again\n", why.c_str());
  if (!quiet) std::fprintf(stderr, "%s\n", Announcement(repository).c_str());
}

void SayWhatIsKept() {
  std::fprintf(stderr, "shiftrt: what has arrived is kept; the same command continues from there\n");
}

namespace {

// Pulls what a command lacks. All plans are made before the first download, so that an error comes before time is
// spent; it begins with `lack`, because the user did not ask for a download.
void PullAll(const std::vector<PullRequest>& requests, const std::string& lack, bool quiet) {
  HubClient hub(HubSettings::FromEnvironment());
  std::vector<PullPlan> plans;
  try {
    for (const PullRequest& request : requests) plans.push_back(PlanPull(hub, request));
  } catch (const Interrupted&) {
    throw;
  } catch (const Error& error) {
    Fail("{}. {}", lack, error.what());
  }
  for (const PullPlan& plan : plans) {
    Announce(plan, quiet);
    try {
      Pull(hub, plan, ShowDownload(quiet));
    } catch (const Interrupted&) {
      SayWhatIsKept();
      throw;
    }
  }
}

}  // namespace

bool PullMissingText(const std::string& name, bool offline, bool quiet) {
  if (!LookForText(name).empty()) return true;
  const KnownText* text = FindKnownText(name);
  if (text == nullptr || offline || HubIsOffline()) return false;
  PullAll(KnownDataset(name), fmt::format("the text {} is not on this machine; a file can be named instead", name),
          quiet);
  return true;
}

void PullMissingRows(const SuiteSettings& suites, bool offline, bool quiet) {
  std::vector<PullRequest> requests;
  for (const Task* task : ParseTasks(suites.tasks)) {
    if (LookForTaskFiles(*task, TaskRows::kItems, suites.data).empty())
      requests.push_back(RequestOf(*task, TaskRows::kItems));
    if (suites.shots.value_or(task->usual_shots) > 0 && !task->hub_shot_rows.empty() &&
        LookForTaskFiles(*task, TaskRows::kShots, suites.data).empty())
      requests.push_back(RequestOf(*task, TaskRows::kShots));
  }
  if (!requests.empty() && !offline && !HubIsOffline())
    PullAll(requests, "rows of the tasks are not on this machine; --data says where to look for them", quiet);
}

void PullMissingModel(const std::string& name, bool offline, bool quiet) {
  if (!IsToBePulled(name)) return;
  const Repository repository = *RepositoryOfModel(name);
  if (offline || HubIsOffline())
    Fail(
        "model {}{} is not on this machine, or not all of it, and {} forbids to pull it. With a network:\n  shiftrt "
        "pull {}",
        name, name == repository.Description() ? "" : " (" + repository.id + ")",
        offline ? "--offline" : "HF_HUB_OFFLINE", name);
  PullRequest request;
  request.repository = repository;
  PullAll({std::move(request)},
          fmt::format("--model {}: there is no such directory, and the cache of the hub lacks this model", name),
          quiet);
}

}  // namespace shiftrt
