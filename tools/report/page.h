// SPDX-License-Identifier: Apache-2.0
// A page for a browser: one self-contained HTML file that includes its charts, and one SVG file per chart.
#pragma once

#include <filesystem>
#include <string>
#include <variant>
#include <vector>

#include "tools/report/chart.h"

namespace shiftrt {

struct PageTable {
  std::vector<std::string> header;
  std::vector<std::vector<std::string>>
      rows;  // as wide as the header; the first column to the left, others to the right
};
struct PageText {
  std::string text;
};

using PagePart = std::variant<PageTable, Chart, PageText>;

struct Section {
  std::string heading, text;  // text: what one is looking at, in a sentence or two
  std::vector<PagePart> parts;
};

struct Page {
  std::string title, summary;
  std::vector<Section> sections;
  std::string made_by = {};  // the program's version and the command, which the page shows at its top
};

std::string Html(const Page& page);

// Writes DIR/index.html and DIR/<chart>.svg for each chart, all or none; makes DIR where needed.
void WritePage(const Page& page, const std::filesystem::path& directory);

// Returns whether a file is a page that WritePage has written, by its style sheet.
bool IsPage(const std::filesystem::path& file);

}  // namespace shiftrt
