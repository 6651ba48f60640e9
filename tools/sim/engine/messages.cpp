// Messages of the player: a sender's and a receiver's half meet in the order of their pair of ranks.
#include <utility>

#include "engine/player.h"

namespace seqpar::sim {
namespace {

/// Below this size a message takes no share of a link: its time is latency.
constexpr double kSmallBytes = 8192;
/// Share of the rate of stores that exchanges by kernels reach, whatever their peers: they wait for free slots at the
/// receiver. Calibrated on an all-gather of 64 MiB between two H200.
constexpr double kOfExchanges = 0.87;

}  // namespace

uint32_t Player::newParcel() {
  if (freeParcels_.empty()) {
    parcels_.emplace_back();
    return static_cast<uint32_t>(parcels_.size()) - 1;
  }
  const uint32_t id = freeParcels_.back();
  freeParcels_.pop_back();
  parcels_[id] = {};
  return id;
}

/// Halves of messages that wait for their other half.
Player::Pair& Player::pairOf(int from, int to, uint32_t lane) {
  if (lane == 0) {
    auto& row = pairs_[static_cast<size_t>(from)];
    if (row.empty()) row.resize(programs_.size());
    return row[static_cast<size_t>(to)];
  }
  return pairsOfLanes_[(static_cast<uint64_t>(lane) << 48) | (static_cast<uint64_t>(from) << 24) |
                       static_cast<uint64_t>(to)];
}

void Player::append(Pair& pair, uint32_t id) {
  if (pair.head == kNone) {
    pair.head = id;
  } else {
    parcels_[pair.tail].next = id;
  }
  pair.tail = id;
}

void Player::toParcels(Pair& pair) {
  if (pair.receiver != kNone) {
    const uint32_t id = newParcel();
    parcels_[id].receiver = std::exchange(pair.receiver, kNone);
    append(pair, id);
  }
  for (; pair.arrived > 0; --pair.arrived) {
    const uint32_t id = newParcel();
    parcels_[id].isSend = parcels_[id].started = parcels_[id].arrived = true;
    append(pair, id);
  }
}

/// Removes and returns the oldest half of the other kind; kNone: there is none.
uint32_t Player::match(Pair& pair, bool send) {
  toParcels(pair);
  if (pair.head == kNone || parcels_[pair.head].isSend == send) return kNone;
  const uint32_t head = pair.head;
  pair.head = parcels_[head].next;
  return head;
}

void Player::post(uint32_t active, int from, int to, uint32_t lane, double bytes, bool send, bool eager, bool shared) {
  Pair& pair = pairOf(from, to, lane);
  if (!send && pair.head == kNone && pair.receiver == kNone) {
    if (pair.arrived == 0) {
      pair.receiver = active;
      return;
    }
    --pair.arrived;
    return part(active);
  }
  uint32_t id = match(pair, send);
  const bool met = id != kNone;
  if (!met) {
    id = newParcel();
    append(pair, id);
    parcels_[id].isSend = send;
  }
  Parcel& parcel = parcels_[id];
  parcel.from = from;
  parcel.to = to;
  (send ? parcel.sender : parcel.receiver) = active;
  if (send) {
    parcel.bytes = bytes;
    parcel.shared = shared;
    parcel.engine = active == kNone ? Engine::Kernel : actives_[active].engine;
  }
  if (parcel.arrived) {  // before this receiver, or as a share of a larger flow
    if (!met) return;
    const uint32_t receiver = parcel.receiver;
    freeParcels_.push_back(id);
    return part(receiver);
  }
  if (!parcel.started && (met || eager)) launch(id);
}

Player::Path Player::pathOf(const Parcel& parcel) const {
  if (!sameNode(parcel.from, parcel.to)) {
    return {machine_.net.alphaUs, machine_.net.overheadUs, machine_.net.most(), false};
  }
  if (machine_.onHosts()) return {0, 0, 0, true};  // the ranks' copies and hops are their work
  switch (parcel.engine) {
    case Engine::Copy:
      return {machine_.local.alphaUs, machine_.local.copyStartUs, machine_.local.copyGbs, true};
    case Engine::Nccl:
      return {machine_.nccl.hopUs, 0, machine_.nccl.gbs, true};
    case Engine::NcclHop:
      return {machine_.nccl.hopUs, 0, programs_.size() > 2 ? machine_.nccl.flow(parcel.bytes) : machine_.nccl.gbs,
              true};
    case Engine::Gather:
      return {machine_.nccl.gatherHopUs, 0, machine_.nccl.gatherGbs, true};
    default:
      return {machine_.local.alphaUs, 0, machine_.local.gbs, true};
  }
}

void Player::launch(uint32_t id) {
  Parcel& parcel = parcels_[id];
  parcel.started = true;
  const Path path = pathOf(parcel);
  auto& sent = result_.ranks[static_cast<size_t>(parcel.from)];
  (path.local ? sent.localBytes : sent.networkBytes) += parcel.bytes;
  const Time start = queue_.now() + fromUs(path.delay);
  if (path.cap == 0) return queue_.add(start, kLeave, id);
  if (parcel.bytes >= kSmallBytes) return queue_.add(start, kOpen, id);
  queue_.add(start + fromUs(parcel.bytes / path.cap * 1e-3), kLeave, id);
}

void Player::open(uint32_t id) {
  const Parcel& parcel = parcels_[id];
  const Path path = pathOf(parcel);
  const bool out = parcel.bulk == kNone || parcel.bulk < 2,
             in = parcel.bulk == kNone ? !parcel.shared : parcel.bulk >= 2;
  int links[Network::kMostLinks];
  size_t count = 0;
  const auto from = static_cast<size_t>(parcel.from), to = static_cast<size_t>(parcel.to);
  if (out) links[count++] = path.local ? localOut_[from] : netOut_[from];
  if (in) links[count++] = path.local ? localIn_[to] : netIn_[to];
  if (!path.local && !leafUp_.empty()) {
    const auto ofLeaf = static_cast<size_t>(machine_.gpus) * static_cast<size_t>(machine_.net.leafNodes);
    if (from / ofLeaf != to / ofLeaf) {
      if (out) links[count++] = leafUp_[from / ofLeaf];
      if (in) links[count++] = leafDown_[to / ofLeaf];
    }
  }
  const bool byKernels =
      path.local && parcel.engine == Engine::Kernel && parcel.sender != kNone && !actives_[parcel.sender].steps;
  const double port = machine_.local.portGbs;
  const double bytes = byKernels ? parcel.bytes * port / (kOfExchanges * machine_.local.gbs) : parcel.bytes;
  network_.start(std::span(links, count), bytes, byKernels ? port : path.cap, id);
}

/// The last byte has left the sender.
void Player::leave(uint32_t id) {
  const Parcel& parcel = parcels_[id];
  const double alpha = pathOf(parcel).alpha;
  if (parcel.bulk != kNone) return queue_.add(queue_.now() + fromUs(alpha), kBulk, id);
  // A program that forwards messages adds its own time for a hop to the link's.
  const bool hops = (parcel.sender == kNone || actives_[parcel.sender].steps) && parcel.engine == Engine::Kernel &&
                    !machine_.onHosts();
  queue_.add(queue_.now() + fromUs(alpha + (hops ? machine_.scan.hopUs : 0)), kArrive, id);
  if (parcel.sender != kNone) part(parcel.sender);
}

void Player::arrive(uint32_t id) {
  Parcel& parcel = parcels_[id];
  parcel.arrived = true;
  if (parcel.receiver == kNone) return;
  const uint32_t receiver = parcel.receiver;
  freeParcels_.push_back(id);
  part(receiver);
}

/// A message without a parcel has arrived.
void Player::deliver(Pair& pair) {
  if (pair.receiver != kNone) return part(std::exchange(pair.receiver, kNone));
  if (pair.head == kNone) {
    ++pair.arrived;
    return;
  }
  const uint32_t other = match(pair, true);
  if (other != kNone) {
    const uint32_t receiver = parcels_[other].receiver;
    freeParcels_.push_back(other);
    return part(receiver);
  }
  const uint32_t id = newParcel();
  parcels_[id].isSend = parcels_[id].started = parcels_[id].arrived = true;
  append(pair, id);
}

void Player::bulkSent(uint32_t id) {
  const Parcel whole = parcels_[id];
  freeParcels_.push_back(id);
  const uint32_t active = whole.sender;
  if (whole.bulk < 2) {
    const Active own = actives_[active];
    const Program& program = programs_[own.rank];
    const auto rank = static_cast<int>(own.rank);
    auto& sent = result_.ranks[own.rank];
    (whole.bulk == 1 ? sent.localBytes : sent.networkBytes) += whole.bytes;
    for (uint32_t i = 0; i < own.sends; ++i) {
      const int peer = program.messages[own.messages + i].peer;
      if (sameNode(rank, peer) == (whole.bulk == 1)) deliver(pairOf(rank, peer, own.lane));
    }
  }
  part(active);
}

}  // namespace seqpar::sim
