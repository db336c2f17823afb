// SPDX-License-Identifier: Apache-2.0
// Calibration sources: where they are, and the documents in them.
#pragma once

#include <cstdint>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>
#include <vector>

namespace shiftrt {

// A file by its path; otherwise a name (c4, wikitext2, alpaca, or the name of any text file without its extension)
// looked up in the directories of SHIFTRT_DATA (colon-separated). Throws Error listing the places and files looked for.
std::filesystem::path ResolveText(const std::string& name);

// The documents of a text file, read once: a .jsonl has one a line; a .json is an array of them, or one a line; any
// other file is one document; any may be compressed as .gz or .zst. A document of JSON is an object with a string
// `text`, or a row of Alpaca (`instruction`, `input`, `output`), which is put into Alpaca's prompt template.
class Documents {
 public:
  // Throws Error naming the file: unreadable, empty, or a .json that is neither.
  static Documents Read(const std::filesystem::path& file);

  int64_t size() const { return static_cast<int64_t>(lines_.empty() ? rows_.size() : lines_.size()); }
  // Throws Error naming file and line for a malformed document.
  std::string Text(int64_t index) const;
  const std::string& hash() const { return hash_; }  // of the whole file

 private:
  struct Line {
    size_t begin = 0, size = 0;
    int64_t number = 0;  // from 1
  };

  std::string name_, hash_, content_;
  bool json_lines_ = false;
  std::vector<Line> lines_;  // of content_; the whole of it for plain text
  std::vector<nlohmann::json> rows_;
};

}  // namespace shiftrt
