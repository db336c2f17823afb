// SPDX-License-Identifier: Apache-2.0
// What a sweep found: as a table to read, as CSV and JSON for tools, and as charts.
#pragma once

#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "shiftrt/sweep.h"
#include "tools/paper/paper.h"
#include "tools/report/page.h"

namespace shiftrt {

// One line per row of the sweep, and a header.
std::string SweepCsv(const std::vector<SweepRow>& rows);
nlohmann::json SweepJson(const std::vector<SweepRow>& rows);

// One line per setting: the mean and, over several seeds, the standard deviation. `paper` adds the paper's numbers.
PageTable SweepTable(const std::vector<SweepRow>& rows, const PaperTable& paper);

// The same table in Markdown.
std::string SweepMarkdown(const std::vector<SweepRow>& rows, const PaperTable& paper);

// The table, and perplexity by each axis that varies and is a number.
Page SweepPage(const std::string& title, const std::string& summary, const std::vector<SweepRow>& rows,
               const PaperTable& paper, int64_t hidden);

}  // namespace shiftrt
