#include "attn/linear/host/relay.h"

#include <algorithm>
#include <limits>

#include "attn/boundary.h"

namespace seqpar::attn::linear {
namespace {

constexpr const char* kWho = "linear attention";
constexpr float kNaN = std::numeric_limits<float>::quiet_NaN();

}  // namespace

Relay::Relay(HostExec& exec, seqparComm_t comm, const Shard& shard, const Chunks& chunks)
    : exec_(exec),
      comm_(comm),
      turns_(RelayTurns::of(comm)),
      shard_(shard),
      chunks_(chunks),
      heads_(shard.batch * shard.keyHeads),
      atOnce_(static_cast<size_t>(exec.pool().threads())),
      stateSize_(shard.group() * shard.stateSize()) {
  seqparCommInfo_t info = SEQPAR_COMM_INFO_INITIALIZER;
  require(seqparCommQuery(comm, &info), kWho, comm);
  rank_ = info.rank;
  ranks_ = info.nranks;
}

void Relay::transfer(const float* send, int to, float* receive, int from) const {
  const size_t bytes = stateSize_ * sizeof(float);
  require(seqparSendRecv(send, to == SEQPAR_NO_PEER ? 0 : bytes, to, receive, from == SEQPAR_NO_PEER ? 0 : bytes, from,
                         comm_, exec_.main()),
          kWho, comm_);
}

int Relay::peer(seqparDirection_t direction, int steps) const {
  const int peer = rank_ + (direction == seqparForward ? steps : -steps);
  return peer >= 0 && peer < ranks_ ? peer : SEQPAR_NO_PEER;
}

RelayStates Relay::statesOf(const OwnScan& scan, seqparDirection_t direction, float* own) const {
  const bool sends = peer(direction, 1) != SEQPAR_NO_PEER;
  return {scan.initial, scan.incoming, scan.outgoing != nullptr || !sends ? scan.outgoing : own};
}

void Relay::each(seqparDirection_t direction, const HeadWork& work, size_t first, size_t count) const {
  const size_t tasks = direction == seqparForward ? shard_.group() : 1;  // of a key head
  exec_.pool().each(count * tasks, [&](size_t task, int thread) { work(first * tasks + task, thread); });
}

void Relay::run(seqparDirection_t direction, const RelayStates& states, const Work& work) const {
  const int before = peer(direction, -1), after = peer(direction, 1);
  const bool statesFirst = turns_->startsAndEnds(direction) && after != SEQPAR_NO_PEER && work.states != nullptr;
  for (size_t first = 0; first < heads_; first += atOnce_) {
    const size_t count = std::min(atOnce_, heads_ - first), end = first + count;
    for (size_t h = first; before != SEQPAR_NO_PEER && h < end; ++h) {
      transfer(nullptr, SEQPAR_NO_PEER, states.incoming + h * stateSize_, before);
    }
    const auto& now = statesFirst && first == 0 ? work.states : work.all;
    exec_.launch([=, this, isFirst = before == SEQPAR_NO_PEER] {
      const size_t begin = first * stateSize_, size = count * stateSize_;
      if (isFirst && states.initial != nullptr) std::copy_n(states.initial + begin, size, states.incoming + begin);
      if (isFirst && states.initial == nullptr) std::fill_n(states.incoming + begin, size, 0.0f);
      // The output of failed work must not look like a state to other ranks.
      if (states.outgoing != nullptr) std::fill_n(states.outgoing + begin, size, kNaN);
      each(direction, now, first, count);
    });
    for (size_t h = first; after != SEQPAR_NO_PEER && h < end; ++h) {
      transfer(states.outgoing + h * stateSize_, after, nullptr, SEQPAR_NO_PEER);
    }
  }
  if (statesFirst) exec_.launch([=, this] { each(direction, work.all, 0, std::min(atOnce_, heads_)); });
}

void Relay::runForward(const RelayStates& states, const SegmentWork& output, const SegmentWork& state) const {
  const auto work = [this, states](const SegmentWork& segmentWork, bool lastOnly) -> HeadWork {
    if (segmentWork == nullptr) return nullptr;
    return [=, this](size_t head, int thread) {
      const size_t entry = head / shard_.heads, segments = chunks_.segmentsOfEntry(), size = shard_.stateSize();
      if (segments == 0 && states.outgoing != nullptr) {
        std::copy_n(states.incoming + head * size, size, states.outgoing + head * size);
      }
      const size_t end = (entry + 1) * segments;
      for (size_t s = lastOnly && segments > 0 ? end - 1 : entry * segments; s < end; ++s) {
        segmentWork(s, head % shard_.heads, thread);
      }
    };
  };
  run(seqparForward, states, {.all = work(output, false), .states = work(state, true)});
}

}  // namespace seqpar::attn::linear
