// SPDX-License-Identifier: Apache-2.0
// One call of the C library fails in a small job of each command (failing_calls.cc). The job then ends with an error
// and status 1, or its result is right. It leaves no temporary file, and the same command without the fault gives the
// same bits. SHIFTRT_FAULTS is the number of calls tried per kind and job, spread over all of them (default 1; 0: every
// one), and SHIFTRT_FAULT_KIND names the one kind to try. scripts/fault-campaign sets both.
#include <sys/resource.h>

#include <cstdlib>
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
    run.status = StatusOf(Jobs::With(job, "out"), dir_ / "err", [&] {
      if (std::freopen(Path("printed").c_str(), "w", stdout) == nullptr) ::_exit(97);
      if (variable != nullptr) {
        ::setenv("LD_PRELOAD", SHIFTRT_FAILING_CALLS, 1);
        ::setenv(variable, value.c_str(), 1);
      }
      const rlimit seconds = {60, 60};
      ::setrlimit(RLIMIT_CPU, &seconds);
    });
    const bool prints = std::find(job.begin(), job.end(), "OUT") == job.end();
    run.result = Bytes(prints ? "printed" : "out");
    if (prints) run.result[""] = std::regex_replace(run.result[""], std::regex(", [0-9.]+ tokens/s"), "");
    run.said = ReadFile(dir_ / "err");
    return run;
  }

  void Clear() const {
    for (const char* const name : {"out", "cache", "journal"}) fs::remove_all(dir_ / name);
  }

  // Tries `wanted` of `count` calls of one kind. If the system may do so (a short read), it must not be an error.
  void Expect(const Job& job, const std::map<std::string, std::string>& right, const std::string& kind, int64_t count,
              int64_t wanted, bool allowed) {
    const int64_t tries = wanted == 0 ? count : std::min(wanted, count);
    for (int64_t i = 0; i < tries; ++i) {
      const int64_t n = 1 + (2 * i + 1) * count / (2 * tries);
      const std::string where = fmt::format("{}, {} {} of {}", job[0], kind, n, count);
      Clear();
      const Ran broken = With(job, "SHIFTRT_FAIL", fmt::format("{}:{}", kind, n));
      // An output that cannot be created is an error of the option that names it.
      const bool of_option =
          broken.status == 2 && broken.said.starts_with("--") && broken.said.find("cannot create") != std::string::npos;
      ASSERT_TRUE(broken.status == 0 || ((broken.status == 1 || of_option) && !allowed))
          << where << ": status " << broken.status << "\n"
          << broken.said;
      ExpectNoTemporaries(where);
      ++faults_;
      if (broken.status == 0) {
        EXPECT_TRUE(broken.result == right) << where << ": another result\n" << broken.said;
        continue;
      }
      ++errors_;
      EXPECT_TRUE(of_option || broken.said.find("shiftrt: ") != std::string::npos) << where << ": " << broken.said;
      // An export that was renamed before the error is whole, and a second one does not replace it.
      if (job[0] == "export") fs::remove_all(dir_ / "out");
      const Ran again = With(job, nullptr, "");
      EXPECT_EQ(again.status, 0) << where << ", then again: " << again.said;
      EXPECT_TRUE(again.result == right) << where << ", then again: another result";
    }
  }

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

}  // namespace
}  // namespace shiftrt

#endif
