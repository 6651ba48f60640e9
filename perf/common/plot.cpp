#include "plot.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdarg>
#include <cstdio>

namespace seqpar::perf {
namespace {

constexpr double kWidth = 1080, kPanelHeight = 620, kHead = 64;
constexpr double kLeft = 84, kRight = 300, kTop = 40, kBottom = 62;  ///< what surrounds the axes of a panel
constexpr double kLegendStep = 21;

// Okabe and Ito's colours, told apart by most colour-blind people, and two more.
constexpr std::array<const char*, 9> kColours{"#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00",
                                              "#56b4e9", "#7a4fb5", "#8c6d31", "#333333"};
constexpr std::array<const char*, 3> kDashes{"7 4", "2 3", "9 3 2 3"};

[[gnu::format(printf, 1, 2)]] std::string format(const char* pattern, ...) {
  std::array<char, 1024> text{};
  va_list arguments;
  va_start(arguments, pattern);
  std::vsnprintf(text.data(), text.size(), pattern, arguments);
  va_end(arguments);
  return text.data();
}

std::string escaped(std::string_view text) {
  std::string out;
  for (const char c : text) {
    if (c == '<') {
      out += "&lt;";
    } else if (c == '>') {
      out += "&gt;";
    } else if (c == '&') {
      out += "&amp;";
    } else {
      out += c;
    }
  }
  return out;
}

std::string sizeText(double bytes) {
  constexpr std::array<const char*, 4> kUnits{"B", "KiB", "MiB", "GiB"};
  size_t unit = 0;
  for (; bytes >= 1024 && unit + 1 < kUnits.size(); ++unit) bytes /= 1024;
  return format("%g %s", bytes, kUnits[unit]);
}

bool drawable(const std::pair<double, double>& point) {
  return point.first > 0 && std::isfinite(point.second) && point.second > 0;
}

/// A logarithmic axis from value range to picture range.
struct Axis {
  double least, most, begin, end;
  double at(double value) const {
    const double share = most > least ? std::log(value / least) / std::log(most / least) : 0.5;
    return begin + share * (end - begin);
  }
};

struct Style {
  const char* colour;
  std::string dash;
  double width;
  int marker;  ///< shape, or none below 0
};

Style styleOf(RowKind kind, size_t index) {
  switch (kind) {
    case RowKind::Library:
      // The first one is wide, since it may coincide with another.
      return {kColours[index % kColours.size()], "", index == 0 ? 5.0 : 2.2, static_cast<int>(index % 4)};
    case RowKind::Peer:
      return {kColours[(index + 4) % kColours.size()], kDashes[0], 1.5, static_cast<int>((index + 2) % 4)};
    case RowKind::Limit:
      break;
  }
  return {"#777777", kDashes[1 + index % 2], 1.8, -1};
}

/// A point; `tip` is shown by viewers that can.
std::string marker(const Style& style, double x, double y, std::string_view tip) {
  const std::string title = tip.empty() ? "" : "<title>" + escaped(tip) + "</title>";
  const std::string open = format("fill=\"%s\">", style.colour) + title + "</";
  switch (style.marker) {
    case 0:
      return format("<circle cx=\"%.1f\" cy=\"%.1f\" r=\"3.6\" ", x, y) + open + "circle>\n";
    case 1:
      return format("<rect x=\"%.1f\" y=\"%.1f\" width=\"6.6\" height=\"6.6\" ", x - 3.3, y - 3.3) + open + "rect>\n";
    case 2:
      return format("<path d=\"M%.1f %.1fl4.4 7.4h-8.8z\" ", x, y - 4.6) + open + "path>\n";
    case 3:
      return format("<path d=\"M%.1f %.1fl4.4 4.6l-4.4 4.6l-4.4 -4.6z\" ", x, y - 4.6) + open + "path>\n";
    default:
      return "";
  }
}

std::string stroke(const Style& style) {
  std::string text = format("fill=\"none\" stroke=\"%s\" stroke-width=\"%.1f\"", style.colour, style.width);
  if (!style.dash.empty()) text += " stroke-dasharray=\"" + style.dash + "\"";
  return text;
}

std::string gridLine(double x1, double y1, double x2, double y2, bool strong) {
  return format("<line x1=\"%.1f\" y1=\"%.1f\" x2=\"%.1f\" y2=\"%.1f\" stroke=\"%s\"/>\n", x1, y1, x2, y2,
                strong ? "#c4c4c4" : "#ececec");
}

std::string label(double x, double y, const char* anchor, std::string_view text, const char* more = "") {
  return format("<text x=\"%.1f\" y=\"%.1f\" text-anchor=\"%s\" %s>", x, y, anchor, more) + escaped(text) + "</text>\n";
}

std::string drawGrid(const Axis& x, const Axis& y) {
  std::string out;
  // At most about ten sizes are named.
  const double sizes = std::log2(x.most / x.least);
  const int every = std::max(1, static_cast<int>(std::ceil(sizes / 10)));
  for (int power = static_cast<int>(std::ceil(std::log2(x.least))); std::exp2(power) <= x.most * 1.001; ++power) {
    const double at = x.at(std::exp2(power));
    const bool named = power % every == 0;
    out += gridLine(at, y.begin, at, y.end, named);
    if (named) out += label(at, y.begin + 20, "middle", sizeText(std::exp2(power)));
  }
  for (int decade = static_cast<int>(std::floor(std::log10(y.least))); std::pow(10, decade) <= y.most; ++decade) {
    for (int digit = 1; digit <= 9; ++digit) {
      const double value = digit * std::pow(10, decade);
      if (value < y.least * 0.999 || value > y.most * 1.001) continue;
      out += gridLine(x.begin, y.at(value), x.end, y.at(value), digit == 1);
      if (digit == 1 || digit == 2 || digit == 5) {
        out += label(x.begin - 8, y.at(value) + 4, "end", format("%g", value));
      }
    }
  }
  return out + format("<rect x=\"%.1f\" y=\"%.1f\" width=\"%.1f\" height=\"%.1f\" fill=\"none\" stroke=\"#888\"/>\n",
                      x.begin, y.end, x.end - x.begin, y.begin - y.end);
}

std::string drawSeries(const Series& series, const Style& style, const Axis& x, const Axis& y) {
  std::string path, markers;
  for (const auto& point : series.points) {
    const double px = x.at(point.first);
    const double py = y.at(point.second);
    path += format("%s%.1f %.1f", path.empty() ? "M" : "L", px, py);
    markers += marker(style, px, py, series.name + ", " + sizeText(point.first) + format(": %.4g us", point.second));
  }
  return "<path d=\"" + path + "\" " + stroke(style) + "/>\n" + markers;
}

std::string drawPanel(Panel panel, double top) {
  double leastX = INFINITY, mostX = 0, leastY = INFINITY, mostY = 0;
  for (Series& series : panel.series) {
    std::erase_if(series.points, [](const auto& point) { return !drawable(point); });
    std::sort(series.points.begin(), series.points.end());
    for (const auto& [bytes, us] : series.points) {
      leastX = std::min(leastX, bytes);
      mostX = std::max(mostX, bytes);
      leastY = std::min(leastY, us);
      mostY = std::max(mostY, us);
    }
  }
  const Axis x{leastX / 1.15, mostX * 1.15, kLeft, kWidth - kRight};
  const Axis y{leastY / 1.3, mostY * 1.3, top + kPanelHeight - kBottom, top + kTop};
  std::string out = label(kLeft, top + kTop - 12, "start", panel.title, "font-weight=\"bold\"") + drawGrid(x, y);
  out += label((x.begin + x.end) / 2, y.begin + 46, "middle", "size of one rank's data");
  const double middle = (y.begin + y.end) / 2;
  out += label(26, middle, "middle", "time, us", format("transform=\"rotate(-90 26 %.1f)\"", middle).c_str());

  std::array<size_t, 3> counts{};
  double legend = top + kTop + 10;
  int shown = -1;
  constexpr std::array<const char*, 3> kHeadings{"seqpar", "peers", "limits"};
  for (const Series& series : panel.series) {
    if (series.points.empty()) continue;
    const int kind = static_cast<int>(series.kind);
    const Style style = styleOf(series.kind, counts[static_cast<size_t>(kind)]++);
    out += drawSeries(series, style, x, y);
    const double at = x.end + 18;
    if (kind != shown) {
      if (shown >= 0) legend += kLegendStep / 2;
      out += label(at, legend + 4, "start", kHeadings[static_cast<size_t>(kind)], "font-weight=\"bold\"");
      legend += kLegendStep;
      shown = kind;
    }
    out += format("<path d=\"M%.1f %.1fh36\" ", at, legend) + stroke(style) + "/>\n";
    out += marker(style, at + 18, legend, "") + label(at + 44, legend + 4, "start", series.name);
    legend += kLegendStep;
  }
  return out;
}

}  // namespace

std::string drawPlot(std::string_view title, std::string_view subtitle, const std::vector<Panel>& panels) {
  std::string body;
  double top = kHead;
  for (Panel panel : panels) {
    std::erase_if(panel.series, [](const Series& series) {
      return std::none_of(series.points.begin(), series.points.end(), drawable);
    });
    if (panel.series.empty()) continue;
    std::stable_sort(panel.series.begin(), panel.series.end(),
                     [](const Series& a, const Series& b) { return a.kind < b.kind; });
    body += drawPanel(std::move(panel), top);
    top += kPanelHeight;
  }
  return format(
             "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 %g %g\" width=\"%g\" height=\"%g\" "
             "font-family=\"Helvetica, Arial, sans-serif\" font-size=\"13\" fill=\"#222\">\n",
             kWidth, top, kWidth, top) +
         "<rect width=\"100%\" height=\"100%\" fill=\"white\"/>\n" +
         label(kLeft, 30, "start", title, "font-size=\"18\" font-weight=\"bold\"") +
         label(kLeft, 52, "start", subtitle, "fill=\"#555\"") + body + "</svg>\n";
}

}  // namespace seqpar::perf
