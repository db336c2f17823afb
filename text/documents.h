// SPDX-License-Identifier: Apache-2.0
// Calibration sources: where they are, and the documents in them.
#pragma once

#include <array>
#include <cstdint>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "runtime/files.h"

namespace shiftrt {

// A text that is known by name: what its files are called where people fetch them, and where the hub has it.
struct KnownText {
  std::string_view name;                  // "c4"
  std::array<std::string_view, 2> files;  // in the directories of SHIFTRT_DATA
  std::string_view repository;            // a data set of the hub
  std::string_view hub_file;              // in it
};
std::span<const KnownText> KnownTexts();
// nullptr for any other name.
const KnownText* FindKnownText(std::string_view name);

// A file by its path; otherwise a known name (c4, wikitext2, wikitext2-test, alpaca) or the name of any text file
// without its extension, looked up in the directories of SHIFTRT_DATA (colon-separated), and then a known name in the
// hub's cache. Throws Error listing the places and files looked for. Nothing is downloaded.
std::filesystem::path ResolveText(const std::string& name);
// The same, but returns "" for a text that is not found.
std::filesystem::path LookForText(const std::string& name);
// The texts of a list with commas between them, "c4.jsonl,alpaca.json". A file whose name has a comma is one text.
std::vector<std::string> TextsIn(const std::string& list);

// The largest document. Of a longer plain text, its first lines up to this size are taken; a longer line of JSON is
// refused. Tokenising takes some six bytes of memory for each.
inline constexpr uint64_t kMaxDocumentBytes = uint64_t{64} << 20;
// The largest file that is one JSON array, whose values are all in memory at once.
inline constexpr uint64_t kMaxArrayBytes = uint64_t{512} << 20;

// The documents of a text file, read once. A file that is not compressed is mapped, not copied: a .jsonl has one a
// line; a .json is an array of them, or one a line; a .parquet has one a row; any other file is one document; any may
// be compressed as .gz or .zst. A document of JSON is an object with a string `text`, or a row of Alpaca
// (`instruction`, `input`, `output`), which is put into Alpaca's prompt template.
class Documents {
 public:
  struct Document {
    std::string text;
    size_t prompt = 0;  // bytes at its beginning that ask for the rest: of a row of Alpaca, all up to its output
  };

  // Throws Error naming the file: unreadable, empty, or a .json that is neither.
  static Documents Read(const std::filesystem::path& file);

  int64_t size() const { return static_cast<int64_t>(lines_.empty() ? rows_.size() : lines_.size()); }
  // Both throw Error naming file and line for a malformed document.
  Document At(int64_t index) const;
  std::string Text(int64_t index) const { return At(index).text; }
  const std::string& hash() const { return hash_; }  // hash of the whole text that was read
  bool cut() const { return cut_; }                  // true if a plain text was longer than a document may be

 private:
  struct Line {
    size_t begin = 0, size = 0;
    int64_t number = 0;  // from 1
  };

  // The text of the file, without copying it unless it was compressed.
  std::string_view content() const;
  void ReadContent(const std::filesystem::path& file, bool plain, uint64_t line_limit);

  std::string name_, hash_;
  MappedFile file_;           // empty if the file was compressed
  std::string decompressed_;  // empty if it was not
  bool json_lines_ = false, cut_ = false;
  std::vector<Line> lines_;  // lines of content(), which for plain text is one line
  std::vector<nlohmann::json> rows_;
};

}  // namespace shiftrt
