// SPDX-License-Identifier: Apache-2.0
#include "text/documents.h"

#include <algorithm>
#include <cstdlib>
#include <iterator>
#include <numeric>

#include "hub/cache.h"
#include "hub/settings.h"
#include "runtime/check.h"
#include "runtime/files.h"
#include "runtime/json.h"
#include "runtime/parquet.h"
#include "runtime/parse.h"
#include "runtime/printable.h"
#include "runtime/text.h"
#include "text/document_rows.h"

namespace shiftrt {

namespace {

namespace fs = std::filesystem;
using Json = nlohmann::json;

constexpr const char* kBlank = " \t\r\n";
constexpr std::string_view kByteOrderMark = "\xEF\xBB\xBF";

std::string_view WithoutMark(std::string_view text) {
  if (text.starts_with(kByteOrderMark)) text.remove_prefix(kByteOrderMark.size());
  return text;
}

constexpr KnownText kTexts[] = {
    {"c4",
     {"c4-train.00000-of-01024.json.gz", "c4-validation.00000-of-00008.json.gz"},
     "allenai/c4",
     "en/c4-validation.00000-of-00008.json.gz"},
    {"wikitext2",
     {"wiki.train.raw", "wiki.valid.raw"},
     "Salesforce/wikitext",
     "wikitext-2-raw-v1/train-00000-of-00001.parquet",
     true},
    {"wikitext2-test",
     {"wiki.test.raw", "wikitext2-test.raw"},
     "Salesforce/wikitext",
     "wikitext-2-raw-v1/test-00000-of-00001.parquet",
     true},
    {"alpaca", {"alpaca_data_cleaned.json", "alpaca_data.json"}, "yahma/alpaca-cleaned", "alpaca_data_cleaned.json"},
    {"code-alpaca", {"code_alpaca_20k.json", "code-alpaca.json"}, "sahil2801/CodeAlpaca-20k", "code_alpaca_20k.json"},
};

std::vector<std::string> FileNames(const std::string& name) {
  std::vector<std::string> names;
  for (const char* extension : {".txt", ".jsonl", ".json", ".csv", ".tsv"})
    for (const char* compression : {"", ".gz", ".zst"}) names.push_back(name + extension + compression);
  names.push_back(name + ".parquet");
  if (const KnownText* known = FindKnownText(name)) names.insert(names.end(), known->files.begin(), known->files.end());
  return names;
}

// SHIFTRT_DATA, or "".
std::string DataDirectories() {
  const char* places = std::getenv("SHIFTRT_DATA");
  return places == nullptr ? "" : places;
}

// True for a file of the hub whose rows are the lines of one text.
bool RowsAreLines(const fs::path& file) {
  return std::ranges::any_of(kTexts, [&](const KnownText& known) {
    return known.rows_are_lines && file.generic_string().ends_with("/" + std::string(known.hub_file));
  });
}

// True for a text from a pipe that has JSON and is no plain text: an object with a key, or an array of objects.
bool BeginsAsJson(std::string_view text) {
  const auto next_is = [&](char c) {
    text.remove_prefix(std::min(text.find_first_not_of(kBlank), text.size()));
    if (!text.starts_with(c)) return false;
    text.remove_prefix(1);
    return true;
  };
  text = WithoutMark(text);
  if (next_is('[')) return next_is('{');
  return next_is('{') && next_is('"');
}

// The document after those before it in a running text.
void Append(const std::string& document, bool first, std::string& text) {
  if (!first) text += "\n\n";
  text += document;
}

}  // namespace

std::span<const KnownText> KnownTexts() { return kTexts; }

const KnownText* FindKnownText(std::string_view name) {
  const auto at =
      std::find_if(std::begin(kTexts), std::end(kTexts), [&](const KnownText& t) { return t.name == name; });
  return at == std::end(kTexts) ? nullptr : at;
}

bool HasRows(const fs::path& file) {
  const fs::path extension = WithoutCompression(file).extension();
  return IsParquet(file) || extension == ".json" || extension == ".jsonl" || SeparatorOf(file) != 0;
}

fs::path LookForText(const std::string& name) {
  if (name == "-") return "/dev/stdin";
  if (Exists(name)) return name;
  const std::string listed = DataDirectories();
  const std::vector<std::string> names = FileNames(name);
  for (size_t begin = 0; begin < listed.size();) {
    const size_t end = std::min(listed.find(':', begin), listed.size());
    for (const std::string& file : names) {
      fs::path path = fs::path(listed.substr(begin, end - begin)) / file;
      if (std::error_code none; fs::is_regular_file(path, none)) return path;
    }
    begin = end + 1;
  }
  const KnownText* known = FindKnownText(name);
  if (known == nullptr) return "";
  for (const fs::path& snapshot :
       Snapshots(*ParseRepository(known->repository, RepositoryType::kDataset), HuggingFaceCache()))
    if (Exists(snapshot / known->hub_file)) return snapshot / known->hub_file;
  return "";
}

std::vector<std::string> TextsIn(const std::string& list) {
  if (list.find(',') == list.npos || !LookForText(list).empty()) return {list};
  const std::vector<std::string_view> texts = SplitCommas(list);
  return std::vector<std::string>(texts.begin(), texts.end());
}

fs::path ResolveText(const std::string& name) {
  if (fs::path found = LookForText(name); !found.empty()) return found;
  const std::string shown = Printable(name);  // a whole text may have been given in the place of a name
  // A name with a '.' or a '/' was meant as a file: say only that.
  if (name.find_first_of("./") != name.npos) Fail("{}: no such file", shown);
  const std::string listed = DataDirectories();
  Fail("no text called {}: neither a file, nor any of {} in the directories of SHIFTRT_DATA ({}){}", shown,
       fmt::join(FileNames(shown), ", "), listed.empty() ? "not set" : listed,
       FindKnownText(name) != nullptr ? fmt::format("; `shiftrt pull --dataset {}` gets it", name) : "");
}

// Finds the lines of a text that comes in pieces.
class Documents::LineFinder {
 public:
  explicit LineFinder(const std::string& name) : name_(name) {}

