// SPDX-License-Identifier: Apache-2.0
// The replies of `generate --prompts --out FILE`. Finished replies are kept in FILE.journal, from which an interrupted
// command continues, and FILE is written when all are there.
#pragma once

#include <filesystem>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "runtime/checked_lines.h"

namespace shiftrt {

class ReplyJournal {
 public:
  // Reads the journal next to `file`, if there is one. Throws Error if it cannot be read or written.
  explicit ReplyJournal(const std::filesystem::path& file);

  // Descriptions of damaged lines, whose replies are not known.
  const std::vector<std::string>& bad() const { return bad_; }
  // The line of JSON of the reply with this key; null if it is not known.
  const std::string* Find(const std::string& key) const;
  void Add(const std::string& key, const std::string& line);
  // Writes the lines of these keys to the file, in this order, and removes the journal.
  void Finish(const std::vector<std::string>& keys);

 private:
  std::filesystem::path file_, journal_;
  std::map<std::string, std::string> lines_;  // by key
  std::vector<std::string> bad_;
  std::optional<LineAppender> appender_;  // opened once the journal is read
};

}  // namespace shiftrt
