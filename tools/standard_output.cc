// SPDX-License-Identifier: Apache-2.0
#include "tools/standard_output.h"

#include <fcntl.h>
#include <poll.h>
#include <unistd.h>

#include <cerrno>
#include <csignal>
#include <cstdio>
#include <cstring>
#include <initializer_list>

#include "include/shiftrt/error.h"

namespace shiftrt {

void OccupyStandardStreams() {
  for (const int fd : {STDIN_FILENO, STDOUT_FILENO, STDERR_FILENO}) {
    if (::fcntl(fd, F_GETFD) >= 0 || errno != EBADF) continue;
    // The lowest number that is free, which is this one. A stream of output is opened for reading: writing to it fails.
    if (::open("/dev/null", fd == STDIN_FILENO ? O_WRONLY : O_RDONLY) != fd) return;
  }
}

namespace {

volatile std::sig_atomic_t reader_left = 0;

extern "C" void OnClosedPipe(int) {
  const int saved = errno;
  pollfd output = {STDOUT_FILENO, 0, 0};
  if (::poll(&output, 1, 0) != 1 || (output.revents & POLLERR) == 0) {  // it is another pipe or socket
    errno = saved;
    return;
  }
  reader_left = 1;
  if (const int nowhere = ::open("/dev/null", O_WRONLY | O_CLOEXEC); nowhere >= 0) {
    ::dup2(nowhere, STDOUT_FILENO);
    ::close(nowhere);
  }
  errno = saved;
}

// Flushes standard output. Returns why something of it is lost, or "".
std::string Lost() {
  // An earlier write may have failed, whose reason is gone; the next one tells it, unless there is room by then.
  const bool lost = std::ferror(stdout) != 0;
  errno = 0;
  int flushed = std::fflush(stdout);
  if (lost && flushed == 0 && ::write(STDOUT_FILENO, "", 0) != 0) flushed = EOF;
  const int error = errno;
  if ((!lost && flushed == 0) || error == EPIPE || reader_left != 0) return "";
  return error != 0 ? std::strerror(error) : "a write failed";
}

}  // namespace

void GoOnWithoutReader() {
  // A print that finds its buffer full would throw.
  if (::isatty(STDOUT_FILENO) == 0) std::setvbuf(stdout, nullptr, _IOFBF, size_t{1} << 16);
  std::signal(SIGPIPE, OnClosedPipe);
}

void RequireStandardOutput() {
  if (!Lost().empty())
    throw Error("not everything could be printed, so that the same command goes on from what is done");
}

int FinishStandardOutput(int status, int failed) {
  const std::string why = Lost();
  if (why.empty()) return status;
  std::fprintf(stderr, "shiftrt: standard output: %s; what was printed is incomplete\n", why.c_str());
  return status == 0 ? failed : status;
}

void Tell(const std::string& message) { std::fprintf(stderr, "shiftrt: %s\n", message.c_str()); }

}  // namespace shiftrt
