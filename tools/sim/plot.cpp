#include "plot.h"

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <fstream>
#include <map>
#include <ostream>
#include <set>
#include <sstream>
#include <stdexcept>

namespace seqpar::sim {
namespace {

constexpr double kWidth = 760, kHeight = 440, kLeft = 78, kRight = 190, kTop = 44, kBottom = 52;
constexpr double kLegend = 50, kCharacter = 7.4;  ///< of the legend: beside the names, and of a letter
constexpr double kLogarithmic = 8;                ///< values that differ by more have a logarithmic axis
const char* const kColors[] = {"#1f77b4", "#d62728", "#2ca02c", "#ff7f0e", "#9467bd", "#8c564b",
                               "#17becf", "#e377c2", "#7f7f7f", "#bcbd22", "#003f5c", "#a05195"};

struct Value {
  const char *name, *unit;
  double (*of)(const Row& row, bool forwardOnly);
};

double timeOf(const Row& row, bool forwardOnly) {
  return forwardOnly ? row.outcome.forwardUs : row.outcome.stepUs;
}

const Value kValues[] = {
    {"time", "ms", [](const Row& row, bool forward) { return timeOf(row, forward) * 1e-3; }},
    {"tokens", "tokens/s of a GPU", [](const Row& row, bool) { return row.tokensPerSecond; }},
    {"waiting", "% of the time without a kernel, mean of the ranks",
     [](const Row& row, bool) { return 100 * row.outcome.waitingUs / row.outcome.stepUs; }},
    {"sent", "MB sent by a rank",
     [](const Row& row, bool) { return (row.outcome.localBytes + row.outcome.networkBytes) * 1e-6; }},
    {"network", "MB sent by a rank over the network",
     [](const Row& row, bool) { return row.outcome.networkBytes * 1e-6; }},
};

const Value& valueNamed(const std::string& name) {
  for (const auto& value : kValues) {
    if (name == value.name) return value;
  }
  throw std::invalid_argument("--plot-value " + name + " is not a value of a plot");
}

std::string number(double value) {
  const double absolute = std::abs(value);
  char text[32];
  if (absolute >= 1e6) {
    std::snprintf(text, sizeof(text), "%.4gM", value / 1e6);
  } else if (absolute >= 1e4) {
    std::snprintf(text, sizeof(text), "%.4gk", value / 1e3);
  } else if (absolute >= 1e3) {
    std::snprintf(text, sizeof(text), "%.0f", value);
  } else {
    std::snprintf(text, sizeof(text), "%.3g", value);
  }
  return text;
}

std::string sizeText(double value) {
  const char* unit = "";
  for (const char* const next : {"K", "M", "G"}) {
    if (value < 1024 || std::fmod(value, 1024) != 0) break;
    value /= 1024;
    unit = next;
  }
  char text[32];
  std::snprintf(text, sizeof(text), "%g%s", value, unit);
  return text;
}

std::string escaped(const std::string& text) {
  std::string out;
  for (const char c : text) {
    if (c == '&') {
      out += "&amp;";
    } else if (c == '<') {
      out += "&lt;";
    } else {
      out += c;
    }
  }
  return out;
}

/// Maps values to a range of pixels.
struct Axis {
  double low = 0, high = 1, from = 0, to = 1;
  bool logarithmic = false;
  double at(double value) const {
    const auto of = [&](double v) { return logarithmic ? std::log(v) : v; };
    if (high <= low) return (from + to) / 2;
    return from + (to - from) * (of(value) - of(low)) / (of(high) - of(low));
  }
};

std::vector<double> ticksOf(const Axis& axis) {
  std::vector<double> ticks;
  if (axis.logarithmic) {
    const bool decades = axis.high / axis.low > 1e3;
    for (double decade = std::pow(10, std::floor(std::log10(axis.low))); decade <= axis.high; decade *= 10) {
      for (const double factor : {1.0, 2.0, 5.0}) {
        const double tick = decade * factor;
        if (tick >= axis.low * 0.999 && tick <= axis.high * 1.001 && (!decades || factor == 1)) ticks.push_back(tick);
      }
    }
    return ticks;
  }
  const double raw = (axis.high - axis.low) / 5, power = std::pow(10, std::floor(std::log10(raw)));
  double step = power;
  for (const double factor : {2.0, 5.0, 10.0}) {
    if (step < raw) step = power * factor;
  }
  for (double tick = 0; tick <= axis.high * 1.001; tick += step) ticks.push_back(tick);
  return ticks;
}

class Svg {
 public:
  Svg(std::ostream& out, double width) : out_(out) {
    out_ << "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 " << width << " " << kHeight << "\" width=\""
         << width << "\" height=\"" << kHeight
         << "\" style=\"font-family: 'DejaVu Sans', Verdana, sans-serif\" role=\"img\">\n"
         << "<rect width=\"100%\" height=\"100%\" fill=\"#ffffff\"/>\n";
  }
  Svg(const Svg&) = delete;
  Svg& operator=(const Svg&) = delete;
  ~Svg() { out_ << "</svg>\n"; }

