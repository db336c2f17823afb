// SPDX-License-Identifier: Apache-2.0
// Programs of a model run in isolation, and hostile ones harm nobody.
#include <arpa/inet.h>
#include <fcntl.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <chrono>
#include <cstdlib>
#include <memory>
#include <string>
#include <vector>

#include "eval/programs/runner.h"
#include "runtime/descriptor.h"
#include "runtime/files.h"
#include "runtime/stopwatch.h"
#include "tests/runtime/refusal.h"
#include "tests/temporary_directory.h"
#include "tests/write_text.h"

namespace shiftrt {
namespace {

namespace fs = std::filesystem;

// Programs that end have more time than they need on a busy machine; those that do not have little.
constexpr ProgramLimits kLimits = {.seconds = 20, .memory = int64_t{512} << 20};
constexpr ProgramLimits kBrief = {.seconds = 0.4};

class Programs : public ::testing::TestWithParam<Isolation> {
 protected:
  // Skips the test where an isolation is not offered.
  void SetUp() override {
    const Isolation isolation = GetParam();
    try {
      runner_ = std::make_unique<ProgramRunner>(kLimits, std::span(&isolation, 1));
    } catch (const Error& error) {
      GTEST_SKIP() << error.what();
    }
  }

  ProgramOutcome Run(const std::string& program) { return runner_->Run(program); }
  // The program passes if this raises an exception, and only then.
  ProgramOutcome RunRefused(const std::string& program) {
    return Run("try:\n    " + program + "\nexcept Exception:\n    pass\nelse:\n    assert False\n");
  }

  // The same, for programs that do not end.
  ProgramOutcome RunEndless(const std::string& program) {
    const Isolation isolation = GetParam();
    return ProgramRunner(kBrief, std::span(&isolation, 1)).Run(program);
  }

