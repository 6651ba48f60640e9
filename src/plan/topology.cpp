#include "plan/topology.h"

#include <sched.h>

#include <algorithm>
#include <array>
#include <map>

namespace seqpar {
namespace {

struct Place {
  std::array<char, 256> hostId{};
  cpu_set_t processors{};
};

}  // namespace

Topology discoverTopology(Allgather& control, const std::string& hostId) {
  Place mine;
  hostId.copy(mine.hostId.data(), mine.hostId.size() - 1);
  CPU_ZERO(&mine.processors);
  if (sched_getaffinity(0, sizeof(mine.processors), &mine.processors) != 0) CPU_SET(0, &mine.processors);
  std::vector<Place> places(static_cast<size_t>(control.size()));
  control.gatherValues(mine, std::span(places));

  Topology out;
  std::map<std::string, int> numbers;
  // Ranks pinned to one processor each do not contend, so a node has as many processors as its ranks can run on
  // together.
  std::vector<cpu_set_t> processors;
  std::vector<int> ranks;
  for (const auto& place : places) {
    out.hostIds.emplace_back(place.hostId.data());
    const auto [entry, added] = numbers.try_emplace(out.hostIds.back(), static_cast<int>(numbers.size()));
    if (added) {
      processors.push_back(place.processors);
      ranks.push_back(0);
    }
    const auto node = static_cast<size_t>(entry->second);
    CPU_OR(&processors[node], &processors[node], &place.processors);
    ++ranks[node];
    out.nodes.push_back(entry->second);
  }
  out.nodeCount = static_cast<int>(numbers.size());
  for (size_t node = 0; node < ranks.size(); ++node) {
    const double count = std::max(1, CPU_COUNT(&processors[node]));
    const double contention = ranks[node] / count;
    out.contention = std::max(out.contention, contention);
  }
  return out;
}

}  // namespace seqpar
