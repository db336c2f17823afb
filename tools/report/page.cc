// SPDX-License-Identifier: Apache-2.0
#include "tools/report/page.h"

#include <fmt/format.h>

#include <fstream>
#include <string_view>

#include "runtime/files.h"

namespace shiftrt {

namespace {

constexpr const char* kPageStyle = R"(
:root{color-scheme:light dark;--paper:#fff;--ink:#1d1d1f;--soft:#5c5c61;--line:#e3e3e6;--shade:#f6f6f8}
@media (prefers-color-scheme:dark){:root{--paper:#1c1c1e;--ink:#f2f2f5;--soft:#b0b0b6;--line:#38383c;--shade:#252528}}
*{box-sizing:border-box}
body{margin:0 auto;max-width:1360px;padding:24px;background:var(--paper);color:var(--ink);line-height:1.5;
font-family:system-ui,"Segoe UI",Roboto,"Helvetica Neue","DejaVu Sans",sans-serif}
h1{font-size:26px;margin:0 0 4px}h2{font-size:19px;margin:36px 0 4px;border-top:1px solid var(--line);padding-top:20px}
p{margin:0 0 12px;max-width:82ch;color:var(--soft)}
.figures{display:grid;grid-template-columns:repeat(auto-fit,minmax(min(100%,520px),1fr));gap:16px}
figure{margin:0;border:1px solid var(--line);border-radius:8px;overflow:hidden}
figure svg{display:block;width:100%;height:auto}
.scroll{overflow-x:auto;margin:8px 0 16px}
table{border-collapse:collapse;font-variant-numeric:tabular-nums}
th,td{padding:5px 14px 5px 0;text-align:right;border-bottom:1px solid var(--line);white-space:nowrap}
th:first-child,td:first-child{text-align:left}th{font-weight:600}
blockquote{margin:0 0 12px;padding:8px 14px;background:var(--shade);border-radius:8px;max-width:100ch}
)";

std::string Row(const std::vector<std::string>& cells, const char* tag) {
  std::string row;
  for (const std::string& cell : cells) row += fmt::format("<{0}>{1}</{0}>", tag, Escaped(cell));
  return "<tr>" + row + "</tr>\n";
}

std::string Render(const PageTable& table) {
  std::string html = "<div class=\"scroll\"><table><thead>" + Row(table.header, "th") + "</thead><tbody>\n";
  for (const auto& row : table.rows) html += Row(row, "td");
  return html + "</tbody></table></div>\n";
}

std::string Render(const PageText& text) { return fmt::format("<blockquote>{}</blockquote>\n", Escaped(text.text)); }

std::string Render(const Chart& chart) { return "<figure>" + Svg(chart) + "</figure>\n"; }

// Charts that follow each other share a grid.
std::string Render(const Section& section) {
  std::string html = fmt::format("<section><h2>{}</h2>\n<p>{}</p>\n", Escaped(section.heading), Escaped(section.text));
  bool grid = false;
  for (const auto& part : section.parts) {
    const bool chart = std::holds_alternative<Chart>(part);
    if (chart != grid) html += chart ? "<div class=\"figures\">\n" : "</div>\n";
    grid = chart;
    html += std::visit([](const auto& it) { return Render(it); }, part);
  }
  return html + (grid ? "</div>\n" : "") + "</section>\n";
}

}  // namespace

std::string Html(const Page& page) {
  std::string html = fmt::format(
      "<!doctype html>\n<html lang=\"en\"><head><meta charset=\"utf-8\">"
      "<meta name=\"viewport\" content=\"width=device-width,initial-scale=1\">\n<title>{0}</title><style>{1}</style>"
      "</head><body>\n<h1>{0}</h1>\n<p>{2}</p>\n",
      Escaped(page.title), kPageStyle, Escaped(page.summary));
  if (!page.made_by.empty()) html += fmt::format("<p><code>{}</code></p>\n", Escaped(page.made_by));
  for (const Section& section : page.sections) html += Render(section);
  return html + "</body></html>\n";
}

bool IsPage(const std::filesystem::path& file) {
  std::string begin(4096, '\0');
  std::ifstream in(file, std::ios::binary);
  in.read(begin.data(), std::ssize(begin));
  return begin.find(std::string_view(kPageStyle).substr(0, 64)) != begin.npos;
}

void WritePage(const Page& page, const std::filesystem::path& directory) {
  AtomicDirectory out(directory);
  for (const Section& section : page.sections)
    for (const auto& part : section.parts)
      if (const auto* chart = std::get_if<Chart>(&part)) out.Create(chart->name + ".svg").Write(Svg(*chart));
  out.Create("index.html").Write(Html(page));
  out.Commit();
}

}  // namespace shiftrt
