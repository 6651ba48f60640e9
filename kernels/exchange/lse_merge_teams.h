// Merges of partial attention in one step and one hop, with a team of threads for each other rank: the program for the
// shortest messages, in the wire format of lse_merge.h. A team sends to its peer and receives from it, at the same time
// as the others; the first team merges what all teams received.
#pragma once

#include "kernels/exchange/lse_merge_values.h"

namespace seqpar {

/// kMost: the most peers, including this one.
template <int kMost>
struct TeamShared {
  static constexpr int kTeams = kMost - 1;
  FifoState state[kTeams];
  LamportPacket packet[kTeams][MergeTask::kBriefThreads];
  std::uint32_t bits[kTeams][MergeTask::kBriefThreads];
};

template <seqparDataType_t kType, int kMost, class Memory, class Group>
class TeamMergeProgram {
 public:
  using Shared = TeamShared<kMost>;

  /// Reads nothing that earlier kernels write. At most MergeTask::kBriefThreads threads for each other rank.
  SEQPAR_DEVICE TeamMergeProgram(const PeerView& view, const MergeTask& task, int channel, const Group& group,
                                 Shared& shared)
      : view_(view),
        task_(task),
        group_(group),
        shared_(shared),
        channel_(channel),
        size_(static_cast<std::uint32_t>(group.threads() / (view.size - 1))),
        team_(group.thread() / static_cast<int>(size_)),
        thread_(static_cast<std::uint32_t>(group.thread()) % size_),
        item_(thread_ / task.packets),
        lane_(thread_ % task.packets),
        items_(size_ / task.packets),
        lanes_(size_ % task.packets) {}

  /// Returns false on timeout. Requires MergeTask::isShort().
  SEQPAR_DEVICE bool run() {
    const At at(task_, view_.size, channel_);
    if (all(at, 0).size() == 0) return true;
    const bool works = team_ < view_.size - 1;
    const int peer = peerOf(works ? team_ : 0);
    FifoState state = alignedToCall(*fifoState(view_, peer, channel_));
    bool ok = !works || send(at, peer, state);
    if (works && thread_ == 0) shared_.state[team_] = state;
    const Receiver<Memory> in(view_, peer, channel_, state.received);
    const Range mine = all(at, view_.self);
    Place place{item_, lane_};
    SEQPAR_ROLLED
    for (std::uint32_t first = 0; first < mine.size() * task_.packets; first += size_) {
      if (first > 0) group_.sync();  // the previous packets are merged
      const bool mineToo = place.item < mine.size();
      LamportPacket own{};
      std::uint32_t ownBits = 0;
      if (mineToo && team_ == 0) {
        const std::size_t from = at.source(view_.self, mine.begin + place.item);
        own = Packets::loadWhole(task_, from, place.lane);
        ownBits = sendable(asBits(task_.lse[from]), kAbsentAsFloat);
      }
      if (mineToo && works) ok = ok && receive(in, mine, place);
      if (group_.any(!ok)) return false;
      // All threads have read the inputs of these packets, which may be in the same place.
      if (mineToo && team_ == 0) merge(at, mine, place, own, ownBits);
      next(place);
    }
    if (mine.size() == 0 && group_.any(!ok)) return false;
    if (group_.inFirstWarp()) finish(at, mine);
    return true;
  }

 private:
  using At = MergeChannel<false>;
  using Range = At::Range;
  using Packets = MergePackets<kType, Memory>;

  /// A packet of a result.
  struct Place {
    std::uint32_t item, lane;
  };
  SEQPAR_DEVICE void next(Place& place) const {
    place.item += items_;
    place.lane += lanes_;
    if (place.lane < task_.packets) return;
    place.lane -= task_.packets;
    ++place.item;
  }

  SEQPAR_DEVICE static Range all(const At& at, int receiver) { return at.range(receiver, 0, at.perChannel); }
  SEQPAR_DEVICE int peerOf(int team) const {
    const int peer = view_.self + 1 + team;
    return peer < view_.size ? peer : peer - view_.size;
  }
  SEQPAR_DEVICE int teamOf(int peer) const {
    const int team = peer - view_.self - 1;
    return team < 0 ? team + view_.size : team;
  }

