// SPDX-License-Identifier: Apache-2.0
#include "train/answer_file.h"

#include <algorithm>
#include <nlohmann/json.hpp>
#include <system_error>
#include <utility>

#include "runtime/check.h"
#include "runtime/files.h"
#include "runtime/json.h"

namespace shiftrt {

namespace {

using Json = nlohmann::json;

std::string LineOf(int64_t number, const OwnAnswer& answer) {
  return Json({{"number", number}, {"prompt", answer.prompt}, {"tokens", answer.tokens}, {"seconds", answer.seconds}})
      .dump();
}

std::string LineOfClock(double seconds) { return Json({{"seconds", seconds}}).dump(); }

}  // namespace

AnswerFile::AnswerFile(const std::filesystem::path& file) : file_(file), partial_(file) {
  if (file.empty()) return;
  partial_ += ".partial";
  for (const std::filesystem::path& one : {file_, partial_})
    if (std::filesystem::exists(one)) Read(one);
}

void AnswerFile::Read(const std::filesystem::path& file) {
  const std::vector<std::string> bad = ReadJsonLines(file, "no answer", [&](const Json& line) {
    OwnAnswer answer;
    answer.seconds = line.at("seconds").get<double>();
    clock_ = std::max(clock_, answer.seconds);
    if (!line.contains("number")) return;
    answer.prompt = Integer(line.at("prompt"));
    for (const Json& token : line.at("tokens")) answer.tokens.push_back(static_cast<int32_t>(Integer(token)));
    answers_[Integer(line.at("number"))] = std::move(answer);
  });
  bad_.insert(bad_.end(), bad.begin(), bad.end());
}

const OwnAnswer* AnswerFile::Find(int64_t number) const {
  const auto found = answers_.find(number);
  return found == answers_.end() ? nullptr : &found->second;
}

void AnswerFile::Append(const std::string& line) {
  if (file_.empty()) return;
  if (!appender_) {
    std::error_code error;
    if (file_.has_parent_path()) std::filesystem::create_directories(file_.parent_path(), error);
    Check(!error, "{}: cannot create the directory: {}", file_.parent_path().string(), error.message());
    appender_.emplace(partial_);
  }
  appender_->Add(line);
}

void AnswerFile::Add(int64_t number, OwnAnswer answer) {
  Append(LineOf(number, answer));
  clock_ = std::max(clock_, answer.seconds);
  answers_[number] = std::move(answer);
}

void AnswerFile::SetClock(double seconds) {
  if (seconds <= clock_) return;
  Append(LineOfClock(seconds));
  clock_ = seconds;
}

void AnswerFile::Finish() {
  if (file_.empty() || !std::filesystem::exists(partial_)) return;
  std::string text = CheckedLine(LineOfClock(clock_));
  for (const auto& [number, answer] : answers_) text += CheckedLine(LineOf(number, answer));
  WriteFile(file_, text);
  appender_.reset();
  std::error_code ignored;
  std::filesystem::remove(partial_, ignored);
}

}  // namespace shiftrt
