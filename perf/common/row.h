// Rows of a report, and its columns.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "timing.h"

namespace seqpar::perf {

enum class RowKind {
  Library,  ///< measured, of seqpar
  Peer,     ///< measured, of a peer
  Limit     ///< the hardware's limit, computed or measured
};

/// The role of a label column's values in a plot.
enum class InPlot {
  Series,  ///< part of a line's name
  Panel,   ///< each value gets a separate plot
  Nothing  ///< not used
};

struct Column {
  std::string name, unit;
  int width;
  InPlot inPlot = InPlot::Series;
};

/// The columns that differ between perf binaries.
struct Layout {
  std::vector<Column> labels;  ///< texts between count and the times
  bool inPlace = false;        ///< whether the in-place half is shown
  std::vector<Column> extras;  ///< numeric columns after the times
};

struct Row {
  size_t bytes = 0, count = 0;
  std::vector<std::string> labels;
  Timing outOfPlace;
  std::optional<Timing> inPlace;
  std::vector<double> extras;  ///< NaN: does not apply
  RowKind kind = RowKind::Library;
  std::string series;  ///< the line's name in a plot; empty: derived from the labels
};

/// Bytes over microseconds in GB/s. Every link carries each byte once, so this equals both of nccl-tests' bandwidths.
inline double bandwidth(size_t bytes, double us) {
  return static_cast<double>(bytes) / us / 1e3;
}

}  // namespace seqpar::perf
