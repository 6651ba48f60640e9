#include "plan/cost.h"

#include <algorithm>
#include <set>
#include <vector>

namespace seqpar {
namespace {

/// Cost per byte relative to a streaming hop (receive, combine, write on), the operation that is measured.
constexpr double kAdd = 0.35;   // add received data to a sum
constexpr double kLocal = 0.5;  // copy inside a rank

/// The slowest of some links, and the number of ranks that share the network link.
class Slowest {
 public:
  Slowest(const LinkModel& model, const Topology& topology)
      : model_(model), topology_(topology), leaving_(static_cast<size_t>(topology.nodeCount)) {}

  void add(int from, int to) {
    const auto a = static_cast<size_t>(from), b = static_cast<size_t>(to);
    const auto node = static_cast<size_t>(topology_.nodes[a]);
    if (topology_.nodes[a] != topology_.nodes[b]) {
      leaving_[node].insert(from);
      take(model_.network);
    } else {
      take(topology_.processes[a] == topology_.processes[b] ? model_.process : model_.node);
    }
  }

  Link link() const {
    Link out = slowest_;
    for (const auto& ranks : leaving_) {
      out.secondsPerByte =
          std::max(out.secondsPerByte, model_.network.secondsPerByte * static_cast<double>(ranks.size()));
    }
    return out;
  }

 private:
  void take(const Link& link) {
    slowest_.alpha = std::max(slowest_.alpha, link.alpha);
    slowest_.secondsPerByte = std::max(slowest_.secondsPerByte, link.secondsPerByte);
    slowest_.overhead = std::max(slowest_.overhead, link.overhead);
  }

  const LinkModel& model_;
  const Topology& topology_;
  std::vector<std::set<int>> leaving_;  ///< by node: the ranks that send out of it
  Link slowest_;
};

/// The latency that every rank pays once: ranks that share a processor take turns.
double latency(const Link& link, double contention) {
  return link.alpha * contention;
}

}  // namespace

Link linkOfRing(const LinkModel& model, const Topology& topology, std::span<const int> ranks) {
  Slowest links(model, topology);
  for (size_t i = 0; ranks.size() > 1 && i < ranks.size(); ++i) links.add(ranks[i], ranks[(i + 1) % ranks.size()]);
  return links.link();
}

Link linkOfGroup(const LinkModel& model, const Topology& topology, std::span<const int> ranks) {
  Slowest links(model, topology);
  for (const int from : ranks) {
    for (const int to : ranks) {
      if (from != to) links.add(from, to);
    }
  }
  return links.link();
}

double shiftSeconds(const Link& link, double contention, double bytes) {
  return latency(link, contention) + link.overhead + bytes * link.secondsPerByte;
}

double ringSeconds(const Link& link, double contention, double bytes, int steps) {
  return steps * shiftSeconds(link, contention, bytes);
}

double allGatherSeconds(const Link& link, double contention, double bytes, int ranks) {
  if (ranks <= 1) return bytes * kLocal * link.secondsPerByte;
  return latency(link, contention) + (ranks - 1) * (link.overhead + bytes * link.secondsPerByte);
}

double reduceScatterSeconds(const Link& link, double contention, double bytes, int ranks) {
  if (ranks <= 1) return bytes * kLocal * link.secondsPerByte;
  return latency(link, contention) + (ranks - 1) * (link.overhead + bytes * (1 + kAdd) * link.secondsPerByte);
}

double allToAllSeconds(const Link& link, double contention, double bytes, int ranks) {
  const double part = bytes / ranks;
  if (ranks <= 1) return bytes * kLocal * link.secondsPerByte;
  return latency(link, contention) + (ranks - 1) * (link.overhead + part * link.secondsPerByte) +
         part * kLocal * link.secondsPerByte;
}

}  // namespace seqpar
