// SPDX-License-Identifier: Apache-2.0
// One call of the C library fails in a small job of each command, or SIGINT arrives (failing_calls.cc). The job then
// ends with an error and status 1 (130 if it was interrupted), or its result is right. It leaves no temporary file, and
// the same command without the fault gives the same bits. SHIFTRT_FAULTS is the number of calls tried per kind and job,
// spread over all of them (default 1; 0: every one). SHIFTRT_FAULT_KIND names the one kind to try, and
// SHIFTRT_FAULT_JOB the one job. scripts/fault-campaign sets them, and a line says what each kind did to each job. The
// same is expected where the output, the journal and the cache are on a file system that is too small.
#include <fcntl.h>
#include <poll.h>
#include <sched.h>
#include <sys/mount.h>
#include <sys/resource.h>
#include <sys/statvfs.h>

#include <cerrno>
#include <csignal>
#include <cstdlib>
#include <cstring>
#include <optional>
#include <regex>
#include <set>

#include "tests/tools/jobs.h"

#if !defined(__SANITIZE_ADDRESS__)

namespace shiftrt {
namespace {

class Faults : public Jobs {
 protected:
  struct Ran {
    int status = 0;
    std::map<std::string, std::string> result;
    std::string said;
  };

  void SetUp() override {
    Jobs::SetUp();
    ::setenv("OPENBLAS_NUM_THREADS", "1", 1);  // no threads before main(): a Server forks
    WriteText(dir_ / "calibration.txt", Words(600));
    WriteText(dir_ / "heldout.txt", Words(60));
  }
  void TearDown() override {
    ::unsetenv("OPENBLAS_NUM_THREADS");
    Jobs::TearDown();
  }

  std::vector<Job> Small() { return All("4x16"); }

  // Starts a job with the environment, whose standard output goes to a file.
  pid_t Launch(const Job& job, const std::map<std::string, std::string>& environment) const {
    return StartPrepared(Jobs::With(job, Path(place_ + "out")), dir_ / "err", [&] {
      if (std::freopen(Path("printed").c_str(), "w", stdout) == nullptr) ::_exit(97);
      if (!environment.empty()) ::setenv("LD_PRELOAD", SHIFTRT_FAILING_CALLS, 1);
      for (const auto& [name, value] : environment) ::setenv(name.c_str(), value.c_str(), 1);
      const rlimit seconds = {60, 60};
      ::setrlimit(RLIMIT_CPU, &seconds);
    });
  }

  // Collects what a job has left that ended with `status`.
  Ran Left(const Job& job, int status) const {
    Ran run;
    run.status = status;
    const bool prints = std::find(job.begin(), job.end(), "OUT") == job.end();
    run.result = Bytes(prints ? "printed" : place_ + "out");
    if (prints) run.result[""] = std::regex_replace(run.result[""], std::regex(", [0-9.]+ tokens/s"), "");
    run.said = ReadFile(dir_ / "err");
    return run;
  }

  // Runs a job with these environment variables.
  Ran With(const Job& job, const std::map<std::string, std::string>& environment = {}) const {
    return Left(job, Wait(Launch(job, environment)));
  }

  // Runs a job with one fault after the other. It is started once, and forks at an allocation before the faults.
  class Server {
   public:
    Server(const Faults& faults, const Job& job, const std::string& kind, int64_t from) : faults_(faults), job_(job) {
      int numbers[2], statuses[2];
      if (::pipe2(numbers, O_CLOEXEC) != 0 || ::pipe2(statuses, O_CLOEXEC) != 0) return;
      ::dup2(numbers[0], 100);
      ::dup2(statuses[1], 101);
      child_ = faults.Launch(job, {{"SHIFTRT_FAIL", kind + ":1000000000000"}, {"SHIFTRT_SERVE", std::to_string(from)}});
      for (const int fd : {numbers[0], statuses[1], 100, 101}) ::close(fd);
      numbers_ = numbers[1];
      statuses_ = statuses[0];
    }
    Server(const Server&) = delete;
    Server& operator=(const Server&) = delete;
    ~Server() {
      ::close(numbers_);
      ::close(statuses_);
      if (child_ > 0) Wait(child_);
    }

    // The job with call number `n` failing.
    Ran Try(int64_t n) const {
      const auto number = static_cast<int32_t>(n);
      int32_t status = 0;
      pollfd answer = {statuses_, POLLIN, 0};
      if (::write(numbers_, &number, sizeof number) != sizeof number || ::poll(&answer, 1, 120'000) != 1 ||
          ::read(statuses_, &status, sizeof status) != sizeof status) {
        ADD_FAILURE() << job_[0] << " did not end with fault " << n;
        ::kill(child_, SIGKILL);
        status = SIGKILL;
      }
      return faults_.Left(job_, WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status));
    }

   private:
    const Faults& faults_;
    const Job job_;
    pid_t child_ = -1;
    int numbers_ = -1, statuses_ = -1;
  };