  std::unique_ptr<ProgramRunner> runner_;
};

TEST_P(Programs, PassIfTheyEndWithoutAnException) {
  EXPECT_EQ(Run(""), ProgramOutcome::kPassed);
  EXPECT_EQ(Run("import math, re, typing, collections, hashlib, threading\nassert math.sqrt(16) == 4"),
            ProgramOutcome::kPassed);
  EXPECT_EQ(Run("def f(text):\n    return text + '\xC3\xA9'\nassert len(f('x')) == 2"), ProgramOutcome::kPassed);
  EXPECT_EQ(Run("assert 1 == 2"), ProgramOutcome::kFailed);
  EXPECT_EQ(Run("def f(:"), ProgramOutcome::kFailed);
  EXPECT_EQ(Run("def f():\n    return f()\nf()"), ProgramOutcome::kFailed);
  EXPECT_EQ(Run("import sys\nsys.exit(0)"), ProgramOutcome::kFailed);
  EXPECT_EQ(Run("import os\nos._exit(0)"), ProgramOutcome::kFailed);
  EXPECT_EQ(Run("raise KeyboardInterrupt"), ProgramOutcome::kFailed);
  EXPECT_EQ(Run("input()"), ProgramOutcome::kFailed);
  EXPECT_EQ(Run("if __name__ == '__main__':\n    raise ValueError"), ProgramOutcome::kPassed);  // as in the reference
  EXPECT_EQ(Run(std::string("x = 1\0", 6)), ProgramOutcome::kFailed);
  EXPECT_EQ(Run("x = '\xFF'"), ProgramOutcome::kFailed);
  EXPECT_EQ(Run("import threading\nthread = threading.Thread(target=print)\nthread.start()\nthread.join()"),
            ProgramOutcome::kPassed);
}

TEST_P(Programs, EndlessOnesAreEnded) {
  const auto start = std::chrono::steady_clock::now();
  EXPECT_EQ(RunEndless("while True: pass"), ProgramOutcome::kTimedOut);
  EXPECT_EQ(RunEndless("import time\ntry:\n    time.sleep(100)\nfinally:\n    time.sleep(100)"),
            ProgramOutcome::kTimedOut);
  EXPECT_LT(SecondsSince(start), 20);
}

TEST_P(Programs, EndlessOutputGoesNowhere) {
  EXPECT_EQ(Run("import os, sys\nprint('x' * 1000000)\nsys.stderr.write('y' * 1000000)\nos.write(2, b'z' * 1000000)"),
            ProgramOutcome::kPassed);
  EXPECT_EQ(RunEndless("while True: print('x' * 10000)"), ProgramOutcome::kTimedOut);
  // The pipe of the report takes no more than the one word.
  EXPECT_EQ(Run("import os\nos.write(3, b'0' * 32)"), ProgramOutcome::kFailed);
}

TEST_P(Programs, MemoryHasALimit) {
  EXPECT_EQ(RunRefused("bytearray(1 << 30)"), ProgramOutcome::kPassed);
  EXPECT_EQ(Run("held = []\nwhile True: held.append(bytearray(64 << 20))"), ProgramOutcome::kFailed);
}

TEST_P(Programs, NoProcessIsStarted) {
  EXPECT_EQ(RunRefused("import os; os.fork()"), ProgramOutcome::kPassed);
  EXPECT_EQ(RunRefused("import subprocess; subprocess.run(['/bin/true'])"), ProgramOutcome::kPassed);
  EXPECT_EQ(RunRefused("import os; os.posix_spawn('/bin/true', ['true'], {})"), ProgramOutcome::kPassed);
  EXPECT_EQ(Run("import os\nassert os.system('true') != 0"), ProgramOutcome::kPassed);
  EXPECT_EQ(Run("import os\nwhile True: os.fork()"), ProgramOutcome::kFailed);
  EXPECT_EQ(RunEndless("import os\nwhile True:\n    try:\n        os.fork()\n    except OSError:\n        pass"),
            ProgramOutcome::kTimedOut);
}

TEST_P(Programs, ThreadsHaveALimit) {
  EXPECT_EQ(Run("import threading, time\n"
                "while True: threading.Thread(target=time.sleep, args=(100,)).start()"),
            ProgramOutcome::kFailed);
}

TEST_P(Programs, NobodyIsSignalled) {
  const std::string parent = std::to_string(::getpid());
  EXPECT_EQ(RunRefused("import os; os.kill(os.getppid(), 9)"), ProgramOutcome::kPassed);
  EXPECT_EQ(RunRefused("import os; os.kill(" + parent + ", 9)"), ProgramOutcome::kPassed);
  EXPECT_EQ(RunRefused("import os; os.kill(-1, 9)"), ProgramOutcome::kPassed);
  EXPECT_EQ(RunRefused("import os; os.killpg(0, 9)"), ProgramOutcome::kPassed);
  EXPECT_EQ(RunRefused("import resource; resource.prlimit(" + parent + ", resource.RLIMIT_NOFILE, (5, 5))"),
            ProgramOutcome::kPassed);
  EXPECT_EQ(RunRefused("import os; os.setpriority(os.PRIO_PROCESS, " + parent + ", 19)"), ProgramOutcome::kPassed);
}

TEST_P(Programs, FilesOfTheUserAreNotRead) {
  const TemporaryDirectory home;
  WriteText(home.path() / "secret", "42");
  const std::string secret = (home.path() / "secret").string();
  ::setenv("HOME", home.path().c_str(), 1);
  EXPECT_EQ(RunRefused("open('" + secret + "').read()"), ProgramOutcome::kPassed);
  EXPECT_EQ(RunRefused("import os; os.listdir('" + home.path().string() + "')"), ProgramOutcome::kPassed);
  EXPECT_EQ(RunRefused("open('/etc/passwd').read()"), ProgramOutcome::kPassed);
  EXPECT_EQ(RunRefused("open('/proc/" + std::to_string(::getpid()) + "/environ', 'rb').read()"),
            ProgramOutcome::kPassed);
  EXPECT_EQ(Run("import os\nassert not os.environ.get('HOME') and not os.environ.get('PATH'), os.environ"),
            ProgramOutcome::kPassed);
  EXPECT_EQ(Run("import os\nassert os.listdir('.') == []"), ProgramOutcome::kPassed);
}

TEST_P(Programs, NothingIsWrittenOutsideOfTheDirectory) {
  const TemporaryDirectory home;
  WriteText(home.path() / "file", "before");
  const std::string file = (home.path() / "file").string(), other = (home.path() / "other").string();
  const std::vector<std::string> programs = {"open('" + file + "', 'w').write('x')",
                                             "open('" + file + "', 'a').write('x')",
                                             "open('" + other + "', 'w').write('x')",
                                             "import os; os.remove('" + file + "')",
                                             "import os; os.rename('" + file + "', '" + other + "')",
                                             "import os; os.mkdir('" + other + "')",
                                             "import os; os.symlink('/', '" + other + "')",
                                             "import os; os.link('" + file + "', '" + other + "')",
                                             "import os; os.truncate('" + file + "', 0)",
                                             "import os; os.chmod('" + file + "', 0)",
                                             "import os; os.utime('" + file + "', (1, 1))",
                                             "import os; os.open('" + file + "', os.O_RDONLY | os.O_TRUNC)",
                                             "import os; os.chmod(os.__file__, 0)",
                                             "import os; open(os.__file__, 'a')",
                                             "open('/usr/x', 'w')",
                                             "import os; os.mkdir('/x')",
                                             "import os; os.chroot('.')",
                                             "open('../x', 'w')"};
  for (const std::string& program : programs) EXPECT_EQ(RunRefused(program), ProgramOutcome::kPassed) << program;
  EXPECT_EQ(ReadFile(file), "before");
  EXPECT_FALSE(fs::exists(other));
}

TEST_P(Programs, FilesOfTheDirectoryHaveLimits) {
  if (runner_->isolation() == Isolation::kLandlock) {
    EXPECT_EQ(RunRefused("open('x', 'w').write('x')"), ProgramOutcome::kPassed);
    return;
  }
  EXPECT_EQ(Run("open('x', 'w').write('x')\nassert open('x').read() == 'x'"), ProgramOutcome::kPassed);
  EXPECT_EQ(Run("import os\nassert os.listdir('.') == []"), ProgramOutcome::kPassed);  // every program has its own
  EXPECT_NE(Run("with open('x', 'wb') as file:\n    for i in range(20): file.write(b'x' * (1 << 20))"),
            ProgramOutcome::kPassed);
  EXPECT_NE(Run("for i in range(20): open(str(i), 'wb').write(b'x' * (1 << 20))"), ProgramOutcome::kPassed);
  EXPECT_EQ(Run("for i in range(100): open(str(i), 'w').close()"), ProgramOutcome::kPassed);
  EXPECT_EQ(Run("for i in range(1000): open(str(i), 'w').close()"), ProgramOutcome::kFailed);
  EXPECT_EQ(Run("held = [open('x', 'w') for i in range(100)]"), ProgramOutcome::kFailed);
}

TEST_P(Programs, SocketsAreNotOpened) {
  // A listening socket, which a program could reach through the network of this machine.
  const Descriptor server(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = ::htonl(INADDR_LOOPBACK);
  socklen_t length = sizeof(address);
  ASSERT_EQ(::bind(server.get(), reinterpret_cast<const sockaddr*>(&address), length), 0);
  ASSERT_EQ(::listen(server.get(), 1), 0);
  ASSERT_EQ(::getsockname(server.get(), reinterpret_cast<sockaddr*>(&address), &length), 0);
  EXPECT_EQ(RunRefused(fmt::format("import socket; socket.create_connection(('127.0.0.1', {}), 1)",
                                   ::ntohs(address.sin_port))),
            ProgramOutcome::kPassed);
  for (const char* const program :
       {"import socket; socket.socket()", "import socket; socket.socket(socket.AF_UNIX)",
        "import socket; socket.socketpair()", "import socket; socket.socket(socket.AF_INET, socket.SOCK_DGRAM)",
        "import urllib.request; urllib.request.urlopen('http://example.com', timeout=1)"})
    EXPECT_EQ(RunRefused(program), ProgramOutcome::kPassed) << program;
}

// Neither descriptors of this program nor its files, its processes or its directories are left to a program.
TEST_P(Programs, NothingIsInheritedOrLeft) {
  const TemporaryDirectory home;
  WriteText(home.path() / "secret", "42");
  const int fd = ::open((home.path() / "secret").c_str(), O_RDONLY);  // not closed by execve()
  ASSERT_GE(fd, 0);
  EXPECT_EQ(Run(fmt::format("import os\nfor fd in range(4, 100):\n    try:\n        os.fstat(fd)\n    except OSError:\n"
                            "        continue\n    assert False, fd\n")),
            ProgramOutcome::kPassed);
  ::close(fd);
  const auto children = [] { return ReadFile(fmt::format("/proc/self/task/{}/children", ::getpid())); };
  RunEndless("while True: pass");
  EXPECT_EQ(children(), "");
  const auto descriptors = [] { return std::distance(fs::directory_iterator("/proc/self/fd"), {}); };
  const auto before = descriptors();
  Run("pass");
  EXPECT_EQ(descriptors(), before);
}

INSTANTIATE_TEST_SUITE_P(Isolated, Programs, ::testing::Values(Isolation::kNamespaces, Isolation::kLandlock),
                         [](const auto& info) { return std::string(Name(info.param)); });

TEST(ProgramRunning, WithoutIsolationOrPythonNothingRuns) {
  const TemporaryDirectory nothing;
  const std::string path = std::getenv("PATH") == nullptr ? "" : std::getenv("PATH");
  ::setenv("PATH", nothing.path().c_str(), 1);
  EXPECT_NE(Refusal([] { ProgramRunner runner; }).find("no directory of PATH has a python3"), std::string::npos);
  WriteText(nothing.path() / "python3", "#!/bin/sh\nexit 3\n");
  fs::permissions(nothing.path() / "python3", fs::perms::owner_all);
  EXPECT_NE(Refusal([] { ProgramRunner runner; }).find("does not run"), std::string::npos);
  WriteText(nothing.path() / "python3", "#!/bin/sh\necho nothing\n");
  fs::permissions(nothing.path() / "python3", fs::perms::owner_all);
  EXPECT_NE(Refusal([] { ProgramRunner runner; }).find("does not say where its libraries are"), std::string::npos)
      << Refusal([] { ProgramRunner runner; });
  ::setenv("PATH", path.c_str(), 1);
  std::string refusal;
  try {
    ProgramRunner runner({}, {});
  } catch (const Error& error) {
    refusal = error.what();
  }
  if (refusal.find("PATH") != std::string::npos) GTEST_SKIP() << refusal;
  EXPECT_NE(refusal.find("this system offers none that works"), std::string::npos) << refusal;
}

}  // namespace
}  // namespace shiftrt
