// The cost forms: exact values on simple inputs, and the link of a group of ranks.
#include <catch2/catch.hpp>
#include <vector>

#include "plan/cost.h"

using namespace seqpar;

namespace {

/// Nodes {0,1,2,3} and {4,5}; ranks 0 and 1 are one process.
Topology sixRanks() {
  Topology topology;
  topology.nodes = {0, 0, 0, 0, 1, 1};
  topology.processes = {0, 0, 1, 2, 3, 4};
  topology.nodeCount = 2;
  return topology;
}

LinkModel model() {
  LinkModel links;
  links.process = {1, 10, 100};
  links.node = {2, 20, 50};
  links.network = {4, 40, 200};
  return links;
}

void checkLink(const Link& link, double alpha, double secondsPerByte, double overhead) {
  CHECK(link.alpha == alpha);
  CHECK(link.secondsPerByte == secondsPerByte);
  CHECK(link.overhead == overhead);
}

}  // namespace

TEST_CASE("the slowest class of a ring's hops decides") {
  const auto topology = sixRanks();
  const auto links = model();
  checkLink(linkOfRing(links, topology, std::vector{0, 1}), 1, 10, 100);
  checkLink(linkOfRing(links, topology, std::vector{0, 1, 2}), 2, 20, 100);
  checkLink(linkOfRing(links, topology, std::vector{2, 3}), 2, 20, 50);
  checkLink(linkOfRing(links, topology, std::vector{4, 5}), 2, 20, 50);
  checkLink(linkOfRing(links, topology, std::vector{3}), 0, 0, 0);
}

TEST_CASE("ranks of a node share its link to the network") {
  const auto topology = sixRanks();
  const auto links = model();
  // One hop leaves each node.
  checkLink(linkOfRing(links, topology, std::vector{0, 1, 2, 3, 4, 5}), 4, 40, 200);
  // All hops of the first node leave it.
  checkLink(linkOfRing(links, topology, std::vector{0, 4, 2, 5}), 4, 80, 200);
  checkLink(linkOfGroup(links, topology, std::vector{0, 1, 2, 4}), 4, 120, 200);
  checkLink(linkOfGroup(links, topology, std::vector{0, 1, 2}), 2, 20, 100);
}

TEST_CASE("cost forms") {
  const Link link{1000, 2, 10};
  CHECK(shiftSeconds(link, 1, 100) == 1210);
  CHECK(shiftSeconds(link, 2, 100) == 2210);
  CHECK(ringSeconds(link, 1, 100, 3) == 3630);
  CHECK(allGatherSeconds(link, 1, 100, 4) == 1000 + 3 * 210);
  CHECK(reduceScatterSeconds(link, 1, 100, 3) == Approx(1000 + 2 * (10 + 270)));
  CHECK(allToAllSeconds(link, 1, 400, 4) == 1000 + 3 * 210 + 100);
}

TEST_CASE("more ranks, more bytes and slower links never cost less") {
  for (const double bytes : {0.0, 1e3, 1e6}) {
    for (int ranks = 1; ranks < 9; ++ranks) {
      const Link slow{2e-6, 2e-9, 2e-7}, fast{1e-6, 1e-9, 1e-7};
      for (const auto form : {allGatherSeconds, reduceScatterSeconds}) {
        CHECK(form(fast, 1, bytes, ranks) <= form(fast, 1, bytes, ranks + 1));
        CHECK(form(fast, 1, bytes, ranks) <= form(fast, 1, bytes + 1000, ranks));
        CHECK(form(fast, 1, bytes, ranks) <= form(slow, 1, bytes, ranks));
        CHECK(form(fast, 1, bytes, ranks) <= form(fast, 2, bytes, ranks));
      }
      CHECK(allToAllSeconds(fast, 1, bytes, ranks) <= allToAllSeconds(slow, 1, bytes, ranks));
    }
  }
}
