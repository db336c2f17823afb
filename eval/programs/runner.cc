// SPDX-License-Identifier: Apache-2.0
#include "eval/programs/runner.h"

#include <fcntl.h>
#include <poll.h>
#include <sys/mman.h>
#include <sys/random.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <chrono>
#include <csignal>
#include <cstdlib>
#include <cstring>
#include <system_error>
#include <utility>

#include "runtime/check.h"
#include "runtime/files.h"

namespace shiftrt {

namespace {

using Clock = std::chrono::steady_clock;

constexpr size_t kWordBytes = 32;       // the word says that a program has ended well
constexpr char kBegun = 'S';            // reported when Python begins with the program
constexpr double kSecondsToBegin = 60;  // a busy machine may need them to start Python

// Standard input is the word and then the program. A program that ends the process in another way does not write the
// word. Reading from standard input is an error, as in the reference.
constexpr const char* kDriver = R"(
import os, sys
with open(0, 'rb', closefd=False) as file:
    word = file.read(32)
    text = file.read()
os.dup2(1, 0)
sys.stdin = sys.stdout
os.write(3, b'S')
try:
    exec(text.decode(), {})
except BaseException:
    os._exit(1)
os.write(3, word)
os._exit(0)
)";

std::string RandomWord() {
  std::array<unsigned char, kWordBytes / 2> bytes{};
  Check(::getrandom(bytes.data(), bytes.size(), 0) == std::ssize(bytes), "no random bytes: {}", std::strerror(errno));
  std::string word;
  for (const unsigned char byte : bytes) word += fmt::format("{:02x}", byte);
  return word;
}

// Descriptors that the child copies to 0 .. 3 must not be among these.
Descriptor AboveStandard(int fd, const char* what) {
  Check(fd >= 0, "cannot make {} for a program: {}", what, std::strerror(errno));
  const Descriptor low(fd);
  Descriptor high(::fcntl(fd, F_DUPFD_CLOEXEC, kReportDescriptor + 1));
  Check(high.is_open(), "cannot make {} for a program: {}", what, std::strerror(errno));
  return high;
}

Descriptor InputOf(std::string_view word, std::string_view program) {
  Descriptor input = AboveStandard(::memfd_create("program", MFD_CLOEXEC), "a file");
  for (std::string_view rest : {word, program})
    while (!rest.empty()) {
      const ssize_t written = ::write(input.get(), rest.data(), rest.size());
      Check(written > 0 || errno == EINTR, "cannot write a program: {}", std::strerror(errno));
      if (written > 0) rest.remove_prefix(static_cast<size_t>(written));
    }
  Check(::lseek(input.get(), 0, SEEK_SET) == 0, "cannot rewind a program: {}", std::strerror(errno));
  return input;
}

// A process that is killed, with all that it started in namespaces of its own, and waited for with its object.
class Child {
 public:
  explicit Child(pid_t id) : id_(id) {}
  ~Child() {
    ::kill(id_, SIGKILL);
    while (::waitpid(id_, nullptr, 0) < 0 && errno == EINTR) {
    }
  }
  Child(const Child&) = delete;
  Child& operator=(const Child&) = delete;

 private:
  pid_t id_;
};

// Reads what a process reports until it closes the pipe or its time is over.
struct Report {
  std::string text = {};
  bool timed_out = false;

  bool begun() const { return text.starts_with(kBegun); }

