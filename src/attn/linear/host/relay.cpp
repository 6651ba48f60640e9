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

void Relay::run(seqparDirection_t direction, const RelayStates& states, const Work& work) const {
  const int before = peer(direction, -1), after = peer(direction, 1);
  for (size_t first = 0; first < heads_; first += atOnce_) {
    const size_t count = std::min(atOnce_, heads_ - first), end = first + count;
    for (size_t h = first; before != SEQPAR_NO_PEER && h < end; ++h) {
      transfer(nullptr, SEQPAR_NO_PEER, states.incoming + h * stateSize_, before);
    }
    exec_.launch([=, isFirst = before == SEQPAR_NO_PEER, begin = first * stateSize_, size = count * stateSize_] {
      if (isFirst && states.initial != nullptr) std::copy_n(states.initial + begin, size, states.incoming + begin);
      if (isFirst && states.initial == nullptr) std::fill_n(states.incoming + begin, size, 0.0f);
      // The output of failed work must not look like a state to other ranks.
      if (states.outgoing != nullptr) std::fill_n(states.outgoing + begin, size, kNaN);
      work(first, count);
    });
    for (size_t h = first; after != SEQPAR_NO_PEER && h < end; ++h) {
      transfer(states.outgoing + h * stateSize_, after, nullptr, SEQPAR_NO_PEER);
    }
  }
}

void Relay::runForward(const RelayStates& states, const Output& output) const {
  run(seqparForward, states, [this, states, output](size_t first, size_t count) {
    const size_t group = shard_.group(), segments = chunks_.segmentsOfEntry(), size = shard_.stateSize();
    exec_.pool().each(count * group, [&](size_t task, int thread) {
      const size_t number = first * group + task, entry = number / shard_.heads;
      if (segments == 0 && states.outgoing != nullptr) {
        std::copy_n(states.incoming + number * size, size, states.outgoing + number * size);
      }
      for (size_t s = entry * segments; s < (entry + 1) * segments; ++s) output(s, number % shard_.heads, thread);
    });
  });
}

}  // namespace seqpar::attn::linear
