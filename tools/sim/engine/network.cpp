#include "engine/network.h"

#include <algorithm>
#include <cmath>
#include <limits>

namespace seqpar::sim {
namespace {

constexpr double kBytesPerPs = 1e-3;  // of 1 GB/s

}  // namespace

int Network::addLink(double gigabytesPerSecond) {
  links_.emplace_back().capacity = gigabytesPerSecond * kBytesPerPs;
  return static_cast<int>(links_.size()) - 1;
}

void Network::start(std::span<const int> links, double bytes, double cap, uint32_t token) {
  uint32_t id = 0;
  if (free_.empty()) {
    id = static_cast<uint32_t>(flows_.size());
    flows_.emplace_back();
  } else {
    id = free_.back();
    free_.pop_back();
  }
  Flow& flow = flows_[id];
  flow.count = std::min(links.size(), kMostLinks);
  std::copy_n(links.begin(), flow.count, flow.links.begin());
  flow.left = bytes;
  flow.cap = cap * kBytesPerPs;
  flow.rate = 0;
  flow.since = events_.now();
  flow.token = token;
  flow.used = true;
  ++flow.version;
  bool alone = true;
  double rate = flow.cap;
  for (size_t i = 0; i < flow.count; ++i) {
    Link& link = links_[static_cast<size_t>(flow.links[i])];
    alone = alone && link.flows.empty();
    rate = std::min(rate, link.capacity);
    link.flows.push_back(id);
  }
  if (alone) return setRate(id, rate);
  const auto own = flow.links;
  share(std::span(own.data(), flow.count));
}

bool Network::finish(const Event& event, uint32_t& token) {
  Flow& flow = flows_[event.object];
  if (!flow.used || flow.version != event.version) return false;
  flow.used = false;
  ++flow.version;
  token = flow.token;
  bool alone = true;
  for (size_t i = 0; i < flow.count; ++i) {
    auto& flows = links_[static_cast<size_t>(flow.links[i])].flows;
    flows.erase(std::find(flows.begin(), flows.end(), event.object));
    alone = alone && flows.empty();
  }
  free_.push_back(event.object);
  const auto own = flow.links;
  if (!alone) share(std::span(own.data(), flow.count));
  return true;
}

void Network::setRate(uint32_t id, double rate) {
  Flow& flow = flows_[id];
  const Time now = events_.now();
  flow.left = std::max(0.0, flow.left - flow.rate * static_cast<double>(now - flow.since));
  flow.since = now;
  if (rate == flow.rate) return;
  flow.rate = rate;
  events_.add(now + static_cast<Time>(std::ceil(flow.left / rate)), kind_, id, ++flow.version);
}

/// The flows and links that are connected to `links`.
void Network::collect(std::span<const int> links) {
  ++visit_;
  component_.clear();
  linksOfComponent_.clear();
  const auto visit = [&](int number) {
    Link& link = links_[static_cast<size_t>(number)];
    if (link.visit == visit_) return;
    link.visit = visit_;
    linksOfComponent_.push_back(number);
  };
  for (const int link : links) visit(link);
  for (size_t i = 0; i < linksOfComponent_.size(); ++i) {
    for (const uint32_t id : links_[static_cast<size_t>(linksOfComponent_[i])].flows) {
      Flow& flow = flows_[id];
      if (flow.visit == visit_) continue;
      flow.visit = visit_;
      component_.push_back(id);
      for (size_t l = 0; l < flow.count; ++l) visit(flow.links[l]);
    }
  }
}

/// Progressive filling: the tightest link, or the smallest cap, fixes its flows' rates first.
void Network::share(std::span<const int> links) {
  collect(links);
  for (const int number : linksOfComponent_) {
    Link& link = links_[static_cast<size_t>(number)];
    link.left = link.capacity;
    link.open = static_cast<int>(link.flows.size());
  }
  for (const uint32_t id : component_) flows_[id].fixed = false;
  std::sort(component_.begin(), component_.end(), [&](uint32_t a, uint32_t b) {
    return flows_[a].cap != flows_[b].cap ? flows_[a].cap < flows_[b].cap : a < b;
  });
  const auto fix = [&](uint32_t id, double rate) {
    Flow& flow = flows_[id];
    flow.fixed = true;
    for (size_t l = 0; l < flow.count; ++l) {
      Link& link = links_[static_cast<size_t>(flow.links[l])];
      link.left = std::max(0.0, link.left - rate);
      --link.open;
    }
    setRate(id, rate);
  };
  size_t next = 0;
  while (true) {
    while (next < component_.size() && flows_[component_[next]].fixed) ++next;
    if (next == component_.size()) return;
    double tightest = std::numeric_limits<double>::infinity();
    int where = -1;
    for (const int number : linksOfComponent_) {
      const Link& link = links_[static_cast<size_t>(number)];
      if (link.open == 0 || link.left / link.open >= tightest) continue;
      tightest = link.left / link.open;
      where = number;
    }
    if (where < 0 || flows_[component_[next]].cap <= tightest) {
      fix(component_[next], flows_[component_[next]].cap);
      continue;
    }
    for (const uint32_t id : std::vector<uint32_t>(links_[static_cast<size_t>(where)].flows)) {
      if (!flows_[id].fixed) fix(id, std::max(tightest, 1e-12));
    }
  }
}

}  // namespace seqpar::sim