  // The files that a job may have left, with the digits of shiftrt.json, which holds times, left out.
  std::map<std::string, std::string> State() const {
    std::map<std::string, std::string> state;
    for (const char* const name : {"out", "cache", "journal"}) {
      if (fs::is_regular_file(dir_ / (place_ + name))) state[name] = ReadFile(dir_ / (place_ + name));
      if (!fs::is_directory(dir_ / (place_ + name))) continue;
      for (const auto& entry : fs::recursive_directory_iterator(dir_ / (place_ + name)))
        state[entry.path().string()] = entry.is_regular_file() ? ReadFile(entry.path()) : "";
    }
    for (auto& [name, bytes] : state)
      if (name.ends_with("shiftrt.json")) std::erase_if(bytes, [](char c) { return c >= '0' && c <= '9'; });
    return state;
  }

  void Clear() const {
    for (const char* const name : {"out", "cache", "journal"}) fs::remove_all(dir_ / (place_ + name));
  }

  // Expects that a disturbed job has ended with an error, if one is `allowed`, or with the right result. After an
  // error, whose status is `failed`, calls `mend`, and the same command then gives the right result.
  template <typename Mend>
  void Judge(const Job& job, const std::map<std::string, std::string>& right, const Ran& ran, bool allowed,
             const std::string& where, const Mend& mend, int failed = 1) {
    // An output that cannot be created is an error of the option that names it.
    const bool of_option =
        ran.status == 2 && ran.said.starts_with("--") && ran.said.find("cannot create") != std::string::npos;
    const bool ends = ran.status == 0 || ((ran.status == failed || of_option) && allowed);
    EXPECT_TRUE(ends) << where << ": status " << ran.status << "\n" << ran.said;
    ++faults_;
    if (!ends) {
      ++wrong_;
      return;
    }
    ExpectNoTemporaries(where);
    if (ran.status == 0) {
      EXPECT_TRUE(ran.result == right) << where << ": another result\n" << ran.said;
      return;
    }
    ++errors_;
    EXPECT_TRUE(of_option || ran.said.find("shiftrt: ") != std::string::npos) << where << ": " << ran.said;
    mend();
    // An export that was renamed before the error is whole, and a second one does not replace it.
    if (job[0] == "export") fs::remove_all(dir_ / (place_ + "out"));
    if (!tried_.insert(State()).second) return;  // the same command went well with the same files
    const Ran again = With(job);
    EXPECT_EQ(again.status, 0) << where << ", then again: " << again.said;
    EXPECT_TRUE(again.result == right) << where << ", then again: another result";
  }

  // The command; "sums" is the run that saves them.
  static std::string Name(const Job& job) {
    return std::find(job.begin(), job.end(), "--save-gram") == job.end() ? job[0] : "sums";
  }

  // CPU time of the children that have ended.
  static int64_t ChildrensMicroseconds() {
    rusage used{};
    ::getrusage(RUSAGE_CHILDREN, &used);
    return (used.ru_utime.tv_sec + used.ru_stime.tv_sec) * 1'000'000 + used.ru_utime.tv_usec + used.ru_stime.tv_usec;
  }

  // Tries `wanted` of `count` calls of one kind. If the system may do so (a short read), it must not be an error.
  void Expect(const Job& job, const std::map<std::string, std::string>& right, const std::string& kind, int64_t count,
              int64_t wanted, bool allowed) {
    const bool allocations = kind == "memory" || kind == "no-memory" || kind == "interrupt";
    // All commands begin with the same allocations, which make their options. Every one is tried with tokenize alone.
    const int64_t same = wanted == 0 && allocations && job[0] != "tokenize" ? same_ : 0;
    const int64_t tries = wanted == 0 ? count - same : std::min(wanted, count);
    std::optional<Server> server;
    if (allocations && tries > 20) server.emplace(*this, job, kind, same + 1);
    for (int64_t i = 0; i < tries && wrong_ < 20; ++i) {
      const int64_t n = 1 + same + (2 * i + 1) * (count - same) / (2 * tries);
      Clear();
      const Ran broken = server ? server->Try(n) : With(job, {{"SHIFTRT_FAIL", fmt::format("{}:{}", kind, n)}});
      Judge(
          job, right, broken, !allowed, fmt::format("{}, {} {} of {}", Name(job), kind, n, count), [] {},
          kind == "interrupt" ? 128 + SIGINT : 1);
    }
  }

  // The number of calls of each kind in a job.
  std::vector<std::pair<std::string, int64_t>> Counts() const {
    std::vector<std::pair<std::string, int64_t>> counts;
    std::istringstream lines(ReadFile(dir_ / "counts"));
    std::string kind;
    for (int64_t count = 0; lines >> kind >> count;) counts.emplace_back(kind, count);
    return counts;
  }

