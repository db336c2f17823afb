// SPDX-License-Identifier: Apache-2.0
#include "tools/line_reader.h"

#include <poll.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <cstring>

#include "runtime/check.h"
#include "runtime/files.h"

namespace shiftrt {

std::optional<std::string> LineReader::Next() {
  while (true) {
    if (const size_t end = buffer_.find('\n'); end != std::string::npos) {
      std::string line = buffer_.substr(0, end);
      buffer_.erase(0, end + 1);
      if (line.ends_with('\r')) line.pop_back();
      return line;
    }
    if (ended_ && buffer_.empty()) return std::nullopt;
    if (ended_) return std::exchange(buffer_, "");
    CheckInterrupted();
    pollfd input{STDIN_FILENO, POLLIN, 0};
    if (::poll(&input, 1, -1) < 0) {  // a read would go on after a signal
      Check(errno == EINTR, "standard input: {}", std::strerror(errno));
      continue;
    }
    std::array<char, 4096> chunk;
    const ssize_t count = ::read(STDIN_FILENO, chunk.data(), chunk.size());
    Check(count >= 0 || errno == EINTR, "standard input: {}", std::strerror(errno));
    if (count > 0) buffer_.append(chunk.data(), static_cast<size_t>(count));
    ended_ = count == 0;
  }
}

}  // namespace shiftrt
