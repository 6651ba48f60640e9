// What rank 0 shows: the table on stdout in nccl-tests' form, and the same as JSON.
#pragma once

#include <chrono>
#include <optional>
#include <string>
#include <vector>

#include "json.h"
#include "plot.h"
#include "settings.h"
#include "timing.h"

namespace seqpar::perf {

/// What the values of a label column are in the plot.
enum class InPlot {
  Series,  ///< part of a line's name
  Panel,   ///< each value has axes of its own
  Nothing  ///< does not count
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
  std::vector<Column> extras;  ///< numbers after the times
};

struct Row {
  size_t bytes = 0, count = 0;
  std::vector<std::string> labels;
  Timing outOfPlace;
  std::optional<Timing> inPlace;
  std::vector<double> extras;  ///< NaN: does not apply
  RowKind kind = RowKind::Library;
  std::string series;  ///< the line of the plot; empty: made of the labels
};

class Report {
 public:
  /// Quiet on all ranks but 0.
  Report(std::string program, std::vector<std::string> arguments, Settings settings, Layout layout, bool quiet);

  /// Collective: describes the run and its ranks.
  void header(Group& group);
  /// A line that begins with '#'.
  void note(const std::string& text);
  /// The bandwidth average leaves out rows of limits.
  void row(const Row& row);
  /// The last lines; writes the JSON file and the plot.
  void footer();

  /// Tells, on stderr and now and then, how far a long run is.
  void progress(const std::string& what);

  size_t wrong() const { return wrong_; }

 private:
  void printColumns() const;
  void addPoint(const Row& row);

  std::string program_;
  Settings settings_;
  Layout layout_;
  bool quiet_;
  Json json_;
  size_t wrong_ = 0, times_ = 0;
  double busSum_ = 0;
  std::vector<Panel> panels_;
  std::string subtitle_;
  std::chrono::steady_clock::time_point start_, lastProgress_;
};

}  // namespace seqpar::perf
