// SPDX-License-Identifier: Apache-2.0
#include "tools/table.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <sstream>

namespace shiftrt {

void Table::DropEmptyColumns() {
  for (size_t c = rows_[0].size(); c-- > 0;) {
    if (!std::all_of(rows_.begin() + 1, rows_.end(), [&](const auto& row) { return row[c].empty(); })) continue;
    for (auto& row : rows_) row.erase(row.begin() + static_cast<int64_t>(c));
  }
}

std::string Table::Text() const {
  std::vector<size_t> width(rows_[0].size(), 0);
  for (const auto& row : rows_)
    for (size_t c = 0; c < row.size(); ++c) width[c] = std::max(width[c], row[c].size());
  std::string out;
  for (const auto& row : rows_) {
    for (size_t c = 0; c < row.size(); ++c)
      out += c == 0 ? fmt::format("  {:<{}}", row[c], width[c]) : fmt::format("  {:>{}}", row[c], width[c]);
    out.erase(out.find_last_not_of(' ') + 1);
    out += "\n";
  }
  return out;
}

std::string Scaled(double value, const char* unit) {
  const char* prefixes[] = {"", "k", "M", "G", "T"};
  int power = 0;
  while (value >= 999.5 && power < 4) {
    value /= 1000;
    ++power;
  }
  return fmt::format("{:.3g} {}{}", value, prefixes[power], unit);
}

std::string Indented(const std::string& text) {
  std::string lines, indent = " ";
  std::istringstream in(text.substr(0, text.find_last_not_of("\r\n") + 1));
  for (std::string line; std::getline(in, line); indent = "    ")
    lines += (lines.empty() && indent.size() == 1 ? "" : "\n") + (line.empty() ? "" : indent + line);
  return lines;
}

std::string PlusMinus(double error, int digits) {
  return std::isfinite(error) ? fmt::format(" ± {:.{}f}", error, digits) : "";
}

}  // namespace shiftrt
