// SPDX-License-Identifier: Apache-2.0
// Calibration sources: where they are, and the documents in them.
#pragma once

#include <array>
#include <cstdint>
#include <filesystem>
#include <map>
#include <nlohmann/json.hpp>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "runtime/files.h"

namespace shiftrt {

// A text that is known by name: what its files are called where people fetch them, and where the hub has it.
struct KnownText {
  std::string_view name;                  // "c4"
  std::array<std::string_view, 2> files;  // in the directories of SHIFTRT_DATA
  std::string_view repository;            // a data set of the hub
  std::string_view hub_file;              // in it
  bool rows_are_lines = false;            // the rows of hub_file are the lines of one text
};
std::span<const KnownText> KnownTexts();
// nullptr for any other name.
const KnownText* FindKnownText(std::string_view name);

// A file by its path, or the standard input for "-"; otherwise a known name (c4, wikitext2, wikitext2-test, alpaca,
// code-alpaca) or the name of any text file without its extension, looked up in the directories of SHIFTRT_DATA
// (colon-separated), and then a known name in the hub's cache. Throws Error listing the places and files looked for.
// Nothing is downloaded.
std::filesystem::path ResolveText(const std::string& name);
// The same, but returns "" for a text that is not found.
std::filesystem::path LookForText(const std::string& name);
// The texts of a list with commas between them, "c4.jsonl,alpaca.json". A file whose name has a comma is one text.
std::vector<std::string> TextsIn(const std::string& list);

// The largest document. Of a longer plain text, its first lines up to this size are taken; a longer line of JSON is
// refused. Tokenising takes some six bytes of memory for each, and some 80 with a tokenizer that does not split a text
// into words.
inline constexpr uint64_t kMaxDocumentBytes = uint64_t{64} << 20;
// The largest file that is one JSON array, whose values are all in memory at once.
inline constexpr uint64_t kMaxArrayBytes = uint64_t{512} << 20;

// The most documents that a file of one a line may have. Their places take 24 bytes of memory each.
inline constexpr int64_t kMaxLineDocuments = int64_t{1} << 25;

/// \param file A file that holds texts.
/// \return Whether the name is of a file with rows, .jsonl, .json, .parquet, .csv or .tsv, and not of one plain text.
bool HasRows(const std::filesystem::path& file);

// The documents of a text file: a .jsonl has one a line; a .json is an array of them, or one a line; a .parquet, .csv
// or .tsv has one a row; any other file is one document; any may be compressed as .gz or .zst. A document of JSON is an
// object with a string `text`, or a row of Alpaca (`instruction`, `input`, `output`), which is put into Alpaca's prompt
// template, or a row of GSM8K (`question`, `answer`). A pipe has no extension: it holds JSON if it begins so, and else
// one document.
//
// A file that is not compressed is mapped, not copied. Of a compressed file with a document a line, only the places of
// the lines are kept: it is decompressed to find them, and again when documents are read.
class Documents {
 public:
  struct Document {
    std::string text;
    size_t prompt = 0;  // bytes at its beginning that ask for the rest: of a row of Alpaca, all up to its output
    // The same of a row without its template: of Alpaca the instruction, and the input after a blank line.
    std::string message = {};
  };

  // Throws Error naming the file: unreadable, empty, a .json that is neither, or in a format of its own, such as bzip2;
  // with the line for one that is longer than a document may be, or begins no object.
  static Documents Read(const std::filesystem::path& file);

  int64_t size() const { return static_cast<int64_t>(lines_.empty() ? rows_.size() : lines_.size()); }
  // Both throw Error naming file and line for a malformed document.
  Document At(int64_t index) const;
  std::string Text(int64_t index) const { return At(index).text; }
  // All of them in their order, with a blank line between two.
  std::string Joined() const;
  // Reads documents in an order that is known before. This is the way to read many: a compressed file is decompressed
  // once for each 16 to 256 MiB of them.
  class InOrder {
   public:
    // The documents must outlive it.
    InOrder(const Documents& documents, std::vector<int64_t> order)
        : documents_(&documents), order_(std::move(order)) {}
    // The next document of the order, after whose end it must not be called.
    Document Next();

   private:
    const Documents* documents_;
    std::vector<int64_t> order_;
    size_t next_ = 0, limit_ = size_t{16} << 20;  // limit_: bytes of lines that are read at once
    std::map<int64_t, std::string> texts_;        // lines that are read already, by index
  };
  const std::string& hash() const { return hash_; }  // hash of the whole text that was read
  bool cut() const { return cut_; }                  // true if a plain text was longer than a document may be
  /// \return Whether the file is one plain text.
  bool plain() const { return plain_; }

 private:
  struct Line {
    size_t begin = 0, size = 0;
    int64_t number = 0;  // from 1
  };

  class LineFinder;

  // The bytes of the file.
  std::string_view mapped() const;
  // The text of the file, unless it is read in pieces.
  std::string_view content() const { return decompressed_.empty() ? mapped() : decompressed_; }
  // Decompresses the file: finds its lines if they are documents, and keeps its text otherwise.
  void Unpack(bool plain, bool lines, bool maybe_lines);
  // The content of a plain text, without what is beyond the largest document.
  std::string_view Cut();
  void TakeParquet(std::string_view content);
  void TakeArray(std::string_view content);
  // The lines `which` of a file that is read in pieces, each once, by index.
  std::map<int64_t, std::string> LinesOf(std::vector<int64_t> which) const;
  Document Parse(int64_t index, std::string_view line) const;

  std::string name_, hash_;
  MappedFile file_;           // empty if decompressed_ or rows_ have its documents
  std::string decompressed_;  // empty if the file was not compressed
  bool json_lines_ = false, cut_ = false, plain_ = false;
  bool in_pieces_ = false;   // file_ is compressed, and lines_ are those of its text
  std::vector<Line> lines_;  // lines of the text, which for plain text is one line
  std::vector<nlohmann::json> rows_;
};

// A file as one text, whose perplexity can be measured: the documents of a file with rows with a blank line between
// two; WikiText (.raw, .tokens) with a blank line between two of its lines, as GPTQ joins the rows of the data set (one
// line per row, with its end; lines of white space only are empty); any other file as it is. Throws Error naming the
// file, as Documents::Read does.
std::string RunningText(const std::filesystem::path& file);

}  // namespace shiftrt
