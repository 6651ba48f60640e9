// The forward passes.
#include <algorithm>
#include <limits>

#include "attn/linear/families/decay/passes.h"
#include "attn/linear/host/fold.h"
#include "attn/linear/host/tile.h"
#include "attn/linear/host/vector.h"

namespace seqpar::attn::linear {

void DecayPasses::eachSegment(const std::function<void(size_t segment, HeadRange heads, int thread)>& body) {
  const size_t heads = shard_.heads, threads = scratch_.size();
  constexpr size_t kTasksOfThread = 4;  // so that threads finish at about the same time
  const size_t most = chunks_.segments() * heads / (kTasksOfThread * threads);
  const size_t together = threads == 1 ? heads : std::max<size_t>(1, most);
  const size_t ranges = (heads + together - 1) / together;
  exec_.pool().each(chunks_.segments() * ranges, [&](size_t task, int thread) {
    const size_t first = task % ranges * together;
    body(task / ranges, {first, std::min(first + together, heads)}, thread);
  });
}

void DecayPasses::walkStates(const Inputs& in) {
  const size_t width = shard_.width();
  eachSegment([&](size_t s, HeadRange heads, int thread) {
    const Segment segment = chunks_.segment(s);
    for (size_t n = 0; n < segment.chunks; ++n) {
      const size_t c = segment.firstChunk + n;
      const bool last = n + 1 == segment.chunks;
      for (size_t h = heads.begin; h < heads.end; ++h) {
        announce({&in.k, &in.v, &decaysPerToken(in)}, heads, h, c, last ? chunks_.count() : c + 1);
        Chunk& chunk = place(thread, c);
        chunk.loadKeys(in.k, h / shard_.group());
        chunk.packValues(in.v, inputGateOf(in), h);
        chunk.loadDecays(decayOf(in), h);
        chunk.decayKeys();
        chunk.updateState(n == 0 ? nullptr : slot(forward_, c, h),
                          last ? end(forward_, s, h) : slot(forward_, c + 1, h));
        float* const next = last ? segmentDecay(forward_, s, h) : decayAt(forward_, c + 1, h);
        std::copy_n(chunk.total(), width, next);
        if (n > 0) multiplyEach(decayAt(forward_, c, h), 1, width, next);
      }
    }
  });
}

void DecayPasses::fold(const float* initial, const float* before, bool keep, float* after) {
  const size_t heads = shard_.heads, size = shard_.stateSize();
  exec_.pool().each(shard_.allHeads(), [&](size_t task, int thread) {
    const size_t h = task % heads;
    foldHead(
        shard_, chunks_, task, initial, before,
        after != nullptr ? after + task * size : threads_[static_cast<size_t>(thread)].state(),
        [&](size_t, const Segment& segment, const float* state) {
          if (keep) std::copy_n(state, size, slot(forward_, segment.firstChunk, h));
        },
        [&](size_t s, float* state) { applyMap(forward_, s, h, state); });
  });
}

void DecayPasses::applyMap(const Walk& walk, size_t segment, size_t head, float* state) const {
  addDecayedState(segmentDecay(walk, segment, head), shard_.width(), shard_.dk, shard_.dv, end(walk, segment, head),
                  state, state);
}

void DecayPasses::states(const Inputs& in, MapUse) {
  exec_.launch([this, in] {
    scanDone_ = false;
    std::fill(withinDone_.begin(), withinDone_.end(), char{0});
    // The output of a failed pass must not look like a state to other ranks.
    std::fill_n(rankState_, shard_.states(), std::numeric_limits<float>::quiet_NaN());
    walkStates(in);
    fold(in.initial, nullptr, false, rankState_);
    rankDecays(forward_);
  });
}

/// The part of a chunk's output that depends on the chunk's own tokens only.
void DecayPasses::attendWithin(const Inputs& in, Chunk& chunk, size_t head, float* out) const {
  chunk.loadAndScore(in.q, in.k, head / shard_.group(), shard_.scale, decayOf(in), head);
  chunk.packValues(in.v, inputGateOf(in), head);
  chunk.attendWithin(out);
}

void DecayPasses::besideScan(const Inputs& in) {
  exec_.launchConcurrently([this] { scanDone_ = true; });
  exec_.launch([this, in] {
    const size_t heads = shard_.heads;
    exec_.pool().each(withinRoom_, [&](size_t task, int thread) {
      if (scanDone_) return;
      const size_t h = task % heads;
      attendWithin(in, place(thread, task / heads), h, within_ + task * kChunk * shard_.dv);
      withinDone_[task] = 1;
    });
  });
}

void DecayPasses::chunkOutput(const Inputs& in, const Tensor& out, size_t c, size_t h, int thread,
                              const float* within) {
  Chunk& chunk = place(thread, c);
  if (within == nullptr) {
    attendWithin(in, chunk, h, chunk.out());
  } else {
    chunk.loadQueries(in.q, h / shard_.group(), shard_.scale);
    chunk.loadDecays(decayOf(in), h);
    chunk.decayQueriesAsScored();
    std::copy_n(within, chunk.rows() * shard_.dv, chunk.out());
  }
  chunk.attendState(stateBefore(chunk, c, h), chunk.out());
  storeTile(chunk.out(), out, chunks_.segmentOf(c).batch, chunks_.firstToken(c), chunk.rows(), h);
}

void DecayPasses::outputs(const Inputs& in, const Tensor& out, const float* incoming) {
  exec_.launch([this, in, out, incoming] {
    fold(in.initial, incoming, true, nullptr);
    const size_t heads = shard_.heads;
    exec_.pool().each(chunks_.count() * heads, [&](size_t task, int thread) {
      const bool done = task < withinRoom_ && withinDone_[task] != 0;
      announceTask({&in.q, &in.k, &in.v, &decaysPerToken(in)}, {}, task, heads);
      chunkOutput(in, out, task / heads, task % heads, thread, done ? within_ + task * kChunk * shard_.dv : nullptr);
    });
  });
}

void DecayPasses::loadStateBefore(const Inputs& in, size_t s, size_t h, const float* incoming, float* to) const {
  const Segment segment = chunks_.segment(s);
  const size_t size = shard_.stateSize();
  const float* const before =
      segment.piece->begins
          ? (in.initial == nullptr ? nullptr : in.initial + segment.piece->sequence * shard_.heads * size)
          : (incoming == nullptr ? nullptr : incoming + segment.batch * shard_.heads * size);
  if (before != nullptr) {
    std::copy_n(before + h * size, size, to);
  } else {
    std::fill_n(to, size, 0.0f);
  }
}

void DecayPasses::segmentOutput(const Inputs& in, const Tensor& out, size_t s, size_t h, int thread,
                                const float* incoming, float* final) {
  const Segment segment = chunks_.segment(s);
  float* const state = threads_[static_cast<size_t>(thread)].state();
  loadStateBefore(in, s, h, incoming, state);
  for (size_t n = 0; n < segment.chunks; ++n) {
    const size_t c = segment.firstChunk + n;
    announce({&in.q, &in.k, &in.v, &decaysPerToken(in)}, {}, n + 1 < segment.chunks ? c + 1 : chunks_.count(), h);
    Chunk& chunk = place(thread, c);
    attendWithin(in, chunk, h, chunk.out());
    if (!chunk.attendFiniteState(state, chunk.out())) {
      chunk.attendWithin(chunk.out());
      chunk.attendState(state, chunk.out());
    }
    storeTile(chunk.out(), out, segment.batch, chunks_.firstToken(c), chunk.rows(), h);
    chunk.updateState(state, state);
  }
  const size_t size = shard_.stateSize();
  if (final != nullptr && chunks_.lastOfEntry(s))
    std::copy_n(state, size, final + (segment.batch * shard_.heads + h) * size);
}

void DecayPasses::forwardAlone(const Inputs& in, const Tensor& out, const float* incoming, float* final) {
  if (chunks_.count() == 0) {
    if (final != nullptr) copyStates(final, incoming);
    return;
  }
  exec_.launch([this, in, out, incoming, final] {
    const size_t heads = shard_.heads;
    if (!chunks_.split()) {
      exec_.pool().each(chunks_.segments() * heads, [&](size_t task, int thread) {
        segmentOutput(in, out, task / heads, task % heads, thread, incoming, final);
      });
      return;
    }
    walkStates(in);
    fold(in.initial, incoming, true, final);
    exec_.pool().each(chunks_.count() * heads, [&](size_t task, int thread) {
      announceTask({&in.q, &in.k, &in.v, &decaysPerToken(in)}, {}, task, heads);
      chunkOutput(in, out, task / heads, task % heads, thread, nullptr);
    });
  });
}

OwnScans DecayPasses::openScan(seqparComm_t comm) {
  if (shard_.relays) relay_.emplace(exec_, comm, shard_, chunks_);
  return {.forward = shard_.relays};
}

void DecayPasses::forwardWithScan(const Inputs& in, const Tensor& out, const OwnScan& scan) {
  const RelayStates states = relay_->statesOf(scan, seqparForward, rankState_);
  relay_->runForward(
      states,
      [=, this](size_t segment, size_t head, int thread) {
        segmentOutput(in, out, segment, head, thread, states.incoming, states.outgoing);
      },
      nullptr);
}

}  // namespace seqpar::attn::linear
