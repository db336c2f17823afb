// SPDX-License-Identifier: Apache-2.0
#include "tools/report/chart.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <limits>

namespace shiftrt {

namespace {

constexpr double kWidth = 640, kPlotHeight = 300, kSquare = 420, kFont = 13, kLineHeight = 20;
// The width of a character of the fonts named below, in ems. It is on the wide side, so that nothing is cut off.
constexpr double kCharacter = 0.58;
constexpr int kColors = 8;

// Okabe and Ito's colours, which people with any colour vision can tell apart; lighter ones on dark backgrounds. The
// rules are the same in every chart, so that several can stand in one page.
constexpr const char* kChartStyle = R"(
.bg{fill:#fff}.ink{fill:#1d1d1f}.soft{fill:#5c5c61}.grid{stroke:#e3e3e6}.axis{stroke:#8a8a8f}
text{font-family:system-ui,"Segoe UI",Roboto,"Helvetica Neue","DejaVu Sans",sans-serif;font-size:13px}
.title{font-size:15px;font-weight:600}
.s0{stroke:#0072b2}.s1{stroke:#d55e00}.s2{stroke:#009e73}.s3{stroke:#cc79a7}
.s4{stroke:#b8860b}.s5{stroke:#3a9bd9}.s6{stroke:#6b5bd2}.s7{stroke:#7f7f7f}
.f0{fill:#0072b2}.f1{fill:#d55e00}.f2{fill:#009e73}.f3{fill:#cc79a7}
.f4{fill:#b8860b}.f5{fill:#3a9bd9}.f6{fill:#6b5bd2}.f7{fill:#7f7f7f}
@media (prefers-color-scheme:dark){
.bg{fill:#1c1c1e}.ink{fill:#f2f2f5}.soft{fill:#b0b0b6}.grid{stroke:#38383c}.axis{stroke:#77777d}
.s0{stroke:#4ea8e8}.s1{stroke:#ff8f4a}.s2{stroke:#33c79a}.s3{stroke:#ea9dc8}
.s4{stroke:#f0b93e}.s5{stroke:#9bd3f7}.s6{stroke:#a99bff}.s7{stroke:#b5b5b5}
.f0{fill:#4ea8e8}.f1{fill:#ff8f4a}.f2{fill:#33c79a}.f3{fill:#ea9dc8}
.f4{fill:#f0b93e}.f5{fill:#9bd3f7}.f6{fill:#a99bff}.f7{fill:#b5b5b5}}
)";

double TextWidth(std::string_view text) { return kFont * kCharacter * static_cast<double>(text.size()); }

// A range of values on one axis, and where they lie on the page.
struct Axis {
  bool log = false;
  double low = std::numeric_limits<double>::infinity(), high = -low;
  double from = 0, to = 0;  // on the page

  // Magnitudes whose differences and ratios stay finite; NaN is none.
  bool Shows(double value) const { return std::abs(value) <= 1e100 && (!log || value >= 1e-100); }
  void Include(double value) {
    low = std::min(low, value);
    high = std::max(high, value);
  }
  // A little room at the ends, and some extent where all values are one.
  void Pad(double share) {
    if (log) {
      const double factor = low == high ? 2.0 : std::pow(high / low, share);
      low /= factor;
      high *= factor;
    } else {
      const double room = low == high ? std::max(1e-3, 0.1 * std::abs(low)) : share * (high - low);
      low -= room;
      high += room;
    }
  }
  double At(double value) const {
    const double share = log ? std::log(value / low) / std::log(high / low) : (value - low) / (high - low);
    return from + share * (to - from);
  }
};

// 1, 10, 100, ...; with 2 and 5 between them, or all that a narrow range has.
std::vector<double> LogTicks(double low, double high) {
  const double decades = std::log10(high / low);
  if (decades < 0.7) return NiceTicks(low, high, 5);
  const double every = std::ceil(decades / 8);
  std::vector<double> ticks;
  for (double power = std::floor(std::log10(low)); power <= std::log10(high); power += every)
    for (double digit : {1.0, 2.0, 5.0}) {
      const double tick = digit * std::pow(10.0, power);
      if ((digit == 1 || decades < 2.5) && tick >= low && tick <= high) ticks.push_back(tick);
    }
  return ticks;
}

constexpr int kDigits = 4;

std::string Number(double value, int digits = kDigits) {
  const double size = std::abs(value);
  if (size != 0 && (size >= 1e5 || size < 1e-3)) return fmt::format("{:.{}e}", value, digits - kDigits);
  return fmt::format("{:.{}g}", value, digits);
}

// The labels of the ticks of an axis, ascending, with so many digits that each is right to a hundredth of the smallest
// step.
std::vector<std::string> Labels(const std::vector<double>& ticks) {
  constexpr int kMostDigits = 15;
  double step = std::numeric_limits<double>::infinity();
  for (size_t i = 1; i < ticks.size(); ++i) step = std::min(step, ticks[i] - ticks[i - 1]);
  std::vector<std::string> labels(ticks.size());
  for (int digits = kDigits; digits <= kMostDigits; ++digits) {
    bool right = true;
    for (size_t i = 0; i < ticks.size(); ++i) {
      labels[i] = Number(ticks[i], digits);
      right = right && (ticks.size() == 1 || std::abs(std::stod(labels[i]) - ticks[i]) <= 0.01 * step);
    }
    if (right) break;
  }
  return labels;
}

bool HasPoint(const Series& series, const Axis& x, const Axis& y, size_t i) {
  return x.Shows(series.x[i]) && y.Shows(series.y[i]);
}

class Drawing {
 public:
  explicit Drawing(const Chart& chart) : chart_(chart) {
    // Bars are one wide, and a projection has one scale: both stand on linear axes.
    const bool bars = std::any_of(chart.series.begin(), chart.series.end(),
                                  [](const Series& series) { return series.mark == Mark::kBars; });
    x_.log = chart.log_x && !chart.square && !bars;
    y_.log = chart.log_y && !chart.square;
  }

  std::string Draw() {
    Scale();
    const double legend = Legend();
    const double plot_top = legend + 8;
    Place(plot_top);
    if (empty_) {
      body_ += Text(kWidth / 2, (plot_top + bottom_) / 2, "middle", "soft", "nothing to show");
    } else {
      Axes();
      for (const Series& series : chart_.series) Draw(series);
    }
    const double height = bottom_ + (chart_.square ? 16 : 52);
    return fmt::format(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {0:g} {1:g}\" width=\"{0:g}\" height=\"{1:g}\" "
        "role=\"img\" aria-label=\"{2}\"><style>{3}</style><rect class=\"bg\" width=\"{0:g}\" height=\"{1:g}\"/>{4}"
        "</svg>\n",
        kWidth, height, Escaped(chart_.title), kChartStyle, body_);
  }

 private:
  static std::string Text(double x, double y, const char* anchor, const char* type, const std::string& text) {
    return fmt::format("<text class=\"{}\" x=\"{:.1f}\" y=\"{:.1f}\" text-anchor=\"{}\">{}</text>", type, x, y, anchor,
                       Escaped(text));
  }

  void Scale() {
    for (const Series& series : chart_.series) {
      for (size_t i = 0; i < series.x.size(); ++i) {
        if (!HasPoint(series, x_, y_, i)) continue;
        empty_ = false;
        x_.Include(series.x[i]);
        y_.Include(series.y[i]);
        bars_ = bars_ || series.mark == Mark::kBars;
      }
    }
    if (empty_) return;
    if (!y_.log && (bars_ || chart_.from_zero)) y_.Include(0);
    if (bars_ || !chart_.x_names.empty()) {
      x_.low -= 0.6;
      x_.high += 0.6;
    } else {
      x_.Pad(0.02);
    }
    const bool on_zero = !y_.log && y_.low == 0;
    y_.Pad(0.05);
    if (on_zero) y_.low = 0;
  }

  // Title and legend; where they end.
  double Legend() {
    body_ += Text(16, 24, "start", "ink title", chart_.title);
    double x = 16, y = 24;
    bool any = false;
    for (const Series& series : chart_.series) {
      if (series.name.empty()) continue;
      const double width = 30 + TextWidth(series.name) + 14;
      if (!any || x + width > kWidth - 8) {
        x = 16;
        y += kLineHeight + (any ? 0 : 4);
      }
      any = true;
      body_ += Key(series, x, y - 4.5) + Text(x + 30, y, "start", "ink", series.name);
      x += width;
    }
    return y + 4;
  }

  std::string Key(const Series& series, double x, double y) const {
    if (series.mark == Mark::kBars)
      return fmt::format("<rect class=\"f{}\" x=\"{:.1f}\" y=\"{:.1f}\" width=\"14\" height=\"10\"/>",
                         series.color % kColors, x + 8, y - 5);
    std::string key;
    if (series.mark != Mark::kDots)
      key = fmt::format("<path class=\"s{}\" d=\"M{:.1f} {:.1f}h24\" fill=\"none\" stroke-width=\"2\"{}/>",
                        series.color % kColors, x, y, Dashes(series));
    if (series.mark != Mark::kLine)
      key += fmt::format("<circle class=\"f{}\" cx=\"{:.1f}\" cy=\"{:.1f}\" r=\"3.5\"/>", series.color % kColors,
                         x + 12, y);
    return key;
  }

  static const char* Dashes(const Series& series) {
    return series.color < kColors       ? ""
           : series.color < 2 * kColors ? " stroke-dasharray=\"6 3\""
                                        : " stroke-dasharray=\"2 3\"";
  }

  void Place(double top) {
    top_ = top;
    if (chart_.square) {
      Square();
      return;
    }
    bottom_ = top + kPlotHeight;
    y_.from = bottom_;
    y_.to = top;
    if (empty_) return;
    y_ticks_ = y_.log ? LogTicks(y_.low, y_.high) : NiceTicks(y_.low, y_.high, 6);
    double widest = 0;
    y_labels_ = Labels(y_ticks_);
    for (const std::string& label : y_labels_) widest = std::max(widest, TextWidth(label));
    x_.from = 16 + (chart_.y_label.empty() ? 0 : kLineHeight) + widest + 8;
    x_.to = kWidth - 20;
  }

  // Both axes at one scale, centred.
  void Square() {
    bottom_ = top_ + kSquare;
    if (empty_) return;
    const double extent = std::max(x_.high - x_.low, y_.high - y_.low);
    for (Axis* axis : {&x_, &y_}) {
      const double middle = (axis->low + axis->high) / 2;
      axis->low = middle - extent / 2;
      axis->high = middle + extent / 2;
    }
    x_.from = (kWidth - kSquare) / 2;
    x_.to = x_.from + kSquare;
    y_.from = bottom_;
    y_.to = top_;
  }

  void Axes() {
    if (chart_.square) {
      body_ += fmt::format(
          "<rect class=\"axis\" x=\"{:.1f}\" y=\"{:.1f}\" width=\"{:.1f}\" height=\"{:.1f}\" fill=\"none\"/>", x_.from,
          top_, kSquare, kSquare);
      return;
    }
    for (size_t i = 0; i < y_ticks_.size(); ++i) {
      const double y = y_.At(y_ticks_[i]);
      body_ += fmt::format("<path class=\"grid\" d=\"M{:.1f} {:.1f}H{:.1f}\"/>", x_.from, y, x_.to) +
               Text(x_.from - 8, y + 4.5, "end", "soft", y_labels_[i]);
    }
    XTicks();
    body_ += fmt::format("<path class=\"axis\" d=\"M{:.1f} {:.1f}V{:.1f}H{:.1f}\" fill=\"none\"/>", x_.from, top_,
                         bottom_, x_.to);
    body_ += Text((x_.from + x_.to) / 2, bottom_ + 42, "middle", "ink", chart_.x_label);
    if (!chart_.y_label.empty())
      body_ += fmt::format(
          "<text class=\"ink\" transform=\"translate(22 {:.1f}) rotate(-90)\" text-anchor=\"middle\">{}</text>",
          (top_ + bottom_) / 2, Escaped(chart_.y_label));
  }

  void XTicks() {
    std::vector<std::pair<double, std::string>> ticks;
    for (size_t i = 0; i < chart_.x_names.size(); ++i) ticks.push_back({static_cast<double>(i), chart_.x_names[i]});
    if (ticks.empty()) {
      std::vector<double> at = x_.log ? LogTicks(x_.low, x_.high) : NiceTicks(x_.low, x_.high, 10);
      if (chart_.whole_x) std::erase_if(at, [](double tick) { return tick != std::round(tick); });
      const std::vector<std::string> labels = Labels(at);
      ticks.reserve(at.size());
      for (size_t i = 0; i < at.size(); ++i) ticks.push_back({at[i], labels[i]});
    }
    // A label that would touch the one before it is left out; categories stand on two lines in turn before that.
    double free[2] = {-1e9, -1e9};
    const bool two_lines = !chart_.x_names.empty() && Crowded(ticks);
    int line = 0;
    for (const auto& [value, label] : ticks) {
      const double x = x_.At(value), half = TextWidth(label) / 2;
      body_ += fmt::format("<path class=\"axis\" d=\"M{:.1f} {:.1f}v5\"/>", x, bottom_);
      if (x - half < free[line]) continue;
      body_ += Text(x, bottom_ + 18 + (line == 1 ? 13 : 0), "middle", "soft", label);
      free[line] = x + half + 6;
      if (two_lines) line = 1 - line;
    }
  }

  bool Crowded(const std::vector<std::pair<double, std::string>>& ticks) const {
    for (size_t i = 1; i < ticks.size(); ++i)
      if (x_.At(ticks[i].first) - x_.At(ticks[i - 1].first) <
          (TextWidth(ticks[i].second) + TextWidth(ticks[i - 1].second)) / 2 + 6)
        return true;
    return false;
  }

  void Draw(const Series& series) {
    const int color = series.color % kColors;
    if (series.mark == Mark::kLine || series.mark == Mark::kLineAndDots) {
      std::string path;
      bool pen_down = false;
      for (size_t i = 0; i < series.x.size(); ++i) {
        const bool shown = HasPoint(series, x_, y_, i);
        if (shown) path += fmt::format("{}{:.1f} {:.1f}", pen_down ? "L" : "M", x_.At(series.x[i]), y_.At(series.y[i]));
        pen_down = shown;
      }
      if (!path.empty())
        body_ +=
            fmt::format("<path class=\"s{}\" d=\"{}\" fill=\"none\" stroke-width=\"2\" stroke-linejoin=\"round\"{}/>",
                        color, path, Dashes(series));
    }
    if (series.mark == Mark::kLine) return;
    for (size_t i = 0; i < series.x.size(); ++i) {
      if (!HasPoint(series, x_, y_, i)) continue;
      const double x = x_.At(series.x[i]), y = y_.At(series.y[i]);
      if (series.mark == Mark::kBars) {
        const double base = y_.log ? y_.from : y_.At(0), half = 0.35 * (x_.At(1) - x_.At(0));
        body_ += fmt::format("<rect class=\"f{}\" x=\"{:.1f}\" y=\"{:.1f}\" width=\"{:.1f}\" height=\"{:.1f}\">", color,
                             x - half, std::min(y, base), 2 * half, std::abs(base - y));
        body_ += Tip(series, i) + "</rect>";
      } else {
        body_ += fmt::format("<circle class=\"f{}\" cx=\"{:.1f}\" cy=\"{:.1f}\" r=\"{}\"{}>", color, x, y,
                             chart_.square ? 2.5 : 3.5, chart_.square ? " fill-opacity=\".6\"" : "");
        body_ += (chart_.square ? "" : Tip(series, i)) + "</circle>";
      }
    }
  }

  // The text that is shown while the pointer rests on a point.
  std::string Tip(const Series& series, size_t i) const {
    const double x = series.x[i];
    const bool named = !chart_.x_names.empty() && x >= 0 && x < static_cast<double>(chart_.x_names.size());
    return fmt::format("<title>{}{}{}: {:.5g}</title>", Escaped(series.name), series.name.empty() ? "" : ", ",
                       Escaped(named ? chart_.x_names[static_cast<size_t>(x)] : Number(x)), series.y[i]);
  }

  const Chart& chart_;
  Axis x_, y_;
  bool empty_ = true, bars_ = false;
  double top_ = 0, bottom_ = 0;
  std::vector<double> y_ticks_;
  std::vector<std::string> y_labels_;
  std::string body_;
};

}  // namespace

std::string Escaped(std::string_view text) {
  std::string out;
  for (char c : text) {
    switch (c) {
      case '&': out += "&amp;"; break;
      case '<': out += "&lt;"; break;
      case '>': out += "&gt;"; break;
      case '"': out += "&quot;"; break;
      default: out += static_cast<unsigned char>(c) < 0x20 && c != '\n' && c != '\t' ? ' ' : c;  // not allowed in XML
    }
  }
  return out;
}

std::vector<double> NiceTicks(double low, double high, int count) {
  const double rough = (high - low) / count;
  if (!(rough > 0) || !std::isfinite(rough)) return {};
  const double power = std::pow(10.0, std::floor(std::log10(rough)));
  const double digit = rough / power;
  const double step = (digit < 1.5 ? 1 : digit < 3.5 ? 2 : digit < 7.5 ? 5 : 10) * power;
  std::vector<double> ticks;
  // Counted, not added up, so that rounding neither drifts nor loops.
  const double first = std::ceil(low / step - 1e-9);
  for (double k = first; k <= first + 4 * count && k * step <= high + 1e-9 * step; ++k) ticks.push_back(k * step + 0.0);
  return ticks;
}

std::string Svg(const Chart& chart) { return Drawing(chart).Draw(); }

}  // namespace shiftrt
