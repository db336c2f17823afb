// SPDX-License-Identifier: Apache-2.0
#include "text/documents.h"

#include <algorithm>
#include <cstdlib>
#include <iterator>

#include "hub/cache.h"
#include "hub/settings.h"
#include "runtime/check.h"
#include "runtime/files.h"
#include "runtime/json.h"
#include "runtime/parquet.h"
#include "runtime/text.h"

namespace shiftrt {

namespace {

namespace fs = std::filesystem;
using Json = nlohmann::json;

constexpr const char* kBlank = " \t\r\n";

constexpr KnownText kTexts[] = {
    {"c4",
     {"c4-train.00000-of-01024.json.gz", "c4-validation.00000-of-00008.json.gz"},
     "allenai/c4",
     "en/c4-validation.00000-of-00008.json.gz"},
    {"wikitext2",
     {"wiki.train.raw", "wiki.valid.raw"},
     "Salesforce/wikitext",
     "wikitext-2-raw-v1/train-00000-of-00001.parquet"},
    {"wikitext2-test",
     {"wiki.test.raw", "wikitext2-test.raw"},
     "Salesforce/wikitext",
     "wikitext-2-raw-v1/test-00000-of-00001.parquet"},
    {"alpaca", {"alpaca_data_cleaned.json", "alpaca_data.json"}, "yahma/alpaca-cleaned", "alpaca_data_cleaned.json"},
};

std::vector<std::string> FileNames(const std::string& name) {
  std::vector<std::string> names;
  for (const char* extension : {".txt", ".jsonl", ".json"})
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

// Alpaca's own template (Taori et al., 2023), with the answer behind it.
Documents::Document AlpacaDocument(const Json& row, const std::string& where) {
  const auto field = [&](const char* key) -> std::string {
    if (!row.contains(key)) return "";
    Check(row[key].is_string(), "{}: expected a string \"{}\"", where, key);
    return row[key].get<std::string>();
  };
  const std::string instruction = field("instruction"), input = field("input"), output = field("output");
  const std::string prompt =
      input.empty()
          ? fmt::format(
                "Below is an instruction that describes a task. Write a response that appropriately completes "
                "the request.\n\n### Instruction:\n{}\n\n### Response:\n",
                instruction)
          : fmt::format(
                "Below is an instruction that describes a task, paired with an input that provides further "
                "context. Write a response that appropriately completes the request.\n\n### "
                "Instruction:\n{}\n\n### Input:\n{}\n\n### Response:\n",
                instruction, input);
  return {prompt + output, prompt.size()};
}

Documents::Document DocumentOf(const Json& row, const std::string& where) {
  Check(row.is_object(), "{}: expected an object with a string \"text\", or a row of Alpaca", where);
  if (row.contains("instruction") && row.contains("output")) return AlpacaDocument(row, where);
  Check(row.contains("text") && row["text"].is_string(),
        "{}: expected an object with a string \"text\", or \"instruction\" and \"output\"", where);
  return {row["text"].get<std::string>()};
}

}  // namespace

std::span<const KnownText> KnownTexts() { return kTexts; }

const KnownText* FindKnownText(std::string_view name) {
  const auto at =
      std::find_if(std::begin(kTexts), std::end(kTexts), [&](const KnownText& t) { return t.name == name; });
  return at == std::end(kTexts) ? nullptr : at;
}

fs::path LookForText(const std::string& name) {
  if (fs::exists(name)) return name;
  const std::string listed = DataDirectories();
  const std::vector<std::string> names = FileNames(name);
  for (size_t begin = 0; begin < listed.size();) {
    const size_t end = std::min(listed.find(':', begin), listed.size());
    for (const std::string& file : names) {
      fs::path path = fs::path(listed.substr(begin, end - begin)) / file;
      if (fs::is_regular_file(path)) return path;
    }
    begin = end + 1;
  }
  const KnownText* known = FindKnownText(name);
  if (known == nullptr) return "";
  for (const fs::path& snapshot :
       Snapshots(*ParseRepository(known->repository, RepositoryType::kDataset), HuggingFaceCache()))
    if (fs::exists(snapshot / known->hub_file)) return snapshot / known->hub_file;
  return "";
}

std::vector<std::string> TextsIn(const std::string& list) {
  if (list.find(',') == list.npos || !LookForText(list).empty()) return {list};
  std::vector<std::string> texts;
  for (size_t begin = 0; begin <= list.size();) {
    const size_t end = std::min(list.find(',', begin), list.size());
    texts.push_back(list.substr(begin, end - begin));
    begin = end + 1;
  }
  return texts;
}

fs::path ResolveText(const std::string& name) {
  if (fs::path found = LookForText(name); !found.empty()) return found;
  // A name with a '.' or a '/' was meant as a file: say only that.
  if (name.find_first_of("./") != name.npos) Fail("{}: no such file", name);
  const std::string listed = DataDirectories();
  Fail("no text called {}: neither a file, nor any of {} in the directories of SHIFTRT_DATA ({}){}", name,
       fmt::join(FileNames(name), ", "), listed.empty() ? "not set" : listed,
       FindKnownText(name) != nullptr ? fmt::format("; `shiftrt pull --dataset {}` gets it", name) : "");
}

std::string_view Documents::content() const {
  if (!decompressed_.empty()) return decompressed_;
  return {reinterpret_cast<const char*>(file_.bytes().data()), file_.bytes().size()};
}

// A plain text is read no further than a document may reach; its last line is left out if it is not whole.
void Documents::ReadContent(const fs::path& file, bool plain, uint64_t line_limit) {
  file_ = MappedFile(file);
  if (IsCompressed(content())) {
    uint64_t line = 0;  // bytes since the last line end
    std::string text;
    Decompress(content(), name_, [&](std::string_view piece) {
      text += piece;
      if (plain) return text.size() <= kMaxDocumentBytes;
      const size_t end = piece.rfind('\n');
      line = end == piece.npos ? line + piece.size() : piece.size() - end - 1;
      Check(line <= line_limit, "{}: a line of more than {} MiB once decompressed", name_, line_limit >> 20);
      Check(text.size() <= kMaxTextBytes, "{}: more than {} bytes once decompressed", name_, kMaxTextBytes);
      return true;
    });
    file_ = MappedFile();
    decompressed_ = std::move(text);
  }
  cut_ = plain && content().size() > kMaxDocumentBytes;
}

Documents Documents::Read(const fs::path& file) {
  Documents documents;
  documents.name_ = file.string();
  const fs::path extension = WithoutCompression(file).extension();
  const bool parquet = IsParquet(file), plain = !parquet && extension != ".json" && extension != ".jsonl";
  documents.ReadContent(file, plain, extension == ".json" ? kMaxArrayBytes : kMaxDocumentBytes);
  std::string_view content = documents.content();
  if (documents.cut_) {
    content = content.substr(0, kMaxDocumentBytes);
    if (const size_t end = content.rfind('\n'); end != content.npos) content = content.substr(0, end + 1);
    while (!content.empty() && (content.back() & 0xC0) == 0x80) content.remove_suffix(1);  // a part of a character
    if (!content.empty() && (content.back() & 0x80) != 0) content.remove_suffix(1);
  }
  documents.hash_ = HashHex(content);
  const size_t first = content.find_first_not_of(kBlank);
  Check(first != content.npos, "{}: the text is empty", documents.name_);
  const auto forget = [&] {
    documents.file_ = MappedFile();
    documents.decompressed_ = std::string();
  };
  if (parquet) {
    const ParquetFile rows(content, documents.name_);
    for (int64_t group = 0; group < rows.row_groups(); ++group)
      for (Json& row : rows.ReadRowGroup(group, {"text", "instruction", "input", "output"}))
        documents.rows_.push_back(std::move(row));
    Check(!documents.rows_.empty(), "{}: no rows", documents.name_);
    forget();
    return documents;
  }
  documents.json_lines_ = extension == ".jsonl" || (extension == ".json" && content[first] == '{');
  if (extension == ".json" && !documents.json_lines_) {
    Check(content.size() <= kMaxArrayBytes, "{}: a JSON array of more than {} MiB; write a document a line (.jsonl)",
          documents.name_, kMaxArrayBytes >> 20);
    Json rows = ParseJson(content, documents.name_);
    Check(rows.is_array() && !rows.empty(), "{}: expected an array of documents, or a document a line",
          documents.name_);
    documents.rows_ = std::move(rows.get_ref<Json::array_t&>());
    forget();
    return documents;
  }
  if (plain) {
    documents.lines_ = {{0, content.size(), 1}};
    return documents;
  }
  int64_t number = 0;
  for (size_t begin = 0; begin < content.size();) {
    const size_t end = std::min(content.find('\n', begin), content.size());
    const std::string_view line = content.substr(begin, end - begin);
    ++number;
    Check(line.size() <= kMaxDocumentBytes, "{}:{}: a document of more than {} MiB", documents.name_, number,
          kMaxDocumentBytes >> 20);
    if (line.find_first_not_of(kBlank) != line.npos) documents.lines_.push_back({begin, line.size(), number});
    begin = end + 1;
  }
  return documents;
}

Documents::Document Documents::At(int64_t index) const {
  if (!rows_.empty()) return DocumentOf(rows_.at(index), fmt::format("{}: row {}", name_, index));
  const Line& line = lines_.at(index);
  const std::string_view text = content().substr(line.begin, line.size);
  if (!json_lines_) return {std::string(text)};
  const std::string where = fmt::format("{}:{}", name_, line.number);
  return DocumentOf(ParseJson(text, where), where);
}

}  // namespace shiftrt
