#include "plan/topology.h"

#include <sched.h>

#include <algorithm>
#include <array>
#include <fstream>
#include <map>
#include <random>

#include "plan/processor_shares.h"

namespace seqpar {
namespace {

struct Place {
  std::array<char, 256> hostId{};
  std::array<char, 64> model{};
  std::array<unsigned char, 16> process{};
  cpu_set_t processors{};
};

std::string processorModel() {
  std::ifstream file("/proc/cpuinfo");
  for (std::string line; std::getline(file, line);) {
    const auto colon = line.find(':');
    if (line.rfind("model name", 0) == 0 && colon != std::string::npos && colon + 2 <= line.size()) {
      return line.substr(colon + 2);
    }
  }
  return "unknown";
}

/// Unique to this process, also among processes with the same pid in another container or on another host.
const std::array<unsigned char, 16>& processIdentity() {
  static const auto identity = [] {
    std::array<unsigned char, 16> bytes{};
    std::random_device random;
    for (auto& byte : bytes) byte = static_cast<unsigned char>(random());
    return bytes;
  }();
  return identity;
}

/// The index of `value` among the distinct values seen so far, in order of first appearance.
template <typename Value>
int numberOf(const Value& value, std::map<Value, int>& numbers) {
  return numbers.try_emplace(value, static_cast<int>(numbers.size())).first->second;
}

}  // namespace

Topology discoverTopology(Allgather& control, const std::string& hostId) {
  Place mine;
  hostId.copy(mine.hostId.data(), mine.hostId.size() - 1);
  processorModel().copy(mine.model.data(), mine.model.size() - 1);
  mine.process = processIdentity();
  CPU_ZERO(&mine.processors);
  if (sched_getaffinity(0, sizeof(mine.processors), &mine.processors) != 0) CPU_SET(0, &mine.processors);
  std::vector<Place> places(static_cast<size_t>(control.size()));
  control.gatherValues(mine, std::span(places));

  Topology out;
  std::map<std::string, int> numbers;
  std::map<std::array<unsigned char, 16>, int> processes;
  // Ranks pinned to one processor each do not contend, so a node's processors are the union of its ranks' affinity
  // sets.
  std::vector<cpu_set_t> processors;
  std::vector<int> ranks;
  std::vector<cpu_set_t> allowed;
  for (const auto& place : places) {
    out.hostIds.emplace_back(place.hostId.data());
    const auto node = static_cast<size_t>(numberOf(out.hostIds.back(), numbers));
    if (node == ranks.size()) {
      processors.push_back(place.processors);
      ranks.push_back(0);
      out.models.emplace_back(place.model.data());
    }
    CPU_OR(&processors[node], &processors[node], &place.processors);
    ++ranks[node];
    out.nodes.push_back(static_cast<int>(node));
    allowed.push_back(place.processors);
    out.processes.push_back(numberOf(place.process, processes));
  }
  out.nodeCount = static_cast<int>(numbers.size());
  out.threads = processorShares(allowed, out.nodes);
  double fullest = 0;
  for (size_t node = 0; node < ranks.size(); ++node) {
    const double count = std::max(1, CPU_COUNT(&processors[node]));
    const double contention = ranks[node] / count;
    out.contention = std::max(out.contention, contention);
    fullest = std::max(fullest, contention);
  }
  out.coresPerRank = 1 / fullest;
  return out;
}

}  // namespace seqpar
