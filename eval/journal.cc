// SPDX-License-Identifier: Apache-2.0
#include "eval/journal.h"

#include <filesystem>
#include <nlohmann/json.hpp>
#include <string_view>
#include <system_error>

#include "runtime/check.h"
#include "runtime/json.h"

namespace shiftrt {

namespace {

using Json = nlohmann::json;

constexpr std::string_view kOfProcess = ".process";

// True for the end of the name of another process's file: ".process" and a number.
bool IsOfProcess(std::string_view end) {
  return end.starts_with(kOfProcess) && end.size() > kOfProcess.size() &&
         end.find_first_not_of("0123456789", kOfProcess.size()) == std::string_view::npos;
}

// The files that there are for the journal `file`: its own, and those of other processes.
std::vector<std::filesystem::path> FilesOf(const std::filesystem::path& file) {
  std::vector<std::filesystem::path> files;
  const std::string name = file.filename().string();
  const std::filesystem::path directory = file.has_parent_path() ? file.parent_path() : ".";
  std::error_code none;
  for (const auto& entry : std::filesystem::directory_iterator(directory, none)) {
    const std::string other = entry.path().filename().string();
    if (other == name || (other.starts_with(name) && IsOfProcess(std::string_view(other).substr(name.size()))))
      files.push_back(file.parent_path() / other);
  }
  return files;
}

// Throws Error for what is no list of token ids.
std::vector<int32_t> TokensIn(const Json& list) {
  Check(list.is_array(), "not a list of token ids");
  std::vector<int32_t> tokens;
  for (const Json& id : list) {
    const int64_t token = Integer(id);
    Check(token >= 0 && token <= INT32_MAX, "{} is no token id", token);
    tokens.push_back(static_cast<int32_t>(token));
  }
  return tokens;
}

}  // namespace

Journal::Journal(const std::filesystem::path& file, int number) : file_(file) {
  if (file.empty()) return;
  std::error_code error;
  if (!file.parent_path().empty()) std::filesystem::create_directories(file.parent_path(), error);
  Check(!error, "{}: cannot create the directory: {}", file.parent_path().string(), error.message());
  const std::filesystem::path own =
      number == 0 ? file.string() : fmt::format("{}{}{}", file.string(), kOfProcess, number);
  for (const std::filesystem::path& one : FilesOf(file)) Read(one);
  lines_.emplace(own);
}

void Journal::Read(const std::filesystem::path& file) {
  const std::vector<std::string> bad = ReadJsonLines(file, "not one of an evaluation", [&](const Json& line) {
    if (line.contains("reply")) {
      replies_[line.at("key").get<std::string>()] = TokensIn(line.at("reply"));
      return;
    }
    std::vector<Score> scores;
    for (const Json& score : line.at("scores")) scores.push_back({score.at(0).get<double>(), score.at(1).get<bool>()});
    scores_[{line.at("key").get<std::string>(), Integer(line.at("batch"))}] = std::move(scores);
  });
  bad_.insert(bad_.end(), bad.begin(), bad.end());
}

const std::vector<Score>* Journal::Find(const std::string& key, int64_t batch) const {
  const auto at = scores_.find({key, batch});
  return at == scores_.end() ? nullptr : &at->second;
}

void Journal::Add(const std::string& key, int64_t batch, const std::vector<Score>& scores) {
  if (!lines_) return;
  Json line = {{"key", key}, {"batch", batch}, {"scores", Json::array()}};
  for (const Score& score : scores) line["scores"].push_back({score.log_likelihood, score.greedy});
  lines_->Add(line.dump());
}

const std::vector<int32_t>* Journal::FindReply(const std::string& key) const {
  const auto at = replies_.find(key);
  return at == replies_.end() ? nullptr : &at->second;
}

void Journal::AddReply(const std::string& key, const std::vector<int32_t>& tokens) {
  if (lines_) lines_->Add(Json({{"key", key}, {"reply", tokens}}).dump());
}

void Journal::Remove(const std::filesystem::path& file) {
  if (file.empty()) return;
  std::error_code ignored;
  for (const std::filesystem::path& one : FilesOf(file)) std::filesystem::remove(one, ignored);
}

}  // namespace shiftrt
