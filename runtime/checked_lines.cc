// SPDX-License-Identifier: Apache-2.0
#include "runtime/checked_lines.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <nlohmann/json.hpp>
#include <utility>

#include "runtime/files.h"
#include "runtime/json.h"

namespace shiftrt {

namespace {

constexpr size_t kDigits = 16;  // the length of HashHex

// The text of a line without its end; false if the checksum before it is not that of the text.
bool Verify(std::string_view line, std::string_view& text) {
  if (line.size() <= kDigits || line[kDigits] != ' ') return false;
  text = line.substr(kDigits + 1);
  return HashHex(text) == line.substr(0, kDigits);
}

}  // namespace

CheckedLines ReadCheckedLines(const std::filesystem::path& file) {
  const std::string content = ReadFile(file);
  CheckedLines lines;
  int64_t number = 0;
  for (size_t begin = 0, end; (end = content.find('\n', begin)) != content.npos; begin = end + 1) {
    ++number;
    const std::string_view line = std::string_view(content).substr(begin, end - begin);
    std::string_view text;
    if (Verify(line, text)) {
      lines.texts.emplace_back(text);
    } else if (!line.empty()) {
      lines.bad.push_back(fmt::format("{}:{}: the checksum of the line is wrong", file.string(), number));
    }
  }
  return lines;
}

LineAppender::LineAppender(const std::filesystem::path& file)
    : file_(file), fd_(::open(file.c_str(), O_RDWR | O_CREAT | O_APPEND | O_CLOEXEC | O_NONBLOCK, 0644)) {
  Check(fd_.is_open(), "{}: cannot open it for writing: {}", file.string(), std::strerror(errno));
  struct stat info {};
  Check(::fstat(fd_.get(), &info) == 0 && S_ISREG(info.st_mode), "{}: not a regular file", file.string());
  char last = '\n';
  if (info.st_size > 0 && ::pread(fd_.get(), &last, 1, info.st_size - 1) != 1) last = '\0';
  if (last != '\n') Write("\n");
}

std::vector<std::string> ReadJsonLines(const std::filesystem::path& file, std::string_view wrong,
                                       const std::function<void(const nlohmann::json& value)>& take) {
  CheckedLines lines = ReadCheckedLines(file);
  const auto refuse = [&] { lines.bad.push_back(fmt::format("{}: a line is {}", file.string(), wrong)); };
  for (const std::string& text : lines.texts) {
    try {
      take(ParseJson(text, file.string()));
    } catch (const nlohmann::json::exception&) {
      refuse();
    } catch (const Error&) {
      refuse();
    }
  }
  return std::move(lines.bad);
}

std::string CheckedLine(std::string_view text) { return fmt::format("{} {}\n", HashHex(text), text); }

void LineAppender::Add(std::string_view text) { Write(CheckedLine(text)); }

void LineAppender::Write(std::string_view bytes) {
  while (!bytes.empty()) {
    const ssize_t written = ::write(fd_.get(), bytes.data(), bytes.size());
    if (written < 0 && errno == EINTR) continue;
    Check(written >= 0, "{}: cannot write it: {}", file_.string(), std::strerror(errno));
    bytes.remove_prefix(static_cast<size_t>(written));
  }
}

}  // namespace shiftrt
