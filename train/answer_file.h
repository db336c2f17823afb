// SPDX-License-Identifier: Apache-2.0
// The file in which answers of the original model are kept, so that no answer is generated twice.
#pragma once

#include <cstdint>
#include <filesystem>
#include <map>
#include <optional>
#include <string>
#include <tuple>
#include <vector>

#include "runtime/checked_lines.h"

namespace shiftrt {

struct OwnAnswer {
  std::vector<int32_t> tokens = {};  // the prompt, the answer, and the token that ended it, if one did
  int64_t prompt = 0;                // tokens of the prompt
  double seconds = 0;                // seconds of generating until it was there, over all answers of the file

  // True for a prompt that has no answer, because it is too long or the model says nothing.
  bool empty() const { return std::ssize(tokens) <= prompt; }
  friend auto FieldsOf(OwnAnswer& a) { return std::tie(a.tokens, a.prompt, a.seconds); }
};

// Answers are appended to FILE.partial as they come, a line of JSON with a checksum each. Finish() writes all of them
// to FILE in one step. Both files are read at first, so that an interrupted work continues, and one that needs more
// answers than the file has adds to it.
class AnswerFile {
 public:
  // "" keeps nothing. Throws Error if there is such a file that cannot be read.
  explicit AnswerFile(const std::filesystem::path& file);

  // Descriptions of damaged lines, whose answers are not known.
  const std::vector<std::string>& bad() const { return bad_; }
  // The answer to the prompt of this number, or null.
  const OwnAnswer* Find(int64_t number) const;
  int64_t size() const { return std::ssize(answers_); }
  // Seconds of generating so far.
  double clock() const { return clock_; }

  // Both throw Error if the line cannot be written.
  void Add(int64_t number, OwnAnswer answer);
  // Generating has ended at this time, which may be later than that of the last answer.
  void SetClock(double seconds);
  void Finish();

 private:
  void Read(const std::filesystem::path& file);
  void Append(const std::string& line);

  std::filesystem::path file_, partial_;
  std::map<int64_t, OwnAnswer> answers_;  // by number
  double clock_ = 0;
  std::vector<std::string> bad_;
  std::optional<LineAppender> appender_;  // opened when there is something to append
};

}  // namespace shiftrt
