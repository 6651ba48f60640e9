// Draws time against size: an SVG picture with logarithmic axes.
#pragma once

#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace seqpar::perf {

enum class RowKind {
  Library,  ///< measured, of seqpar
  Peer,     ///< measured, of something that it is compared with
  Limit     ///< what the hardware allows, computed or measured
};

/// A line of the picture.
struct Series {
  std::string name;
  RowKind kind = RowKind::Library;
  std::vector<std::pair<double, double>> points;  ///< bytes, us
};

/// Part of the picture with axes of its own.
struct Panel {
  std::string title;
  std::vector<Series> series;
};

/// The whole picture. Points without a positive size and a positive, finite time are left out, and so are panels and
/// series without points.
std::string drawPlot(std::string_view title, std::string_view subtitle, const std::vector<Panel>& panels);

}  // namespace seqpar::perf
