// SPDX-License-Identifier: Apache-2.0
// Charts as SVG: no script, no fonts or styles from elsewhere, readable on light and dark backgrounds.
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace shiftrt {

enum class Mark { kLine, kDots, kLineAndDots, kBars };

struct Series {
  std::string name;  // in the legend; series without one are left out of it
  Mark mark = Mark::kLine;
  std::vector<double> x,
      y;          // as long as x; points that are not finite (or not positive on a log axis) are left out
  int color = 0;  // index into the palette, modulo its size; lines beyond it are dashed
};

struct Chart {
  std::string name;  // the file's name without .svg
  std::string title, x_label, y_label;
  std::vector<Series> series;
  std::vector<std::string> x_names;  // categories 0, 1, ... in place of numbers
  bool log_x = false, log_y = false;
  bool from_zero = false;  // the y axis includes 0
  bool whole_x = false;    // x counts something: ticks at integers only
  bool square = false;     // one scale for both axes, without ticks: a projection, whose numbers mean nothing
};

// A whole SVG document, 640 wide. A chart without a point to show says so.
std::string Svg(const Chart& chart);

// & < > " as entities, control characters as spaces.
std::string Escaped(std::string_view text);

// Ends of ticks at 1, 2 or 5 times a power of ten, about `count` of them, that lie in low .. high.
std::vector<double> NiceTicks(double low, double high, int count);

}  // namespace shiftrt
