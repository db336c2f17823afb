// SPDX-License-Identifier: Apache-2.0
// The scores that an interrupted evaluation has already computed.
#pragma once

#include <cstdint>
#include <filesystem>
#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "eval/scorer.h"
#include "runtime/checked_lines.h"

namespace shiftrt {

// Scores of whole batches, and replies, one JSON line with a checksum per batch or reply, appended as they come. A line
// that breaks off, or is damaged, counts for nothing: its batch is scored, or its reply generated, again. Numbers are
// written so that they read back as the same bits.
class Journal {
 public:
  // Opens `file` and reads what is in it; "" keeps nothing. `number` tells the programs apart that share the work. Each
  // but number 0 appends to a file of its own next to it, "FILE.process3", and all read all of these files.
  explicit Journal(const std::filesystem::path& file, int number = 0);
  Journal(const Journal&) = delete;
  Journal& operator=(const Journal&) = delete;

  // Scores of batch `batch` of the work called `key`, or null; `key` stands for all that decides them.
  const std::vector<Score>* Find(const std::string& key, int64_t batch) const;
  // Throws Error when the line cannot be written.
  void Add(const std::string& key, int64_t batch, const std::vector<Score>& scores);
  const std::filesystem::path& file() const { return file_; }
  int64_t batches() const { return std::ssize(scores_); }

  // The tokens of the reply called `key`, or null; `key` stands for all that decides them.
  const std::vector<int32_t>* FindReply(const std::string& key) const;
  // Throws Error when the line cannot be written.
  void AddReply(const std::string& key, const std::vector<int32_t>& tokens);
  int64_t replies() const { return std::ssize(replies_); }

  // Names the file and the line of each damaged line that was read.
  const std::vector<std::string>& bad() const { return bad_; }
  // Removes the files of all programs that shared the work.
  static void Remove(const std::filesystem::path& file);

 private:
  void Read(const std::filesystem::path& file);

  std::filesystem::path file_;
  std::optional<LineAppender> lines_;
  std::vector<std::string> bad_;
  std::map<std::pair<std::string, int64_t>, std::vector<Score>> scores_;
  std::map<std::string, std::vector<int32_t>> replies_;
};

}  // namespace shiftrt
