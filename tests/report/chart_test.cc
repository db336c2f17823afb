// SPDX-License-Identifier: Apache-2.0
#include "tools/report/chart.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <cmath>
#include <limits>
#include <regex>

#include "runtime/files.h"
#include "tools/report/page.h"

namespace shiftrt {
namespace {

namespace fs = std::filesystem;

// Checks the part of XML that charts use: every tag is closed in order, every attribute is quoted, and only the four
// entities occur.
bool WellFormed(const std::string& xml) {
  std::vector<std::string> open;
  const std::regex tag(R"re(<(/?)([a-z]+)((?: [a-zA-Z:-]+="[^"<]*")*)(/?)>)re");
  size_t at = 0;
  for (std::sregex_iterator it(xml.begin(), xml.end(), tag), end; it != end; ++it) {
    const std::string between = xml.substr(at, static_cast<size_t>(it->position()) - at);
    if (between.find('<') != between.npos) return false;
    at = static_cast<size_t>(it->position() + it->length());
    if ((*it)[1].length() > 0) {
      if (open.empty() || open.back() != (*it)[2]) return false;
      open.pop_back();
    } else if ((*it)[4].length() == 0) {
      open.push_back((*it)[2]);
    }
  }
  return open.empty() && std::regex_search(xml, std::regex("&(?!(amp|lt|gt|quot);)")) == false;
}

// The numeric values of one attribute.
std::vector<double> Numbers(const std::string& svg, const std::string& attribute) {
  std::vector<double> numbers;
  const std::regex pattern(" " + attribute + "=\"([^\"]*)\"");
  for (std::sregex_iterator it(svg.begin(), svg.end(), pattern), end; it != end; ++it)
    numbers.push_back(std::stod((*it)[1]));
  return numbers;
}

Chart LineChart(std::vector<double> x, std::vector<double> y) {
  Chart chart;
  chart.name = "line";
  chart.title = "A line";
  chart.x_label = "x";
  chart.y_label = "y";
  chart.series = {{"it", Mark::kLineAndDots, std::move(x), std::move(y), 0}};
  return chart;
}

TEST(Chart, PutsPointsWhereTheyBelong) {
  const std::string svg = Svg(LineChart({0, 1, 2, 4}, {10, 20, 15, 10}));
  EXPECT_TRUE(WellFormed(svg));
  std::vector<double> x = Numbers(svg, "cx"), y = Numbers(svg, "cy");
  ASSERT_EQ(x.size(), 5u);  // the first belongs to the legend
  // The positions are affine in the data: equal steps have equal distances, and larger values are higher.
  EXPECT_NEAR(x[2] - x[1], x[3] - x[2], 0.11);
  EXPECT_NEAR(x[4] - x[3], 2 * (x[2] - x[1]), 0.21);
  EXPECT_NEAR(y[1] - y[2], 2 * (y[1] - y[3]), 0.21);
  EXPECT_NEAR(y[4], y[1], 0.11);
  EXPECT_LT(y[2], y[1]);
  for (double value : x) EXPECT_TRUE(value > 0 && value < 640) << value;
}

TEST(Chart, LogAxesAreLogarithmic) {
  Chart chart = LineChart({1, 10, 100, 1000}, {1, 10, 100, 0});
  chart.log_x = chart.log_y = true;
  const std::string svg = Svg(chart);
  const std::vector<double> x = Numbers(svg, "cx"), y = Numbers(svg, "cy");
  ASSERT_EQ(x.size(), 4u);  // 0 has no place on a logarithmic axis
  EXPECT_NEAR(x[2] - x[1], x[3] - x[2], 0.11);
  EXPECT_NEAR(y[2] - y[1], y[3] - y[2], 0.11);
}

TEST(Chart, LabelsOfAnAxisHaveEnoughDigits) {
  const std::string near = Svg(LineChart({0, 1, 2, 4}, {1234.11, 1234.12, 1234.13, 1234.15}));
  for (const char* label : {">1234.11<", ">1234.12<", ">1234.13<"})
    EXPECT_NE(near.find(label), std::string::npos) << near;
  const std::string large = Svg(LineChart({0, 1, 2, 4}, {110000, 120000, 130000, 150000}));
  EXPECT_NE(large.find(">1.20e+05<"), std::string::npos) << large;
  EXPECT_EQ(large.find(">1e+05<"), std::string::npos) << large;
}

TEST(Chart, BarsStandOnZero) {
  Chart chart = LineChart({0, 1}, {2, -1});
  chart.series[0].mark = Mark::kBars;
  const std::string svg = Svg(chart);
  const std::vector<double> y = Numbers(svg, "y"), height = Numbers(svg, "height");
  EXPECT_TRUE(WellFormed(svg));
  // The last two rectangles extend 2 up and 1 down from zero.
  ASSERT_GE(height.size(), 2u);
  EXPECT_NEAR(height[height.size() - 2], 2 * height.back(), 0.21);
  EXPECT_GT(height.back(), 10);
  EXPECT_NEAR(y[y.size() - 2] + height[height.size() - 2], y.back(), 0.11) << "one ends where the other begins";
}

TEST(Chart, DrawsWhatThereIsOfHostileData) {
  const double nan = std::nan(""), inf = std::numeric_limits<double>::infinity();
  for (const auto& [x, y] :
       std::vector<std::pair<std::vector<double>, std::vector<double>>>{{{}, {}},
                                                                        {{1}, {nan}},
                                                                        {{1}, {5}},
                                                                        {{1, 2, 3}, {7, 7, 7}},
                                                                        {{1, 2, 3}, {1, nan, inf}},
                                                                        {{1, 2}, {1e-300, 1e300}},
                                                                        {{-1e300, 1e300}, {-1e308, 1e308}},
                                                                        {{0, 0}, {0, 0}}}) {
    for (int kind = 0; kind < 12; ++kind) {
      Chart chart = LineChart(x, y);
      chart.title = "<script>alert(1)</script> & \"quotes\"\x01";
      chart.series[0].name = "a<b";
      chart.log_x = kind & 1;
      chart.log_y = kind & 2;
      chart.series[0].mark = kind & 4 ? Mark::kBars : Mark::kLineAndDots;
      chart.square = kind & 8;
      const std::string svg = Svg(chart);
      EXPECT_TRUE(WellFormed(svg)) << svg;
      EXPECT_EQ(svg.find("<script"), svg.npos);
      EXPECT_EQ(svg.find("nan\""), svg.npos) << svg;
      EXPECT_EQ(svg.find("inf\""), svg.npos) << svg;
    }
  }
  EXPECT_NE(Svg(LineChart({}, {})).find("nothing to show"), std::string::npos);
}

TEST(Chart, LegendsOfManySeriesStayInside) {
  Chart chart;
  chart.title = "Many";
  for (int i = 0; i < 20; ++i)
    chart.series.push_back({"series number " + std::to_string(i), Mark::kLine, {0, 1}, {0, 1.0 * i}, i});
  const std::string svg = Svg(chart);
  const std::regex text("<text class=\"ink\" x=\"([^\"]*)\" y=\"[^\"]*\" text-anchor=\"start\">(series[^<]*)<");
  int found = 0;
  for (std::sregex_iterator it(svg.begin(), svg.end(), text), end; it != end; ++it, ++found)
    EXPECT_LT(std::stod((*it)[1]) + 7.5 * static_cast<double>((*it)[2].length()), 640);
  EXPECT_EQ(found, 20);
}

TEST(NiceTicks, AreRoundAndInside) {
  EXPECT_EQ(NiceTicks(0, 10, 5), (std::vector<double>{0, 2, 4, 6, 8, 10}));
  EXPECT_EQ(NiceTicks(-1, 1, 4), (std::vector<double>{-1, -0.5, 0, 0.5, 1}));
  EXPECT_EQ(NiceTicks(101, 149, 5), (std::vector<double>{110, 120, 130, 140}));
  EXPECT_TRUE(NiceTicks(1, 1, 5).empty());
  EXPECT_TRUE(NiceTicks(0, std::numeric_limits<double>::infinity(), 5).empty());
}

TEST(Page, IsSelfContained) {
  Page page{"Title <1>", "Summary", {}};
  page.sections.push_back({"First", "text", {PageTable{{"a", "b"}, {{"x & y", "1"}}}, LineChart({0, 1}, {0, 1})}});
  page.sections.push_back({"Second", "", {LineChart({0, 1}, {1, 0}), LineChart({0, 1}, {1, 1}), PageText{"end"}}});
  page.sections[1].parts.push_back(LineChart({2}, {2}));
  const fs::path directory = fs::temp_directory_path() / ("shiftrt_page_" + std::to_string(getpid())) / "deep";
  WritePage(page, directory);
  const std::string html = ReadFile(directory / "index.html"), svg = ReadFile(directory / "line.svg");
  fs::remove_all(directory.parent_path());
  EXPECT_EQ(svg, Svg(LineChart({2}, {2})));
  for (const char* outside : {"<script", "src=", "href=", "@import", "url("})
    EXPECT_EQ(html.find(outside), html.npos) << outside;
  const std::string without_namespace =
      std::regex_replace(html, std::regex("xmlns=\"http://www.w3.org/2000/svg\""), "");
  EXPECT_EQ(without_namespace.find("http"), html.npos);
  EXPECT_NE(html.find("Title &lt;1&gt;"), html.npos);
  EXPECT_NE(html.find("<td>x &amp; y</td>"), html.npos);
  // Consecutive charts share a grid: one chart in the first section, two in the second.
  size_t grids = 0, figures = 0;
  for (size_t at = 0; (at = html.find("class=\"figures\"", at)) != html.npos; ++at) ++grids;
  for (size_t at = 0; (at = html.find("<figure>", at)) != html.npos; ++at) ++figures;
  EXPECT_EQ(grids, 3u);
  EXPECT_EQ(figures, 4u);
}

TEST(Page, NamesTheDirectoryItCannotMake) {
  try {
    WritePage({}, "/proc/nowhere");
    FAIL();
  } catch (const Error& error) {
    EXPECT_NE(std::string(error.what()).find("/proc/nowhere"), std::string::npos);
  }
}

}  // namespace
}  // namespace shiftrt
