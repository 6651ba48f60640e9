// The forward passes.
#include <algorithm>
#include <limits>

#include "attn/linear/families/delta/passes.h"
#include "attn/linear/host/fold.h"
#include "attn/linear/host/tile.h"

namespace seqpar::attn::linear {

void DeltaPasses::runStates(const Inputs& in, size_t s, size_t head, Scratch& scratch, float* state,
                            size_t columns) const {
  const Segment segment = chunks_.segment(s);
  DeltaChunk& chunk = scratch.chunk;
  for (size_t n = 0; n < segment.chunks; ++n) {
    placeAt(chunk, segment.firstChunk + n);
    loadKeySide(in, chunk, head);
    chunk.write(state, columns);
    chunk.advance(state, columns);
  }
}

void DeltaPasses::mapSegments(const Inputs& in) {
  const size_t heads = shard_.heads;
  exec_.pool().each(chunks_.segments() * heads, [&](size_t task, int thread) {
    const size_t s = task / heads, h = task % heads;
    setIdentity(mapOf(maps_, s, h));
    runStates(in, s, h, scratchOf(thread), mapOf(maps_, s, h), shard_.dv + shard_.dk);
  });
}

void DeltaPasses::fold(const float* initial, const float* before, bool keep, float* after) {
  const size_t heads = shard_.heads, size = shard_.stateSize();
  exec_.pool().each(shard_.allHeads(), [&](size_t task, int thread) {
    Scratch& scratch = scratchOf(thread);
    const size_t h = task % heads;
    foldHead(
        shard_, chunks_, task, initial, before, after != nullptr ? after + task * size : scratch.state,
        [&](size_t s, const Segment&, const float* state) {
          if (keep) std::copy_n(state, size, borderOf(s, h));
        },
        [&](size_t s, float* state) { applyMap(mapOf(maps_, s, h), state, scratch); });
  });
}

void DeltaPasses::states(const Inputs& in, MapUse use) {
  if (use == MapUse::Nothing && !chunks_.split()) return;
  exec_.launch([this, in, use] {
    // The output of a failed pass must not look like a state to other ranks.
    std::fill_n(rankStates_, shard_.states(), std::numeric_limits<float>::quiet_NaN());
    if (use == MapUse::Whole || chunks_.split()) {
      mapSegments(in);
      fold(in.initial, nullptr, false, rankStates_);
    } else {
      // From zeros, or from a state of the caller: the last segment is the only one of its piece.
      const size_t heads = shard_.heads, segments = chunks_.segmentsOfEntry();
      exec_.pool().each(shard_.allHeads(), [&](size_t task, int thread) {
        float* const state = rankStates_ + task * shard_.stateSize();
        if (segments == 0) {
          std::fill_n(state, shard_.stateSize(), 0.0f);
          return;
        }
        const size_t s = (task / heads + 1) * segments - 1, h = task % heads;
        copyBefore(in, s, h, nullptr, state);
        runStates(in, s, h, scratchOf(thread), state, shard_.dv);
      });
    }
    composeTransitions(use, false);
  });
}

void DeltaPasses::outputs(const Inputs& in, const Tensor& out, const float* incoming) {
  exec_.launch([this, in, out, incoming] {
    if (chunks_.split()) fold(in.initial, incoming, true, nullptr);
    allOutputs(in, out, incoming, nullptr);
  });
}

void DeltaPasses::forwardAlone(const Inputs& in, const Tensor& out, const float* incoming, float* final) {
  if (chunks_.count() == 0) {
    if (final != nullptr) copyStates(final, incoming);
    return;
  }
  exec_.launch([this, in, out, incoming, final] {
    if (chunks_.split()) {
      mapSegments(in);
      fold(in.initial, incoming, true, nullptr);
    }
    allOutputs(in, out, incoming, final);
  });
}

void DeltaPasses::allOutputs(const Inputs& in, const Tensor& out, const float* incoming, float* final) {
  const size_t heads = shard_.heads;
  exec_.pool().each(chunks_.segments() * heads, [&](size_t task, int thread) {
    segmentOutput(in, out, task / heads, task % heads, thread, incoming, final);
  });
}

void DeltaPasses::segmentOutput(const Inputs& in, const Tensor& out, size_t s, size_t h, int thread,
                                const float* incoming, float* final) {
  const Segment segment = chunks_.segment(s);
  Scratch& scratch = scratchOf(thread);
  DeltaChunk& chunk = scratch.chunk;
  float* const state = scratch.state;
  copyBefore(in, s, h, incoming, state);
  const bool wantsFinal = final != nullptr && chunks_.lastOfEntry(s);
  for (size_t n = 0; n < segment.chunks; ++n) {
    const size_t c = segment.firstChunk + n;
    placeAt(chunk, c);
    loadKeySide(in, chunk, h);
    chunk.loadQueries(in.q, h / shard_.group(), shard_.scale, shard_.normalize);
    chunk.scoreQueries();
    chunk.write(state, shard_.dv);
    chunk.output(state, chunk.out());
    storeTile(chunk.out(), out, segment.batch, chunks_.firstToken(c), chunk.rows(), h);
    if (n + 1 < segment.chunks || wantsFinal) chunk.advance(state, shard_.dv);
  }
  const size_t size = shard_.stateSize();
  if (wantsFinal) std::copy_n(state, size, final + (segment.batch * shard_.heads + h) * size);
}

void DeltaPasses::recompute(const Inputs& in, const float* saved) {
  exec_.launch([this, in, saved] {
    if (chunks_.split()) {
      mapSegments(in);
      fold(in.initial, saved, true, nullptr);
    }
    const size_t heads = shard_.heads;
    exec_.pool().each(chunks_.segments() * heads, [&](size_t task, int thread) {
      recomputeSegment(in, task / heads, task % heads, thread, saved);
    });
  });
}

void DeltaPasses::recomputeSegment(const Inputs& in, size_t s, size_t h, int thread, const float* saved) {
  const Segment segment = chunks_.segment(s);
  DeltaChunk& chunk = scratchOf(thread).chunk;
  copyBefore(in, s, h, saved, stateBefore(segment.firstChunk, h));
  for (size_t n = 0; n + 1 < segment.chunks; ++n) {
    const size_t c = segment.firstChunk + n;
    placeAt(chunk, c);
    loadKeySide(in, chunk, h);
    chunk.write(stateBefore(c, h), shard_.dv);
    std::copy_n(stateBefore(c, h), shard_.stateSize(), stateBefore(c + 1, h));
    chunk.advance(stateBefore(c + 1, h), shard_.dv);
  }
}

void DeltaPasses::segmentState(const Inputs& in, size_t s, size_t h, int thread, const float* incoming, float* final) {
  Scratch& scratch = scratchOf(thread);
  copyBefore(in, s, h, incoming, scratch.state);
  runStates(in, s, h, scratch, scratch.state, shard_.dv);
  const size_t size = shard_.stateSize();
  std::copy_n(scratch.state, size, final + (chunks_.segment(s).batch * shard_.heads + h) * size);
}

OwnScans DeltaPasses::openScan(seqparComm_t comm) {
  if (shard_.relays) relay_.emplace(exec_, comm, shard_, chunks_);
  return {shard_.relays, shard_.relays};
}

void DeltaPasses::forwardWithScan(const Inputs& in, const Tensor& out, const OwnScan& scan) {
  const RelayStates states = relay_->statesOf(scan, seqparForward, rankStates_);
  relay_->runForward(
      states,
      [=, this](size_t segment, size_t head, int thread) {
        segmentOutput(in, out, segment, head, thread, states.incoming, states.outgoing);
      },
      [=, this](size_t segment, size_t head, int thread) {
        segmentState(in, segment, head, thread, states.incoming, states.outgoing);
      });
}

}  // namespace seqpar::attn::linear
