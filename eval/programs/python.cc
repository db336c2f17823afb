// SPDX-License-Identifier: Apache-2.0
#include "eval/programs/python.h"

#include <fcntl.h>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <set>
#include <string_view>

#include "runtime/check.h"
#include "runtime/descriptor.h"

extern char** environ;  // NOLINT(readability-redundant-declaration): POSIX leaves the declaration to the program

namespace shiftrt {

namespace {

namespace fs = std::filesystem;

// Prints one path per line: the interpreter, and the directories under which it and its environment lie.
constexpr const char* kQuestion =
    "import os, sys\n"
    "print(sys.executable, os.path.realpath(sys.executable), sys.prefix, sys.exec_prefix, sys.base_prefix,"
    " sys.base_exec_prefix, sep='\\n')\n";

fs::path PythonOfPath() {
  const char* const path = std::getenv("PATH");
  std::string_view rest = path == nullptr ? "" : path;
  while (!rest.empty()) {
    const size_t end = std::min(rest.find(':'), rest.size());
    fs::path file = fs::path(rest.substr(0, end)) / "python3";
    rest.remove_prefix(std::min(end + 1, rest.size()));
    std::error_code none;
    if (fs::is_regular_file(file, none) && ::access(file.c_str(), X_OK) == 0) return file;
  }
  Fail(
      "a task runs programs in Python, and no directory of PATH has a python3: install Python 3, or leave the task "
      "out");
}

std::string OutputOf(const fs::path& program) {
  std::array<int, 2> ends{};
  Check(::pipe2(ends.data(), O_CLOEXEC) == 0, "cannot make a pipe: {}", std::strerror(errno));
  const Descriptor out(ends[0]);
  Descriptor in(ends[1]);
  posix_spawn_file_actions_t actions;
  ::posix_spawn_file_actions_init(&actions);
  ::posix_spawn_file_actions_adddup2(&actions, in.get(), STDOUT_FILENO);
  ::posix_spawn_file_actions_addopen(&actions, STDIN_FILENO, "/dev/null", O_RDONLY, 0);
  const std::string name = program.string();
  std::array<const char*, 5> arguments = {name.c_str(), "-I", "-c", kQuestion, nullptr};
  pid_t child = -1;
  const int error =
      ::posix_spawn(&child, name.c_str(), &actions, nullptr, const_cast<char* const*>(arguments.data()), environ);
  ::posix_spawn_file_actions_destroy(&actions);
  Check(error == 0, "{}: cannot be started: {}", name, std::strerror(error));
  in = Descriptor();
  std::string text;
  std::array<char, 4096> buffer{};
  for (ssize_t count; (count = ::read(out.get(), buffer.data(), buffer.size())) != 0;) {
    if (count < 0 && errno == EINTR) continue;
    if (count < 0) break;
    text.append(buffer.data(), static_cast<size_t>(count));
  }
  int status = -1;
  while (::waitpid(child, &status, 0) < 0 && errno == EINTR) {
  }
  Check(status == 0, "{} does not run: its exit status is {}", name, status);
  return text;
}

}  // namespace

Python FindPython() {
  const fs::path program = PythonOfPath();
  std::string text = OutputOf(program);
  std::vector<std::string> paths;
  for (size_t end; (end = text.find('\n')) != std::string::npos; text.erase(0, end + 1))
    paths.push_back(text.substr(0, end));
  Check(paths.size() == 6 && fs::path(paths[0]).is_absolute(), "{} does not say where its libraries are",
        program.string());
  Python python{paths[0], {}};
  std::set<std::string> libraries = {paths[0], paths[1]};
  for (size_t i = 2; i < paths.size(); ++i)
    for (const char* const below : {"bin", "lib", "lib64", "pyvenv.cfg"}) libraries.insert(fs::path(paths[i]) / below);
  python.libraries.assign(libraries.begin(), libraries.end());
  return python;
}

}  // namespace shiftrt
