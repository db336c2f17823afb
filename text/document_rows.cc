// SPDX-License-Identifier: Apache-2.0
#include "text/document_rows.h"

#include <algorithm>
#include <array>
#include <system_error>
#include <utility>

#include "runtime/check.h"
#include "runtime/csv.h"
#include "runtime/printable.h"
#include "runtime/text.h"

namespace shiftrt {

namespace {

namespace fs = std::filesystem;
using Json = nlohmann::json;

constexpr std::array<std::string_view, 6> kColumns = {"text", "instruction", "input", "output", "question", "answer"};

// The value of a row in a column: null for one that is missing.
const Json& In(const Json& row, std::string_view column) {
  static const Json kMissing;
  const auto at = row.find(column);
  return at == row.end() ? kMissing : *at;
}

bool IsEmpty(const Json& value) {
  return value.is_null() || (value.is_string() && value.get_ref<const std::string&>().empty());
}

// `"messages", "id"`, or the first of them.
std::string Listed(const std::vector<std::string>& columns) {
  constexpr size_t kMost = 8;
  std::string list;
  for (size_t i = 0; i < std::min(columns.size(), kMost); ++i)
    list += fmt::format("{}\"{}\"", i == 0 ? "" : ", ", Printable(columns[i]));
  if (columns.size() > kMost) list += ", ...";
  return list;
}

constexpr const char* kExpected =
    "expected an object with a string \"text\", or \"instruction\" and \"output\", or \"question\" and \"answer\"";

[[noreturn]] void FailColumns(const Json& row, const std::string& where) {
  std::vector<std::string> columns;
  for (const auto& [column, value] : row.items()) columns.push_back(value.is_null() ? column + " (null)" : column);
  if (columns.empty()) Fail("{}: {}; it has no columns", where, kExpected);
  const bool chat = row.contains("messages") || row.contains("conversations");
  Fail("{}: {}; it has {}. {}", where, kExpected, Listed(columns),
       chat ? "Write each conversation as one text, in the model's chat template (`tokenize --chat FILE --rendered`)"
            : "Rename the column that has the text");
}

// The text of a column, "" for one that is missing.
std::string TextIn(const Json& row, const char* column, const std::string& where) {
  const Json& value = In(row, column);
  if (value.is_null()) return "";
  Check(value.is_string(), "{}: expected a string \"{}\"", where, column);
  return value.get<std::string>();
}

// Alpaca's own template (Taori et al., 2023), with the answer after it.
Documents::Document AlpacaDocument(const Json& row, const std::string& where) {
  const std::string instruction = TextIn(row, "instruction", where), input = TextIn(row, "input", where),
                    output = TextIn(row, "output", where);
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
  return {prompt + output, prompt.size(), instruction + (input.empty() ? "" : "\n\n" + input)};
}

// A row of GSM8K and its like, as lm-evaluation-harness writes it.
Documents::Document QuestionDocument(const Json& row, const std::string& where) {
  const std::string question = TextIn(row, "question", where), prompt = "Question: " + question + "\nAnswer:";
  return {prompt + " " + TextIn(row, "answer", where), prompt.size(), question};
}

}  // namespace

Documents::Document DocumentOf(const Json& row, const std::string& where) {
  Check(row.is_object(), "{}: expected an object with a string \"text\", or a row of Alpaca", where);
  const Json &text = In(row, "text"), &instruction = In(row, "instruction"), &output = In(row, "output");
  const bool empty = IsEmpty(instruction) && IsEmpty(output);
  if (!instruction.is_null() && !output.is_null() && !(empty && text.is_string())) return AlpacaDocument(row, where);
  if (!text.is_string() && In(row, "question").is_string() && In(row, "answer").is_string())
    return QuestionDocument(row, where);
  if (!text.is_string()) FailColumns(row, where);
  return {text.get<std::string>()};
}

void RequireColumns(const std::vector<std::string>& columns, const std::string& name) {
  const auto has = [&](std::string_view column) {
    return std::find(columns.begin(), columns.end(), column) != columns.end();
  };
  Check(has("text") || (has("instruction") && has("output")) || (has("question") && has("answer")),
        "{}: expected a column \"text\", or \"instruction\" and \"output\", or \"question\" and \"answer\"; it has the "
        "columns {}. Rename the column that has the text",
        name, Listed(columns));
}

std::vector<Json> RowsOfTable(std::string_view text, char separator, const std::string& name) {
  CsvReader reader(text, separator, name);
  const std::vector<std::string> header = reader.Done() ? std::vector<std::string>() : reader.Record();
  RequireColumns(header, name);
  std::vector<Json> rows;
  while (!reader.Done()) {
    std::vector<std::string> record = reader.Record();
    if (record.size() == 1 && record[0].empty()) continue;
    Check(record.size() == header.size(), "{}: {} columns, and the first line names {}", reader.RecordWhere(),
          record.size(), header.size());
    Json row = Json::object();
    for (size_t c = 0; c < header.size(); ++c)
      if (!record[c].empty() && std::find(kColumns.begin(), kColumns.end(), header[c]) != kColumns.end())
        row[header[c]] = std::move(record[c]);
    rows.push_back(std::move(row));
  }
  Check(!rows.empty(), "{}: no rows", name);
  return rows;
}

char SeparatorOf(const fs::path& file) {
  const fs::path extension = WithoutCompression(file).extension();
  if (extension == ".tsv") return '\t';
  return extension == ".csv" ? ',' : '\0';
}

void RefuseDirectory(const fs::path& file) {
  if (!IsDirectory(file)) return;
  std::string arrow;
  std::string readable;
  std::error_code none;
  for (const fs::directory_entry& entry : fs::directory_iterator(file, none)) {
    const fs::path& path = entry.path();
    if (path.extension() == ".arrow") arrow = path.string();
    if (HasRows(path) && path.filename() != "dataset_info.json" && path.filename() != "state.json" &&
        (readable.empty() || path.string() < readable))
      readable = path.string();
  }
  Check(arrow.empty(),
        "{}: a directory of datasets.save_to_disk, whose Arrow files are not read; write a Parquet file "
        "(Dataset.to_parquet) and give that",
        file.string());
  Check(readable.empty(), "{}: a directory, expected a file; give one of its files, such as {}", file.string(),
        readable);
  Fail("{}: a directory, expected a file with text", file.string());
}

void RefuseOtherFormats(std::string_view bytes, const std::string& name) {
  using std::string_view_literals::operator""sv;
  struct Format {
    std::string_view begin, message;
  };
  constexpr Format kFormats[] = {
      {"BZh"sv, "compressed by bzip2, which is not read; decompress it (bunzip2), or compress it as .gz or .zst"},
      {"\xFD"
       "7zXZ\0"sv,
       "compressed by xz, which is not read; decompress it (unxz), or compress it as .gz or .zst"},
      {"PK\x03\x04"sv, "a ZIP archive, which is not read; unpack it"},
      {"ARROW1\0\0"sv, "an Arrow file, which is not read; write a Parquet file (Dataset.to_parquet) and give that"},
      {"\xFF\xFF\xFF\xFF"sv,
       "an Arrow stream, which is not read; write a Parquet file (Dataset.to_parquet) and give that"},
      {"PAR1"sv, "a Parquet file; give it the extension .parquet"},
      {"GGUF"sv, "a model, expected a text"},
  };
  for (const Format& format : kFormats) Check(!bytes.starts_with(format.begin), "{}: {}", name, format.message);
  Check(bytes.size() < 262 || bytes.substr(257, 5) != "ustar", "{}: a tar archive, which is not read; unpack it", name);
}

}  // namespace shiftrt
