// SPDX-License-Identifier: Apache-2.0
#include "eval/journal.h"

#include <fcntl.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <nlohmann/json.hpp>

#include "runtime/check.h"
#include "runtime/files.h"

namespace shiftrt {

namespace {

using Json = nlohmann::json;

constexpr const char* kOfProcess = ".process";

void WriteAll(int fd, std::string_view text, const std::filesystem::path& file) {
  while (!text.empty()) {
    const ssize_t written = ::write(fd, text.data(), text.size());
    if (written < 0 && errno == EINTR) continue;
    Check(written >= 0, "{}: {}", file.string(), std::strerror(errno));
    text.remove_prefix(written);
  }
}

}  // namespace

Journal::Journal(const std::filesystem::path& file, int rank) : file_(file) {
  if (file.empty()) return;
  if (!file.parent_path().empty()) std::filesystem::create_directories(file.parent_path());
  const std::filesystem::path own = rank == 0 ? file.string() : file.string() + kOfProcess + std::to_string(rank);
  fd_ = ::open(own.c_str(), O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0644);
  Check(fd_ >= 0, "{}: {}", own.string(), std::strerror(errno));
  for (const std::filesystem::path& one : Files()) {
    const std::string text = ReadFile(one);
    Read(text);
    if (one == own && !text.empty() && text.back() != '\n') WriteAll(fd_, "\n", own);
  }
}

std::vector<std::filesystem::path> Journal::Files() const {
  std::vector<std::filesystem::path> files;
  const std::string name = file_.filename().string();
  const std::filesystem::path directory = file_.has_parent_path() ? file_.parent_path() : ".";
  for (const auto& entry : std::filesystem::directory_iterator(directory)) {
    const std::string other = entry.path().filename().string();
    if (other == name || other.starts_with(name + kOfProcess)) files.push_back(file_.parent_path() / other);
  }
  return files;
}

void Journal::Read(std::string_view text) {
  for (size_t begin = 0, end; (end = text.find('\n', begin)) != std::string_view::npos; begin = end + 1) {
    try {
      const Json line = Json::parse(text.begin() + begin, text.begin() + end);
      std::vector<Score> scores;
      for (const Json& score : line.at("scores"))
        scores.push_back({score.at(0).get<double>(), score.at(1).get<bool>()});
      scores_[{line.at("key").get<std::string>(), line.at("batch").get<int64_t>()}] = std::move(scores);
    } catch (const Json::exception&) {
      // A line that was being written when the program was killed: its batch is scored again.
    }
  }
}

Journal::~Journal() {
  if (fd_ >= 0) ::close(fd_);
}

const std::vector<Score>* Journal::Find(const std::string& key, int64_t batch) const {
  const auto at = scores_.find({key, batch});
  return at == scores_.end() ? nullptr : &at->second;
}

void Journal::Add(const std::string& key, int64_t batch, const std::vector<Score>& scores) {
  if (fd_ < 0) return;
  Json line = {{"key", key}, {"batch", batch}, {"scores", Json::array()}};
  for (const Score& score : scores) line["scores"].push_back({score.log_likelihood, score.greedy});
  WriteAll(fd_, line.dump() + "\n", file_);
}

void Journal::Remove() {
  if (fd_ < 0) return;
  std::error_code ignored;
  for (const std::filesystem::path& file : Files()) std::filesystem::remove(file, ignored);
}

}  // namespace shiftrt
