// SPDX-License-Identifier: Apache-2.0
#include "eval/rows.h"

#include <algorithm>

#include "eval/harness/text.h"
#include "runtime/csv.h"
#include "runtime/json.h"
#include "runtime/parquet.h"
#include "runtime/parse.h"
#include "tokenizers/utf8.h"

namespace shiftrt {

using Json = nlohmann::json;

const Json& Row::Value(const char* column) const {
  const auto at = values_.find(column);
  Require(at != values_.end(), "column {} is missing", column);
  return *at;
}

const std::string& Row::Text(const char* column) const {
  const Json& value = Value(column);
  Require(value.is_string(), "column {} is {}, expected a text", column, value.type_name());
  return value.get_ref<const std::string&>();
}

std::vector<std::string> Row::Texts(const char* column) const {
  const Json& value = Value(column);
  Require(value.is_array() && value.size() >= 2 &&
              std::all_of(value.begin(), value.end(), [](const Json& text) { return text.is_string(); }),
          "column {} is not a list of at least two texts", column);
  return value.get<std::vector<std::string>>();
}

const Json& Row::Object(const char* column) const {
  const Json& value = Value(column);
  Require(value.is_object(), "column {} is {}, expected an object", column, value.type_name());
  return value;
}

bool Row::Flag(const char* column) const {
  const Json& value = Value(column);
  Require(value.is_boolean(), "column {} is {}, expected true or false", column, value.type_name());
  return value.get<bool>();
}

int64_t Row::Index(const char* column, int64_t count, int64_t first) const {
  const Json& value = Value(column);
  int64_t index = -1;
  // JSON's numbers are unsigned, those of Parquet are signed. An unsigned number above INT64_MAX has no int64_t.
  const bool fits = !value.is_number_unsigned() || value.get<uint64_t>() <= INT64_MAX;
  if (value.is_number_integer() && fits) index = value.get<int64_t>();
  if (value.is_string() && !ParseNumber(value.get_ref<const std::string&>(), &index)) index = -1;
  Require(index >= first && index < first + count, "column {} is {}, expected {} to {}", column, Shown(value), first,
          first + count - 1);
  return index - first;
}

namespace {

// Calls `line(text, number)` for each line, without its end.
template <typename Visit>
void ForEachLine(std::string_view text, Visit&& visit) {
  for (int64_t number = 1; !text.empty(); ++number) {
    const size_t end = std::min(text.find('\n'), text.size());
    std::string_view line = text.substr(0, end);
    text.remove_prefix(std::min(end + 1, text.size()));
    if (line.ends_with('\r')) line.remove_suffix(1);
    visit(line, number);
  }
}

std::vector<Row> ParseJsonLines(std::string_view text, const std::string& name) {
  std::vector<Row> rows;
  ForEachLine(text, [&](std::string_view line, int64_t number) {
    if (Strip(line).empty()) return;
    const std::string where = fmt::format("{}:{}", name, number);
    Json values = ParseJsonOfRows(line, where);
    Check(values.is_object(), "{}: not a JSON object", where);
    rows.emplace_back(std::move(values), where);
  });
  return rows;
}

// A header names its last column the answer; no first question of a data set ends in that word.
bool IsHeader(const std::vector<std::string>& record) { return AsciiLower(record.back()) == "answer"; }

std::vector<Row> ParseCsv(std::string_view text, const std::string& name, std::vector<std::string> columns) {
  std::vector<Row> rows;
  CsvReader reader(text, ',', name);
  for (bool first = true; !reader.Done(); first = false) {
    const std::vector<std::string> record = reader.Record();
    const std::string where = reader.RecordWhere();
    if (record.size() == 1 && record[0].empty()) continue;
    if (first && IsHeader(record)) {
      columns = record;
      continue;
    }
    Check(record.size() == columns.size(), "{}: {} columns, expected {} ({})", where, record.size(), columns.size(),
          fmt::join(columns, ", "));
    Json values = Json::object();
    for (size_t c = 0; c < columns.size(); ++c) {
      Check(IsValidUtf8(record[c]), "{}: column {} is not valid UTF-8", where, columns[c]);
      values[columns[c]] = record[c];
    }
    rows.emplace_back(std::move(values), where);
  }
  return rows;
}

std::vector<Row> ParseParquet(std::string_view bytes, const std::string& name) {
  ParquetFile file(bytes, name);
  std::vector<Row> rows;
  for (int64_t group = 0; group < file.row_groups(); ++group)
    for (Json& values : file.ReadRowGroup(group))
      rows.emplace_back(std::move(values), fmt::format("{}: row {}", name, rows.size()));
  return rows;
}

// " = Title = ", but not " = = Section = = ".
bool IsTitle(std::string_view line) {
  const std::string joined = ReplaceAll(ReplaceAll(line, "= = =", "==="), "= =", "==");
  const std::string_view title = Strip(joined);
  return title.starts_with("= ") && title.ends_with(" =");
}

// Articles as the reference's document-level WikiText cuts them: a title begins one, and lines keep their ends.
std::vector<Row> ParsePages(std::string_view text, const std::string& name) {
  std::vector<Row> rows;
  std::string page;
  std::string where = fmt::format("{}:1", name);
  const auto finish = [&] {
    if (!page.empty()) page.pop_back();
    if (!Strip(page).empty()) rows.emplace_back(Json{{"page", page}}, where);
    page.clear();
  };
  // The reference splits at line ends, so a text that ends in one has an empty last line.
  const std::string whole = std::string(text) + "\n";
  int64_t number = 0;
  for (std::string_view rest = whole; !rest.empty();) {
    const size_t end = rest.find('\n');
    const std::string_view line = rest.substr(0, end);
    rest.remove_prefix(end + 1);
    ++number;
    Check(IsValidUtf8(line), "{}:{}: not valid UTF-8", name, number);
    if (IsTitle(line)) {
      finish();
      where = fmt::format("{}:{}", name, number);
    }
    page.append(line).append("\n");
  }
  finish();
  return rows;
}

}  // namespace

std::vector<Row> ParseRows(std::string_view text, const std::filesystem::path& name,
                           const std::vector<std::string>& columns) {
  const std::string extension = name.extension().string();
  if (extension == ".jsonl" || extension == ".json") return ParseJsonLines(text, name.string());
  if (extension == ".csv") return ParseCsv(text, name.string(), columns);
  if (extension == ".raw" || extension == ".tokens" || extension == ".txt") return ParsePages(text, name.string());
  if (IsParquet(name)) return ParseParquet(text, name.string());
  Fail("{}: rows are read from .jsonl, .json, .parquet, .csv, .raw, .tokens and .txt files", name.string());
}

}  // namespace shiftrt
