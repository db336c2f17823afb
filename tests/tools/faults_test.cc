// SPDX-License-Identifier: Apache-2.0
// One call of the C library fails in a small job of each command, or SIGINT arrives (failing_calls.cc). The job then
// ends with an error and status 1 (130 if it was interrupted), or its result is right. It leaves no temporary file, and
// the same command without the fault gives the same bits. SHIFTRT_FAULTS is the number of calls tried per kind and job,
// spread over all of them (default 1; 0: every one), and SHIFTRT_FAULT_KIND names the one kind to try.
// scripts/fault-campaign sets both. The same is expected where the output, the journal and the cache are on a file
// system that is too small.
#include <sched.h>
#include <sys/mount.h>
#include <sys/resource.h>
#include <sys/statvfs.h>

#include <cerrno>
#include <csignal>
#include <cstdlib>
#include <cstring>
#include <regex>

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

  // Runs a job with an environment variable, or without if `variable` is null.
  Ran With(const Job& job, const char* variable, const std::string& value) const {
    Ran run;
    run.status = StatusOf(Jobs::With(job, Path(place_ + "out")), dir_ / "err", [&] {
      if (std::freopen(Path("printed").c_str(), "w", stdout) == nullptr) ::_exit(97);
      if (variable != nullptr) {
        ::setenv("LD_PRELOAD", SHIFTRT_FAILING_CALLS, 1);
        ::setenv(variable, value.c_str(), 1);
      }
      const rlimit seconds = {60, 60};
      ::setrlimit(RLIMIT_CPU, &seconds);
    });
    const bool prints = std::find(job.begin(), job.end(), "OUT") == job.end();
    run.result = Bytes(prints ? "printed" : place_ + "out");
    if (prints) run.result[""] = std::regex_replace(run.result[""], std::regex(", [0-9.]+ tokens/s"), "");
    run.said = ReadFile(dir_ / "err");
    return run;
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
    ASSERT_TRUE(ran.status == 0 || ((ran.status == failed || of_option) && allowed))
        << where << ": status " << ran.status << "\n"
        << ran.said;
    ExpectNoTemporaries(where);
    ++faults_;
    if (ran.status == 0) {
      EXPECT_TRUE(ran.result == right) << where << ": another result\n" << ran.said;
      return;
    }
    ++errors_;
    EXPECT_TRUE(of_option || ran.said.find("shiftrt: ") != std::string::npos) << where << ": " << ran.said;
    mend();
    // An export that was renamed before the error is whole, and a second one does not replace it.
    if (job[0] == "export") fs::remove_all(dir_ / (place_ + "out"));
    const Ran again = With(job, nullptr, "");
    EXPECT_EQ(again.status, 0) << where << ", then again: " << again.said;
    EXPECT_TRUE(again.result == right) << where << ", then again: another result";
  }

  // Tries `wanted` of `count` calls of one kind. If the system may do so (a short read), it must not be an error.
  void Expect(const Job& job, const std::map<std::string, std::string>& right, const std::string& kind, int64_t count,
              int64_t wanted, bool allowed) {
    const int64_t tries = wanted == 0 ? count : std::min(wanted, count);
    for (int64_t i = 0; i < tries && !HasFatalFailure(); ++i) {
      const int64_t n = 1 + (2 * i + 1) * count / (2 * tries);
      Clear();
      const Ran broken = With(job, "SHIFTRT_FAIL", fmt::format("{}:{}", kind, n));
      Judge(
          job, right, broken, !allowed, fmt::format("{}, {} {} of {}", job[0], kind, n, count), [] {},
          kind == "interrupt" ? 128 + SIGINT : 1);
    }
  }

  std::string place_;  // directory of the output, the journal and the cache, below that of the test; ends with a slash
  int64_t faults_ = 0, errors_ = 0;
};

TEST_F(Faults, AreErrorsOrNothing) {
  const char* const given = std::getenv("SHIFTRT_FAULTS");
  const char* const only = std::getenv("SHIFTRT_FAULT_KIND");
  const int64_t wanted = given == nullptr ? 1 : std::atoll(given);
  for (const Job& job : All()) {
    Clear();
    const Ran whole = With(job, "SHIFTRT_COUNT", Path("counts"));
    ASSERT_EQ(whole.status, 0) << job[0] << ": " << whole.said;
    std::istringstream counts(ReadFile(dir_ / "counts"));
    std::string kind;
    for (int64_t count = 0; counts >> kind >> count;)
      if (only == nullptr || kind == only) Expect(job, whole.result, kind, count, wanted, kind.starts_with("short"));
  }
  EXPECT_GT(errors_, 20);
  if (given != nullptr) std::printf("%ld faults, %ld of them errors\n", faults_, errors_);
}

// Outputs on a file system of its own, in memory, that is full behind some bytes.
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
  for (Job job : All()) {
    if (std::find(job.begin(), job.end(), "OUT") == job.end()) continue;
    std::replace(job.begin(), job.end(), Path("journal"), Path("small/journal"));
    Clear();
    const Ran whole = With(job, nullptr, "");
    ASSERT_EQ(whole.status, 0) << job[0] << ": " << whole.said;
    const int64_t pages = Used() / kPage;
    ASSERT_GT(pages, 0) << job[0];
    const int64_t failed = errors_;
    for (int64_t i = 0; i < wanted && !HasFatalFailure(); ++i) {
      Clear();
      const int64_t size = std::max<int64_t>((2 * i + 1) * pages / (2 * wanted), 1) * kPage;  // 0 is no limit
      Resize(size);
      const Ran ran = With(job, nullptr, "");
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