  void text(double x, double y, const std::string& words, const char* anchor, double size,
            const std::string& more = "") {
    out_ << "<text x=\"" << px(x) << "\" y=\"" << px(y) << "\" font-size=\"" << size << "\" text-anchor=\"" << anchor
         << "\" fill=\"#222222\"" << more << ">" << escaped(words) << "</text>\n";
  }
  void line(double x0, double y0, double x1, double y1, const std::string& color, double width,
            const char* dashes = "") {
    out_ << "<line" << dashes << " x1=\"" << px(x0) << "\" y1=\"" << px(y0) << "\" x2=\"" << px(x1) << "\" y2=\""
         << px(y1) << "\" stroke=\"" << color << "\" stroke-width=\"" << width << "\"/>\n";
  }
  void curve(const std::vector<std::pair<double, double>>& points, const std::string& color, const char* dashes) {
    out_ << "<polyline" << dashes << " fill=\"none\" stroke=\"" << color << "\" stroke-width=\"2\" points=\"";
    for (const auto& [x, y] : points) out_ << px(x) << "," << px(y) << " ";
    out_ << "\"/>\n";
    for (const auto& [x, y] : points) {
      out_ << "<circle cx=\"" << px(x) << "\" cy=\"" << px(y) << "\" r=\"3\" fill=\"" << color << "\"/>\n";
    }
  }
  void square(double x, double y, const std::string& color) {
    out_ << "<rect x=\"" << px(x - 4.5) << "\" y=\"" << px(y - 4.5)
         << "\" width=\"9\" height=\"9\" fill=\"#ffffff\" stroke=\"" << color << "\" stroke-width=\"2\"/>\n";
  }

