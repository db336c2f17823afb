// SPDX-License-Identifier: Apache-2.0
#include "runtime/csv.h"

#include <algorithm>
#include <array>

#include "runtime/check.h"

namespace shiftrt {

CsvReader::CsvReader(std::string_view text, char separator, const std::string& name)
    : rest_(text), separator_(separator), name_(name) {
  constexpr std::string_view kByteOrderMark = "\xEF\xBB\xBF";
  if (rest_.starts_with(kByteOrderMark)) rest_.remove_prefix(kByteOrderMark.size());
}

std::vector<std::string> CsvReader::Record() {
  record_line_ = line_;
  std::vector<std::string> fields;
  do {
    fields.push_back(Field());
  } while (Take(separator_));
  Take('\r');
  Check(Take('\n') || rest_.empty(), "{}:{}: text after a quoted field", name_, line_);
  return fields;
}

std::string CsvReader::RecordWhere() const { return fmt::format("{}:{}", name_, record_line_); }

bool CsvReader::Take(char c) {
  if (!rest_.starts_with(c)) return false;
  if (c == '\n') ++line_;
  rest_.remove_prefix(1);
  return true;
}

std::string CsvReader::Field() {
  if (Take('"')) return Quoted();
  const std::array<char, 3> ends = {separator_, '\r', '\n'};
  const size_t end = std::min(rest_.find_first_of(std::string_view(ends.data(), ends.size())), rest_.size());
  std::string field(rest_.substr(0, end));
  rest_.remove_prefix(end);
  return field;
}

std::string CsvReader::Quoted() {
  std::string field;
  while (true) {
    Check(!rest_.empty(), "{}: a quoted field has no end", RecordWhere());
    if (Take('"')) {
      if (!Take('"')) return field;
      field += '"';
      continue;
    }
    const char c = rest_.front();
    Take(c);
    field += c;
  }
}

}  // namespace shiftrt
