#include <catch2/catch.hpp>

#include "plan/link.h"

using seqpar::Link;
using seqpar::LinkTimes;

namespace {

LinkTimes timesOf(double hop, double empty, double full) {
  LinkTimes times;
  times.hop = hop;
  times.empty = empty;
  times.full = full;
  return times;
}

}  // namespace

TEST_CASE("fitted constants of a link reproduce its times") {
  const double alpha = 2e-6, overhead = 1e-7, bandwidth = 10e9;
  for (const size_t ranks : {2u, 3u, 8u}) {
    const double fill = alpha * static_cast<double>(ranks);
    const double block = overhead + static_cast<double>(LinkTimes::kBlock) / bandwidth;
    const double rounds = LinkTimes::kFullBlocks + static_cast<double>(ranks) - 2;
    const Link link = timesOf(alpha, fill + LinkTimes::kEmptyBlocks * overhead, fill + rounds * block).link(ranks);
    CAPTURE(ranks);
    CHECK(link.alpha == Approx(alpha));
    CHECK(link.overhead == Approx(overhead));
    CHECK(1 / link.secondsPerByte == Approx(bandwidth));
  }
}

TEST_CASE("a preempted rank does not change the measured constants") {
  const LinkTimes quiet = timesOf(5e-7, 6e-6, 9e-5);
  const Link expected = quiet.link(2);
  const LinkTimes disturbed[] = {timesOf(2e-3, 6e-6, 9e-5), timesOf(5e-7, 2e-3, 9e-5), timesOf(5e-7, 6e-6, 2e-3),
                                 timesOf(2e-3, 3e-5, 2e-4)};
  for (const LinkTimes& bad : disturbed) {
    for (const bool badFirst : {true, false}) {
      LinkTimes least = badFirst ? bad : quiet;
      least.keepLeast(badFirst ? quiet : bad);
      const Link link = least.link(2);
      CAPTURE(bad.hop, bad.empty, bad.full, badFirst);
      CHECK(link.alpha == expected.alpha);
      CHECK(link.overhead == expected.overhead);
      CHECK(link.secondsPerByte == expected.secondsPerByte);
    }
  }
}
