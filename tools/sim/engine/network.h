// Flows over shared links: every flow has its max-min fair rate.
#pragma once

#include <array>
#include <cstdint>
#include <span>
#include <vector>

#include "engine/events.h"

namespace seqpar::sim {

/// Rates change only inside the connected component of flows that share links, when one of its flows starts or ends.
class Network {
 public:
  static constexpr size_t kMostLinks = 4;

  /// Ends of flows become events of `kind`: object and version identify them for finish().
  Network(EventQueue& events, uint32_t kind) : events_(events), kind_(kind) {}

  int addLink(double gigabytesPerSecond);
  /// Starts a flow of `bytes` at a rate of at most `cap` GB/s over `links`; ends in an event. `token` is the caller's.
  void start(std::span<const int> links, double bytes, double cap, uint32_t token);
  /// Handles an event of this network. True if a flow has ended; then `token` is that flow's.
  bool finish(const Event& event, uint32_t& token);

  size_t active() const { return flows_.size() - free_.size(); }

 private:
  struct Flow {
    std::array<int, kMostLinks> links{};
    size_t count = 0;
    double left = 0, cap = 0, rate = 0;  ///< bytes, bytes per ps
    Time since = 0;
    uint32_t token = 0, version = 0, visit = 0;
    bool used = false, fixed = false;
  };
  struct Link {
    double capacity = 0;  ///< bytes per ps
    std::vector<uint32_t> flows;
    double left = 0;
    int open = 0;
    uint32_t visit = 0;
  };

  void share(std::span<const int> links);
  void setRate(uint32_t id, double rate);
  void collect(std::span<const int> links);

  EventQueue& events_;
  uint32_t kind_;
  std::vector<Flow> flows_;
  std::vector<uint32_t> free_;
  std::vector<Link> links_;
  std::vector<uint32_t> component_;
  std::vector<int> linksOfComponent_;
  uint32_t visit_ = 0;
};

}  // namespace seqpar::sim
