// SPDX-License-Identifier: Apache-2.0
// Tables as text: comma-separated values (RFC 4180), and the same with tabs.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace shiftrt {

/// Reads the records of a table. A field stands in double quotes or bare; a quote in a quoted field is doubled, and a
/// quoted field may hold separators and line ends.
class CsvReader {
 public:
  /// \param text The whole table, which must outlive the reader; a byte order mark at its beginning is passed over.
  /// \param separator The character between two fields of a record.
  /// \param name The file, for messages.
  CsvReader(std::string_view text, char separator, const std::string& name);

  /// \return Whether no record is left.
  bool Done() const { return rest_.empty(); }
  /// \return The fields of the next record.
  /// \throws Error with file and line for a quoted field that has no end, or that text follows.
  std::vector<std::string> Record();
  /// \return File and line at which the last record begins, for messages.
  std::string RecordWhere() const;

 private:
  bool Take(char c);
  std::string Field();
  std::string Quoted();

  std::string_view rest_;
  char separator_;
  std::string name_;
  int64_t line_ = 1, record_line_ = 1;
};

}  // namespace shiftrt
