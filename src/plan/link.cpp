#include "plan/link.h"

#include <algorithm>
#include <chrono>
#include <optional>

#include "plan/tuning_cache.h"

namespace seqpar {
namespace {

using Clock = std::chrono::steady_clock;

constexpr int kLaps = 8;
constexpr int kRepetitions = 6;

double secondsSince(Clock::time_point start) {
  return std::chrono::duration<double>(Clock::now() - start).count();
}

/// Ranks in a row, and this rank's place in it.
struct Row {
  std::vector<int> ranks;
  size_t place = 0;
  bool first() const { return place == 0; }
  bool last() const { return place + 1 == ranks.size(); }
  int previous() const { return ranks[first() ? ranks.size() - 1 : place - 1]; }
  int next() const { return ranks[last() ? 0 : place + 1]; }
};

/// Seconds per hop of a token that is passed around the ring.
double ring(Mailbox& mail, const Row& row) {
  const auto start = Clock::now();
  for (int lap = 0; lap < kLaps; ++lap) {
    if (!row.first()) receiveEmpty(mail, row.previous());
    sendEmpty(mail, row.next());
    if (row.first()) receiveEmpty(mail, row.previous());
  }
  return secondsSince(start) / (kLaps * static_cast<double>(row.ranks.size()));
}

/// Seconds for `blocks` blocks of `bytes` to pass down the row, where each rank copies them out and forwards them, plus
/// the last rank's receipt.
double stream(Mailbox& mail, const Row& row, int blocks, size_t bytes, std::span<std::byte> buffer) {
  const auto start = Clock::now();
  for (int block = 0; block < blocks; ++block) {
    const std::byte* in = row.first() ? buffer.data() : mail.receive(row.previous(), bytes);
    std::byte* mine = buffer.data() + static_cast<size_t>(block % 2) * bytes;
    if (!row.first()) copyFrom(mine, in, bytes);
    if (!row.last()) {
      copyTo(mail.acquire(row.next(), bytes), mine, bytes);
      mail.commit();
    }
    if (!row.first()) mail.release(row.previous());
  }
  if (row.last()) sendEmpty(mail, row.ranks.front());
  if (row.first()) receiveEmpty(mail, row.ranks.back());
  return secondsSince(start);
}

Link measureRow(Mailbox& mail, const Row& row) {
  std::vector<std::byte> buffer(2 * LinkTimes::kBlock);
  ring(mail, row);  // the first lap wakes sleeping ranks
  LinkTimes least;
  // The first repetitions fault pages in; taking the least time excludes them.
  for (int repetition = 0; repetition < kRepetitions; ++repetition) {
    LinkTimes times;
    times.hop = ring(mail, row);
    times.empty = stream(mail, row, LinkTimes::kEmptyBlocks, 0, buffer);
    times.full = stream(mail, row, LinkTimes::kFullBlocks, LinkTimes::kBlock, buffer);
    least.keepLeast(times);
  }
  return least.link(row.ranks.size());
}

/// The ranks of the largest group; groups[rank] is the rank's group.
std::vector<int> largest(const std::vector<int>& groups) {
  std::vector<std::vector<int>> members(groups.size());
  for (size_t rank = 0; rank < groups.size(); ++rank) {
    members[static_cast<size_t>(groups[rank])].push_back(static_cast<int>(rank));
  }
  return *std::max_element(members.begin(), members.end(),
                           [](const auto& a, const auto& b) { return a.size() < b.size(); });
}

/// The first rank of every group.
std::vector<int> leaders(const std::vector<int>& groups) {
  std::vector<int> first;
  for (size_t rank = 0; rank < groups.size(); ++rank) {
    if (groups[rank] == static_cast<int>(first.size())) first.push_back(static_cast<int>(rank));
  }
  return first;
}

/// Collective over all ranks: the row measures, the others wait. Returns the result of the row's first rank.
Link measureAmong(Mailbox& mail, Allgather& control, std::vector<int> ranks) {
  Link link;
  const auto me = std::find(ranks.begin(), ranks.end(), mail.rank());
  const auto first = static_cast<size_t>(ranks.front());
  if (ranks.size() > 1 && me != ranks.end()) {
    const auto place = static_cast<size_t>(me - ranks.begin());
    // Ended before the gather below: between operations, pending messages progress without this thread.
    mail.begin("link measurement", 0);
    link = measureRow(mail, Row{std::move(ranks), place});
    mail.end();
  }
  std::vector<Link> links(static_cast<size_t>(control.size()));
  control.gatherValues(link, std::span(links));
  return links[first];
}

}  // namespace

void LinkTimes::keepLeast(const LinkTimes& other) {
  hop = std::min(hop, other.hop);
  empty = std::min(empty, other.empty);
  full = std::min(full, other.full);
}

Link LinkTimes::link(size_t ranks) const {
  const auto hops = static_cast<double>(ranks);
  const double fill = hops * hop;
  Link link;
  link.alpha = hop;
  link.overhead = std::max(0.0, empty - fill) / kEmptyBlocks;
  // The stream has kFullBlocks blocks, and the pipeline fills over hops - 1 of them.
  const double rounds = kFullBlocks + hops - 2;
  const double perBlock = std::max(0.0, full - fill) / rounds - link.overhead;
  link.secondsPerByte = std::max(perBlock, 1e-9) / static_cast<double>(kBlock);
  return link;
}

LinkModel measureLinks(Mailbox& mail, Allgather& control, const Topology& topology) {
  LinkModel model;
  model.contention = topology.contention;
  if (mail.size() == 1) return model;
  const auto node = largest(topology.nodes);
  model.node = measureAmong(mail, control, node);
  model.network = topology.nodeCount > 1 ? measureAmong(mail, control, leaders(topology.nodes)) : model.node;
  if (node.size() == 1) model.node = model.network;
  const auto process = largest(topology.processes);
  model.process = process.size() == 1 || process == node ? model.node : measureAmong(mail, control, process);
  return model;
}

LinkModel planLinks(Mailbox& mail, Allgather& control, const Topology& topology, const std::string& transport) {
  if (mail.size() == 1) return measureLinks(mail, control, topology);
  const auto cache = mail.rank() == 0 ? TuningCache::fromEnvironment() : std::nullopt;
  const std::string key = cache ? tuningKey(topology, transport) : "";
  LinkModel known;
  if (cache) known = cache->find(key).value_or(known);
  std::vector<LinkModel> all(static_cast<size_t>(control.size()));
  control.gatherValues(known, std::span(all));
  if (all[0].remembered) return all[0];
  const LinkModel measured = measureLinks(mail, control, topology);
  if (cache) cache->store(key, measured);
  return measured;
}

}  // namespace seqpar