  /// Sends this rank's results to the team's peer. Sets the credit in `state`.
  SEQPAR_DEVICE bool send(const At& at, int peer, FifoState& state) const {
    const Range items = all(at, peer);
    Sender<Memory> out(view_, peer, channel_, state.sent, state.credit);
    SEQPAR_ROLLED
    for (Place place{item_, lane_}; place.item < items.size(); next(place)) {
      const std::size_t from = at.source(peer, items.begin + place.item);
      const LamportPacket packet = Packets::loadWhole(task_, from, place.lane);
      const float lse = task_.lse[from];
      if (!out.reserve(at.packetsOf(items))) return false;
      if (lse != -INFINITY) out.put(place.item * task_.packets + place.lane, packet);
      if (place.lane == 0) {
        out.putWord(4 * items.size() * task_.packets + place.item, sendable(asBits(lse), kAbsentAsFloat));
      }
    }
    state.credit = out.credit();
    return true;
  }

  /// Waits for a packet of the team's peer and its lse, and resets the packet.
  SEQPAR_DEVICE bool receive(const Receiver<Memory>& in, const Range& mine, const Place& place) const {
    const std::uint32_t index = place.item * task_.packets + place.lane;
    const std::uint32_t word = 4 * mine.size() * task_.packets + place.item;
    std::uint32_t bits = in.pollWord(word);
    LamportPacket packet = in.poll(index);
    Wait<Memory> wait(view_, peerOf(team_));
    SEQPAR_ROLLED
    while (bits == kAbsent || (asFloat(bits) != -INFINITY && !complete(packet))) {
      if (wait.over()) return false;
      bits = in.pollWord(word);
      packet = in.poll(index);
    }
    shared_.packet[team_][thread_] = packet;
    shared_.bits[team_][thread_] = bits;
    if (asFloat(bits) != -INFINITY) in.reset(index);
    return true;
  }

  SEQPAR_DEVICE void merge(const At& at, const Range& mine, const Place& place, const LamportPacket& own,
                           std::uint32_t ownBits) const {
    std::uint32_t bits[kMost];
    SEQPAR_UNROLL
    for (int m = 0; m < kMost; ++m) {
      bits[m] = m >= view_.size ? asBits(-INFINITY) : m == view_.self ? ownBits : shared_.bits[teamOf(m)][thread_];
    }
    MergedPacket result;
    mergePackets<kType, Memory>(
        bits,
        [&](int m, LamportPacket& term) {
          term = m == view_.self ? own : shared_.packet[teamOf(m)][thread_];
          return true;
        },
        result);
    const std::size_t into = at.target(view_.self, mine.begin + place.item);
    // No packet of the result follows, so no thread reads its lse any more.
    if (place.lane + 1 == task_.packets) task_.lseMerged[into] = result.lse;
    Packets::storeWhole(task_, into, place.lane, result.packet);
  }

  /// Resets the words, gives credit and keeps the positions. By the first warp, after the barrier.
  SEQPAR_DEVICE void finish(const At& at, const Range& mine) const {
    const auto warp = group_.warp();
    SEQPAR_ROLLED
    for (int team = 0; team < view_.size - 1; ++team) {
      const Receiver<Memory> in(view_, peerOf(team), channel_, shared_.state[team].received);
      resetWords(in, warp, mine.size() * task_.packets, mine.size());
    }
    group_.warpAll(true);
    SEQPAR_ROLLED
    for (int team = warp.thread(); team < view_.size - 1; team += warp.threads()) {
      const int peer = peerOf(team);
      FifoState next = shared_.state[team];
      next.sent += at.packetsOf(all(at, peer));
      countReceived<Memory>(view_, peer, channel_, next, at.packetsOf(mine));
      *fifoState(view_, peer, channel_) = next;
    }
  }

  const PeerView& view_;
  const MergeTask& task_;
  const Group& group_;
  Shared& shared_;
  int channel_;
  std::uint32_t size_;  ///< threads of a team
  int team_;
  std::uint32_t thread_;         ///< in the team
  std::uint32_t item_, lane_;    ///< of the thread's first packet
  std::uint32_t items_, lanes_;  ///< to its next packet
};

}  // namespace seqpar
