// SPDX-License-Identifier: Apache-2.0
#include "tools/standard_output.h"

#include <fcntl.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstring>
#include <initializer_list>

namespace shiftrt {

void OccupyStandardStreams() {
  for (const int fd : {STDIN_FILENO, STDOUT_FILENO, STDERR_FILENO}) {
    if (::fcntl(fd, F_GETFD) >= 0 || errno != EBADF) continue;
    // The lowest number that is free, which is this one. A stream of output is opened for reading: writing to it fails.
    if (::open("/dev/null", fd == STDIN_FILENO ? O_WRONLY : O_RDONLY) != fd) return;
  }
}

int FinishStandardOutput(int status, int failed) {
  // An earlier write may have failed, whose reason is gone; the next one tells it, unless there is room by then.
  const bool lost = std::ferror(stdout) != 0;
  errno = 0;
  int flushed = std::fflush(stdout);
  if (lost && flushed == 0 && ::write(STDOUT_FILENO, "", 0) != 0) flushed = EOF;
  const int error = errno;
  if ((!lost && flushed == 0) || error == EPIPE) return status;
  std::fprintf(stderr, "shiftrt: standard output: %s; what was printed is incomplete\n",
               error != 0 ? std::strerror(error) : "a write failed");
  return status == 0 ? failed : status;
}

void Tell(const std::string& message) { std::fprintf(stderr, "shiftrt: %s\n", message.c_str()); }

}  // namespace shiftrt
