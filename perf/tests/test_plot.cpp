#include <catch2/catch.hpp>
#include <cmath>
#include <limits>
#include <sstream>
#include <string>
#include <vector>

#include "common/plot.h"

using namespace seqpar::perf;

namespace {

size_t countOf(const std::string& text, const std::string& what) {
  size_t count = 0;
  for (size_t at = text.find(what); at != std::string::npos; at = text.find(what, at + 1)) ++count;
  return count;
}

/// The coordinates of the first path, "M1 2L3 4...", as 1 2 3 4.
std::vector<double> firstPath(const std::string& svg) {
  const size_t begin = svg.find("<path d=\"M") + 10;
  std::string path = svg.substr(begin, svg.find('"', begin) - begin);
  for (char& c : path) c = c == 'L' ? ' ' : c;
  std::istringstream words(path);
  std::vector<double> numbers;
  for (double number = 0; words >> number;) numbers.push_back(number);
  return numbers;
}

}  // namespace

TEST_CASE("Equal factors are equal distances, larger is right and up, and the order of points does not matter") {
  const std::vector<Panel> panels{{"panel", {{"line", RowKind::Library, {{4096, 100}, {1024, 1}, {2048, 10}}}}}};
  const std::vector<double> at = firstPath(drawPlot("title", "subtitle", panels));
  REQUIRE(at.size() == 6);
  CHECK(at[2] - at[0] > 10);
  CHECK(at[2] - at[0] == Approx(at[4] - at[2]).margin(0.2));
  CHECK(at[1] - at[3] > 10);
  CHECK(at[1] - at[3] == Approx(at[3] - at[5]).margin(0.2));
}

TEST_CASE("Every series is named once in the legend, by kind") {
  const std::vector<Panel> panels{{"panel",
                                   {{"bound", RowKind::Limit, {{1, 1}, {2, 2}}},
                                    {"rival", RowKind::Peer, {{1, 4}, {2, 5}}},
                                    {"ours", RowKind::Library, {{1, 2}, {2, 3}}}}}};
  const std::string svg = drawPlot("title", "subtitle", panels);
  for (const char* name : {">ours<", ">rival<", ">bound<", ">seqpar<", ">peers<", ">limits<", ">panel<", ">title<"}) {
    CAPTURE(name);
    CHECK(countOf(svg, name) == 1);
  }
  CHECK(svg.find(">ours<") < svg.find(">rival<"));
  CHECK(svg.find(">rival<") < svg.find(">bound<"));
}

TEST_CASE("What cannot be drawn on logarithmic axes is left out") {
  const double none = std::numeric_limits<double>::quiet_NaN();
  const std::vector<Panel> panels{{"shown", {{"line", RowKind::Library, {{8, 1}, {16, none}, {32, -1}, {0, 5}}}}},
                                  {"hidden", {{"other", RowKind::Library, {{8, none}}}}}};
  const std::string svg = drawPlot("title", "subtitle", panels);
  CHECK(firstPath(svg).size() == 2);
  CHECK(countOf(svg, "hidden") == 0);
  CHECK(countOf(svg, "other") == 0);
  CHECK(countOf(svg, "nan") == 0);
  CHECK(countOf(drawPlot("title", "subtitle", {}), "</svg>") == 1);
}

TEST_CASE("Names may have characters that mean something in XML") {
  const std::string svg = drawPlot("a < b & c", "", {{"", {{"<x>", RowKind::Library, {{1, 1}}}}}});
  CHECK(countOf(svg, "a &lt; b &amp; c") == 1);
  CHECK(countOf(svg, "&lt;x&gt;") == 2);
  CHECK(countOf(svg, "<x>") == 0);
}