 private:
  static std::string px(double value) {
    char text[32];
    std::snprintf(text, sizeof(text), "%.1f", value);
    return text;
  }
  std::ostream& out_;
};

using Points = std::vector<std::pair<double, double>>;

Axis axisOf(double low, double high, double from, double to, bool mayStartAtZero) {
  Axis axis{low, high, from, to, high / low > kLogarithmic || !mayStartAtZero};
  if (axis.logarithmic && mayStartAtZero) {
    axis.low *= 0.8;
    axis.high *= 1.25;
  } else if (mayStartAtZero) {
    axis.low = 0;
    axis.high *= 1.08;
  }
  return axis;
}

}  // namespace

std::vector<std::string> plotValues() {
  std::vector<std::string> names;
  for (const auto& value : kValues) names.emplace_back(value.name);
  return names;
}

size_t mostCurves() {
  return 2 * std::size(kColors);
}

void writePlot(std::ostream& out, const std::vector<Row>& rows, const PlotOptions& options) {
  const Value& value = valueNamed(options.value);
  std::set<int> ranks;
  for (const auto& row : rows) ranks.insert(row.ranks);
  const bool bySize = ranks.size() < 2;
  std::vector<std::string> names;
  std::map<std::string, Points> curves, dots;
  std::set<double> places;
  double low = INFINITY, high = 0;
  const auto add = [&](std::map<std::string, Points>& to, const std::string& name, double x, double y) {
    if (!(y > 0)) return;
    if (std::find(names.begin(), names.end(), name) == names.end()) names.push_back(name);
    to[name].emplace_back(x, y);
    places.insert(x);
    low = std::min(low, y);
    high = std::max(high, y);
  };
  for (const auto& row : rows) {
    if (!row.outcome.refusal.empty()) continue;
    add(curves, row.name(), bySize ? static_cast<double>(row.size) : row.ranks, value.of(row, options.forwardOnly));
  }
  if (curves.empty()) throw std::invalid_argument("--plot: no row has the value " + options.value);
  for (const auto& point : options.published) add(dots, point.algorithm, point.x, point.value);
  if (names.size() > mostCurves()) {
    throw std::invalid_argument("--plot: the rows have " + std::to_string(names.size()) +
                                " algorithms, expected at most " + std::to_string(mostCurves()) +
                                "; name some with --algo");
  }

  size_t longest = 0;
  for (const auto& name : names) longest = std::max(longest, name.size());
  const double edge = kWidth - kRight;  // of the curves; the legend is as wide as its names
  const double width = edge + std::max(kRight, kLegend + kCharacter * static_cast<double>(longest));
  const Axis x = axisOf(*places.begin(), *places.rbegin(), kLeft, edge, false);
  const Axis y = axisOf(low, high, kHeight - kBottom, kTop, true);
  Svg svg(out, width);
  svg.text(kLeft, 24, options.title, "start", 14, " font-weight=\"bold\"");
  for (const double tick : ticksOf(y)) {
    svg.line(kLeft, y.at(tick), edge, y.at(tick), "#e2e2e2", 1);
    svg.text(kLeft - 7, y.at(tick) + 4, number(tick), "end", 11);
  }
  for (const double place : places) {
    svg.line(x.at(place), kHeight - kBottom, x.at(place), kHeight - kBottom + 5, "#555555", 1);
    svg.text(x.at(place), kHeight - kBottom + 19, sizeText(place), "middle", 11);
  }
  svg.line(kLeft, kHeight - kBottom, edge, kHeight - kBottom, "#555555", 1);
  svg.line(kLeft, kTop, kLeft, kHeight - kBottom, "#555555", 1);
  svg.text((kLeft + edge) / 2, kHeight - 12,
           bySize            ? "tokens or bytes"
           : options.onHosts ? "ranks"
                             : "GPUs",
           "middle", 12);
  svg.text(16, (kTop + kHeight - kBottom) / 2, value.unit, "middle", 12,
           " transform=\"rotate(-90 16 " + std::to_string(static_cast<int>((kTop + kHeight - kBottom) / 2)) + ")\"");
  const double line = std::min(20.0, (kHeight - kTop - 20) / static_cast<double>(names.size() + 1));  // of the legend
  for (size_t i = 0; i < names.size(); ++i) {
    const std::string color = kColors[i % std::size(kColors)];
    const char* const dashes = i < std::size(kColors) ? "" : " stroke-dasharray=\"6 4\"";
    Points pixels;
    for (const auto& [place, height] : curves[names[i]]) pixels.emplace_back(x.at(place), y.at(height));
    std::sort(pixels.begin(), pixels.end());
    if (!pixels.empty()) svg.curve(pixels, color, dashes);
    for (const auto& [place, height] : dots[names[i]]) svg.square(x.at(place), y.at(height), color);
    const double top = kTop + 10 + line * static_cast<double>(i), left = edge + 16;
    svg.line(left, top, left + 22, top, color, 3, dashes);
    svg.text(left + 28, top + 4, names[i], "start", 12);
  }
  if (!options.published.empty()) {
    const double top = kTop + 10 + line * static_cast<double>(names.size()), left = edge + 16;
    svg.square(left + 11, top, "#555555");
    svg.text(left + 28, top + 4, "published", "start", 12);
  }
}

std::vector<Published> readPublished(const std::string& path) {
  std::ifstream file(path);
  if (!file) throw std::invalid_argument("--published: cannot read " + path);
  std::vector<Published> points;
  std::string line;
  std::getline(file, line);
  while (std::getline(file, line)) {
    std::stringstream parts(line);
    Published point;
    char comma = 0;
    if (!std::getline(parts, point.algorithm, ',') || !(parts >> point.x >> comma >> point.value) || comma != ',' ||
        !(point.x > 0)) {
      throw std::invalid_argument("--published: the line '" + line + "' is not algorithm,x,value");
    }
    points.push_back(std::move(point));
  }
  return points;
}

}  // namespace seqpar::sim