  void Add(std::string_view text) {
    while (!text.empty()) {
      const size_t size = std::min(text.find('\n'), text.size());
      if (blank_) Begin(text.substr(0, size));
      line_.size += size;
      Check(line_.size <= kMaxDocumentBytes, "{}:{}: a line of more than {} MiB", name_, line_.number,
            kMaxDocumentBytes >> 20);
      if (size == text.size()) return;
      End();
      text.remove_prefix(size + 1);
    }
  }
  std::vector<Line> Take() {
    End();
    return std::move(lines_);
  }

 private:
  // Refuses what begins no document, so that a damaged file is found whichever documents are read.
  void Begin(std::string_view part) {
    if (line_.number == 1 && line_.size == 0) part = WithoutMark(part);
    const size_t first = part.find_first_not_of(kBlank);
    if (first == part.npos) return;
    Check(part[first] == '{', "{}:{}: expected an object with a string \"text\", or a row of Alpaca", name_,
          line_.number);
    blank_ = false;
  }
  void End() {
    if (!blank_) lines_.push_back(line_);
    Check(std::ssize(lines_) <= kMaxLineDocuments, "{}: more than {} documents", name_, kMaxLineDocuments);
    line_ = {line_.begin + line_.size + 1, 0, line_.number + 1};
    blank_ = true;
  }

