// Curves of simulated cases as SVG.
#pragma once

#include <iosfwd>
#include <string>
#include <vector>

#include "report.h"

namespace seqpar::sim {

/// Published values of an algorithm, drawn as points.
struct Published {
  std::string algorithm;
  double x = 0, value = 0;
};

struct PlotOptions {
  std::string value = "time";  ///< one of plotValues()
  std::string title;
  bool forwardOnly = false;
  bool onHosts = false;  ///< ranks are not GPUs
  std::vector<Published> published;
};

std::vector<std::string> plotValues();
size_t mostCurves();

/// One curve an algorithm against the number of ranks, or against the size if all rows have the same number. Throws
/// std::invalid_argument if no row has a value.
void writePlot(std::ostream& out, const std::vector<Row>& rows, const PlotOptions& options);

/// Reads "algorithm,x,value" lines after a header.
std::vector<Published> readPublished(const std::string& path);

}  // namespace seqpar::sim
