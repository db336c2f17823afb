// SPDX-License-Identifier: Apache-2.0
#include "tools/reply_journal.h"

#include <utility>

#include "runtime/files.h"

namespace shiftrt {

namespace {

std::filesystem::path JournalOf(std::filesystem::path file) { return file += ".journal"; }

CheckedLines LinesOf(const std::filesystem::path& journal) {
  return std::filesystem::exists(journal) ? ReadCheckedLines(journal) : CheckedLines();
}

}  // namespace

// A line is "KEY JSON".
ReplyJournal::ReplyJournal(const std::filesystem::path& file) : file_(file), journal_(JournalOf(file)) {
  CheckedLines read = LinesOf(journal_);
  bad_ = std::move(read.bad);
  for (const std::string& text : read.texts) {
    const size_t space = text.find(' ');
    if (space != std::string::npos) lines_[text.substr(0, space)] = text.substr(space + 1);
  }
  appender_.emplace(journal_);
}

const std::string* ReplyJournal::Find(const std::string& key) const {
  const auto found = lines_.find(key);
  return found == lines_.end() ? nullptr : &found->second;
}

void ReplyJournal::Add(const std::string& key, const std::string& line) {
  appender_->Add(key + " " + line);
  lines_[key] = line;
}

void ReplyJournal::Finish(const std::vector<std::string>& keys) {
  std::string text;
  for (const std::string& key : keys) text += lines_.at(key) + "\n";
  WriteFile(file_, text);
  std::error_code ignored;
  std::filesystem::remove(journal_, ignored);
}

}  // namespace shiftrt
