// SPDX-License-Identifier: Apache-2.0
// Aligned columns on standard output.
#pragma once

#include <string>
#include <vector>

#include "tools/report/page.h"

namespace shiftrt {

class Table {
 public:
  explicit Table(std::vector<std::string> header) : rows_{std::move(header)} {}
  explicit Table(const PageTable& table) : rows_{table.header} {
    rows_.insert(rows_.end(), table.rows.begin(), table.rows.end());
  }
  void Add(std::vector<std::string> row) { rows_.push_back(std::move(row)); }
  // Takes out columns that have nothing below their header.
  void DropEmptyColumns();
  // First column to the left, the others to the right, two spaces before each line.
  std::string Text() const;

 private:
  std::vector<std::vector<std::string>> rows_;
};

// "1.23 M", "4.5 GB": three digits and a power of 1000.
std::string Scaled(double value, const char* unit);
// Text after a label: its first line after a space, and the others below it, indented, because line ends matter in
// code.
std::string Indented(const std::string& text);
// " ± 0.12", with so many digits; "" where there is no error, such as that of a mean over one item.
std::string PlusMinus(double error, int digits);

}  // namespace shiftrt