  const std::string& name_;
  Line line_ = {0, 0, 1};
  bool blank_ = true;
  std::vector<Line> lines_;
};

std::string_view Documents::mapped() const {
  return {reinterpret_cast<const char*>(file_.bytes().data()), file_.bytes().size()};
}

void Documents::Unpack(bool plain, bool lines, bool maybe_lines) {
  std::string text;
  LineFinder finder(name_);
  PiecesHash hash;
  uint64_t size = 0;
  Decompress(mapped(), name_, [&](std::string_view piece) {
    size += piece.size();
    Check(size <= kMaxTextBytes, "{}: more than {} bytes once decompressed", name_, kMaxTextBytes);
    if (maybe_lines) {
      const std::string_view begin = size == piece.size() ? WithoutMark(piece) : piece;
      const size_t first = begin.find_first_not_of(kBlank);
      lines = first != begin.npos && begin[first] == '{';
      maybe_lines = first == begin.npos;
    }
    if (!lines) {
      text += piece;
      if (plain) return text.size() <= kMaxDocumentBytes;
      Check(text.size() <= kMaxArrayBytes,
            "{}: more than {} MiB once decompressed, which are read at once; decompress the file, or write a document "
            "a line (.jsonl)",
            name_, kMaxArrayBytes >> 20);
      return true;
    }
    for (const std::string_view part : {std::string_view(text), piece}) {
      hash.Add(part);
      finder.Add(part);
    }
    text.clear();
    return true;
  });
  in_pieces_ = lines;
  if (lines) {
    lines_ = finder.Take();
    hash_ = hash.Hex();
    Check(!lines_.empty(), "{}: the text is empty", name_);
  } else {
    file_ = MappedFile();
    decompressed_ = std::move(text);
  }
}

std::map<int64_t, std::string> Documents::LinesOf(std::vector<int64_t> which) const {
  std::sort(which.begin(), which.end());
  std::map<int64_t, std::string> texts;
  size_t next = 0, at = 0;  // the line of `which` that is being read, and where the piece begins
  Decompress(mapped(), name_, [&](std::string_view piece) {
    for (; next < which.size() && lines_[which[next]].begin < at + piece.size(); ++next) {
      const Line& line = lines_[which[next]];
      std::string& text = texts[which[next]];
      text += piece.substr(std::max(line.begin, at) - at, line.size - text.size());
      if (text.size() < line.size) break;
    }
    at += piece.size();
    return next < which.size();
  });
  Check(next == which.size(), "{}: the file changed while it was read", name_);
  return texts;
}

Documents Documents::Read(const fs::path& file) {
  RefuseDirectory(file);
  Documents documents;
  documents.name_ = file.string();
  documents.file_ = MappedFile::OfText(file);
  const bool stream = IsStream(file), compressed = IsCompressed(documents.mapped());
  const fs::path extension = stream ? fs::path(".json") : WithoutCompression(file).extension();
  const bool parquet = stream ? documents.mapped().starts_with("PAR1") : IsParquet(file);
  if (!parquet && !compressed) RefuseOtherFormats(documents.mapped(), documents.name_);
  const bool rows = stream || HasRows(file);
  if (compressed) documents.Unpack(!rows, extension == ".jsonl", extension == ".json");
  documents.json_lines_ = documents.in_pieces_ || extension == ".jsonl";
  if (documents.in_pieces_) return documents;
  documents.plain_ = !parquet && (stream ? !BeginsAsJson(documents.content()) : !rows);
  const std::string_view content = documents.plain_ ? documents.Cut() : documents.content();
  documents.hash_ = HashHex(content);
  const std::string_view text = WithoutMark(content);
  const size_t first = text.find_first_not_of(kBlank);
  Check(first != text.npos, "{}: the text is empty{}", documents.name_,
        stream ? "; from a pipe, a text can be read only once" : "");
  if (documents.plain_) {
    documents.lines_ = {{0, content.size(), 1}};
    return documents;
  }
  documents.json_lines_ = documents.json_lines_ || (extension == ".json" && !parquet && text[first] == '{');
  if (documents.json_lines_) {
    LineFinder lines(documents.name_);
    lines.Add(content);
    documents.lines_ = lines.Take();
    return documents;
  }
  if (parquet)
    documents.TakeParquet(content);
  else if (const char separator = SeparatorOf(file); separator != 0)
    documents.rows_ = RowsOfTable(content, separator, documents.name_);
  else
    documents.TakeArray(content);
  std::string lines = RowsAreLines(file) ? documents.Joined() : "";
  documents.file_ = MappedFile();
  if (!lines.empty()) {
    documents.rows_.clear();
    documents.lines_ = {{0, lines.size(), 1}};
  }
  documents.decompressed_ = std::move(lines);
  return documents;
}

std::string_view Documents::Cut() {
  std::string_view content = this->content();
  cut_ = content.size() > kMaxDocumentBytes;
  if (!cut_) return content;
  // Its last line is left out if it is not whole.
  content = content.substr(0, kMaxDocumentBytes);
  if (const size_t end = content.rfind('\n'); end != content.npos) content = content.substr(0, end + 1);
  while (!content.empty() && (content.back() & 0xC0) == 0x80) content.remove_suffix(1);  // a part of a character
  if (!content.empty() && (content.back() & 0x80) != 0) content.remove_suffix(1);
  return content;
}

void Documents::TakeParquet(std::string_view content) {
  ParquetFile rows(content, name_);
  const std::vector<std::string>& all = rows.columns();
  RequireColumns(all, name_);
  std::vector<std::string> columns = {"text", "instruction", "input", "output"};
  // Columns that no document is made of may be of a type that is not read.
  if (std::find(all.begin(), all.end(), "text") == all.end()) columns.insert(columns.end(), {"question", "answer"});
  for (int64_t group = 0; group < rows.row_groups(); ++group)
    for (Json& row : rows.ReadRowGroup(group, columns)) rows_.push_back(std::move(row));
  Check(!rows_.empty(), "{}: no rows", name_);
}

void Documents::TakeArray(std::string_view content) {
  Check(content.size() <= kMaxArrayBytes, "{}: a JSON array of more than {} MiB; write a document a line (.jsonl)",
        name_, kMaxArrayBytes >> 20);
  Json rows = ParseJsonOfRows(content, name_);
  Check(rows.is_array() && !rows.empty(), "{}: expected an array of documents, or a document a line", name_);
  rows_ = std::move(rows.get_ref<Json::array_t&>());
}

Documents::Document Documents::Parse(int64_t index, std::string_view line) const {
  if (!json_lines_) return {std::string(line)};
  const std::string where = fmt::format("{}:{}", name_, lines_.at(index).number);
  return DocumentOf(ParseJsonOfRows(WithoutMark(line), where), where);
}

Documents::Document Documents::At(int64_t index) const {
  if (!rows_.empty()) return DocumentOf(rows_.at(index), fmt::format("{}: row {}", name_, index));
  const Line& line = lines_.at(index);
  return in_pieces_ ? Parse(index, LinesOf({index}).at(index)) : Parse(index, content().substr(line.begin, line.size));
}

std::string Documents::Joined() const {
  std::vector<int64_t> order(size());
  std::iota(order.begin(), order.end(), 0);
  InOrder reader(*this, std::move(order));
  std::string text;
  for (int64_t i = 0; i < size(); ++i) Append(reader.Next().text, i == 0, text);
  return text;
}

std::string RunningText(const fs::path& file) {
  const fs::path extension = WithoutCompression(file).extension();
  if (HasRows(file) || IsStream(file)) {
    const Documents documents = Documents::Read(file);
    Check(!documents.cut(), "{}: more than {} MiB from a pipe; write the text to a file", file.string(),
          kMaxDocumentBytes >> 20);
    return documents.Joined();
  }
  RefuseDirectory(file);
  std::string text = ReadText(file);
  RefuseOtherFormats(text, file.string());
  if (extension != ".raw" && extension != ".tokens") return text;
  std::string joined;
  for (std::string_view rest = text; !rest.empty();) {
    const std::string_view line = rest.substr(0, std::min(rest.find('\n'), rest.size() - 1) + 1);
    const bool blank = line.find_first_not_of(kBlank) == line.npos;
    Append(blank ? "" : std::string(line), rest.size() == text.size(), joined);
    rest.remove_prefix(line.size());
  }
  return joined;
}

Documents::Document Documents::InOrder::Next() {
  const size_t place = next_++;
  const int64_t index = order_.at(place);
  if (!documents_->in_pieces_) return documents_->At(index);
  if (texts_.empty()) {
    constexpr size_t kMost = size_t{256} << 20;
    size_t end = place, bytes = 0;
    const auto size = [&] { return documents_->lines_.at(order_[end]).size; };
    for (; end < order_.size() && (end == place || bytes + size() <= limit_); ++end) bytes += size();
    texts_ =
        documents_->LinesOf({order_.begin() + static_cast<int64_t>(place), order_.begin() + static_cast<int64_t>(end)});
    limit_ = std::min(2 * limit_, kMost);
  }
  return documents_->Parse(index, texts_.extract(index).mapped());
}

}  // namespace shiftrt