  void Read(int pipe, double seconds) {
    auto end =
        Clock::now() + std::chrono::duration_cast<Clock::duration>(std::chrono::duration<double>(kSecondsToBegin));
    std::array<char, 256> buffer{};
    while (text.size() < 1 + kWordBytes) {
      CheckInterrupted();
      const auto left = std::chrono::duration_cast<std::chrono::milliseconds>(end - Clock::now()).count();
      timed_out = left <= 0;
      if (timed_out) return;
      pollfd wanted{pipe, POLLIN, 0};
      if (::poll(&wanted, 1, static_cast<int>(std::min<int64_t>(left, 100))) <= 0) continue;
      const ssize_t count = ::read(pipe, buffer.data(), buffer.size());
      if (count < 0 && (errno == EINTR || errno == EAGAIN)) continue;
      if (count <= 0) return;
      const bool before = begun();
      text.append(buffer.data(), static_cast<size_t>(count));
      if (!before && begun())
        end = Clock::now() + std::chrono::duration_cast<Clock::duration>(std::chrono::duration<double>(seconds));
    }
  }
};

std::filesystem::path EmptyDirectory() {
  std::string name = (std::filesystem::temp_directory_path() / "shiftrt-program-XXXXXX").string();
  Check(::mkdtemp(name.data()) != nullptr, "{}: cannot make a directory for programs: {}", name, std::strerror(errno));
  return name;
}

}  // namespace

const char* Name(ProgramOutcome outcome) {
  return outcome == ProgramOutcome::kPassed ? "passed" : outcome == ProgramOutcome::kFailed ? "failed" : "timed out";
}

ProgramRunner::ProgramRunner(const ProgramLimits& limits, std::span<const Isolation> isolations) : limits_(limits) {
  const Python python = FindPython();
  directory_ = EmptyDirectory();
  std::string reasons;
  for (const Isolation isolation : isolations) {
    try {
      confinement_ = std::make_unique<Confinement>(
          isolation, python, std::vector<std::string>{python.executable, "-I", "-B", "-X", "utf8", "-c", kDriver},
          directory_.string(), limits);
      isolation_ = isolation;
      if (Run("") == ProgramOutcome::kPassed) return;
      reasons += fmt::format("; {}: an empty program does not run", Name(isolation));
    } catch (const Interrupted&) {
      std::error_code ignored;
      std::filesystem::remove(directory_, ignored);
      throw;
    } catch (const Error& error) {
      reasons += fmt::format("; {}: {}", Name(isolation), error.what());
    }
  }
  std::error_code ignored;
  std::filesystem::remove(directory_, ignored);
  Fail(
      "programs of a model are run in isolation only, and this system offers none that works: user namespaces or "
      "Landlock, with seccomp{}; leave out the tasks that run programs, or allow one of them (containers often forbid "
      "both)",
      reasons);
}

ProgramRunner::~ProgramRunner() {
  std::error_code ignored;
  std::filesystem::remove(directory_, ignored);
}

ProgramOutcome ProgramRunner::Run(std::string_view program) const {
  const std::string word = RandomWord();
  const Descriptor input = InputOf(word, program);
  const Descriptor null = AboveStandard(::open("/dev/null", O_RDWR | O_CLOEXEC), "an output");
  std::array<int, 2> ends{};
  Check(::pipe2(ends.data(), O_CLOEXEC) == 0, "cannot make a pipe for a program: {}", std::strerror(errno));
  const Descriptor out(ends[0]);
  Descriptor in = AboveStandard(ends[1], "a pipe");
  const ProgramFiles files{input.get(), null.get(), in.get()};
  const auto id = static_cast<pid_t>(
      ::syscall(SYS_clone, confinement_->clone_flags() | SIGCHLD, nullptr, nullptr, nullptr, nullptr));
  if (id == 0) confinement_->Enter(files);
  Check(id > 0, "cannot start a process for a program: {}", std::strerror(errno));
  const Child child(id);
  in = Descriptor();
  Report report;
  report.Read(out.get(), limits_.seconds);
  if (!report.begun()) {
    ConfinementFailure failure;
    Check(report.text.size() == sizeof(failure), "Python does not start in isolation");
    std::memcpy(&failure, report.text.data(), sizeof(failure));
    Fail("{}: {}", ConfinementStep(failure.step), std::strerror(failure.error));
  }
  if (report.text.substr(1) == word) return ProgramOutcome::kPassed;
  return report.timed_out ? ProgramOutcome::kTimedOut : ProgramOutcome::kFailed;
}

}  // namespace shiftrt