  std::string place_;  // directory of the output, the journal and the cache, below that of the test; ends with a slash
  int64_t faults_ = 0, errors_ = 0, wrong_ = 0;
  int64_t same_ = 0;                                    // allocations with which every command begins
  std::set<std::map<std::string, std::string>> tried_;  // files with which the job under test was given again
};

TEST_F(Faults, AreErrorsOrNothing) {
  const char* const given = std::getenv("SHIFTRT_FAULTS");
  const char* const only = std::getenv("SHIFTRT_FAULT_KIND");
  const char* const only_job = std::getenv("SHIFTRT_FAULT_JOB");
  const int64_t wanted = given == nullptr ? 1 : std::atoll(given);
  ASSERT_EQ(With({"--version"}, {{"SHIFTRT_COUNT", Path("counts")}}).status, 0);
  same_ = Counts()[0].second - 200;  // some are of --version itself
  for (const Job& job : Small()) {
    const std::string name = Name(job);
    if (only_job != nullptr && name != only_job) continue;
    Clear();
    tried_.clear();
    const Ran whole = With(job, {{"SHIFTRT_COUNT", Path("counts")}});
    ASSERT_EQ(whole.status, 0) << name << ": " << whole.said;
    for (const auto& [kind, count] : Counts()) {
      if (only != nullptr && kind != only) continue;
      const int64_t faults = faults_, errors = errors_, cpu = ChildrensMicroseconds();
      Expect(job, whole.result, kind, count, wanted, kind.starts_with("short"));
      if (given == nullptr) continue;
      std::printf("%s: %s, %ld of %ld, %ld of them errors, %.1f s of CPU time\n", name.c_str(), kind.c_str(),
                  faults_ - faults, count, errors_ - errors, static_cast<double>(ChildrensMicroseconds() - cpu) * 1e-6);
      std::fflush(stdout);  // before a child inherits what is not written
    }
  }
  EXPECT_GT(errors_, only == nullptr && only_job == nullptr ? 20 : -1);
  if (given != nullptr) std::printf("%ld faults, %ld of them errors\n", faults_, errors_);
}

// Outputs on a file system of its own, in memory, that is full after some bytes.
class SmallDisk : public Faults {
 protected:
  void SetUp() override {
    Faults::SetUp();
    place_ = "small/";
    fs::create_directory(dir_ / "small");
    ::setenv("XDG_CACHE_HOME", Path("small/cache").c_str(), 1);
    // Other processes do not see what is mounted here, and the system unmounts it when this one ends.
    if (::unshare(CLONE_NEWNS) != 0 || ::mount("none", "/", nullptr, MS_REC | MS_PRIVATE, nullptr) != 0 ||
        ::mount("shiftrt", Path("small").c_str(), "tmpfs", 0, "size=64m") != 0)
      GTEST_SKIP() << "this process may not mount a file system (" << std::strerror(errno)
                   << "); scripts/fault-campaign runs the test as unshare lets it";
  }
  void TearDown() override {
    ::umount2(Path("small").c_str(), MNT_DETACH);
    Faults::TearDown();
  }
  void Resize(int64_t bytes) const {
    ASSERT_EQ(::mount("shiftrt", Path("small").c_str(), "tmpfs", MS_REMOUNT, fmt::format("size={}", bytes).c_str()), 0)
        << std::strerror(errno);
  }
  int64_t Used() const {
    struct statvfs info {};
    EXPECT_EQ(::statvfs(Path("small").c_str(), &info), 0);
    return static_cast<int64_t>((info.f_blocks - info.f_bfree) * info.f_frsize);
  }
};

TEST_F(SmallDisk, WhenItIsFullTheJobSaysSo) {
  constexpr int64_t kEnough = int64_t{64} << 20, kPage = 4096;  // a size is a multiple of a page
  const char* const given = std::getenv("SHIFTRT_FAULTS");
  const int64_t wanted = given == nullptr ? 2 : std::atoll(given);
  for (Job job : Small()) {
    if (std::find(job.begin(), job.end(), "OUT") == job.end()) continue;
    std::replace(job.begin(), job.end(), Path("journal"), Path("small/journal"));
    Clear();
    const Ran whole = With(job);
    ASSERT_EQ(whole.status, 0) << job[0] << ": " << whole.said;
    const int64_t pages = Used() / kPage;
    ASSERT_GT(pages, 0) << job[0];
    const int64_t failed = errors_;
    for (int64_t i = 0; i < wanted && !HasFatalFailure(); ++i) {
      Clear();
      const int64_t size = std::max<int64_t>((2 * i + 1) * pages / (2 * wanted), 1) * kPage;  // 0 is no limit
      Resize(size);
      const Ran ran = With(job);
      Judge(job, whole.result, ran, true, fmt::format("{} on {} bytes", job[0], size), [&] { Resize(kEnough); });
      EXPECT_TRUE(ran.status == 0 || ran.said.find("No space left") != std::string::npos) << job[0] << ": " << ran.said;
      Resize(kEnough);
    }
    EXPECT_GT(errors_, failed) << job[0];
  }
  if (given != nullptr) std::printf("%ld sizes, %ld of them errors\n", faults_, errors_);
}

}  // namespace
}  // namespace shiftrt

#endif
