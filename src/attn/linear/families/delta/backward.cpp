// The backward passes.
#include <algorithm>
#include <limits>

#include "attn/linear/families/delta/passes.h"
#include "attn/linear/host/fold.h"
#include "attn/linear/host/tile.h"
#include "attn/linear/host/vector.h"

namespace seqpar::attn::linear {

void DeltaPasses::runGradients(const Inputs& in, const Tensor& dOut, size_t s, size_t head, Scratch& scratch, float* x,
                               size_t columns) const {
  const Segment segment = chunks_.segment(s);
  DeltaChunk& chunk = scratch.chunk;
  for (size_t n = segment.chunks; n-- > 0;) {
    placeAt(chunk, segment.firstChunk + n);
    chunk.loadQueries(in.q, head / shard_.group(), shard_.scale, shard_.normalize);
    chunk.loadOutGradients(dOut, head);
    chunk.loadKeys(in.k, head / shard_.group(), shard_.normalize);
    loadGates(in, chunk, head);
    chunk.scoreKeys();
    chunk.scoreQueries();
    chunk.stateGradient(x, columns);
  }
}

void DeltaPasses::mapSegmentsBack(const Inputs& in, const Tensor& dOut) {
  const size_t heads = shard_.heads;
  exec_.pool().each(chunks_.segments() * heads, [&](size_t task, int thread) {
    const size_t s = task / heads, h = task % heads;
    setIdentity(mapOf(mapsBack_, s, h));
    runGradients(in, dOut, s, h, scratchOf(thread), mapOf(mapsBack_, s, h), shard_.dv + shard_.dk);
  });
}

void DeltaPasses::foldBack(const float* after, bool keep, float* before) {
  const size_t heads = shard_.heads, size = shard_.stateSize();
  exec_.pool().each(shard_.allHeads(), [&](size_t task, int thread) {
    Scratch& scratch = scratchOf(thread);
    const size_t h = task % heads;
    foldHeadBack(
        shard_, chunks_, task, after, before != nullptr ? before + task * size : scratch.state,
        [&](size_t s, const Segment&, const float* gradient) {
          if (keep) std::copy_n(gradient, size, borderOf(s, h));
        },
        [&](size_t s, float* gradient) { applyMap(mapOf(mapsBack_, s, h), gradient, scratch); },
        [](size_t, const float*) {});
  });
}

void DeltaPasses::stateGradients(const Inputs& in, const Gradients& to, MapUse use) {
  if (use == MapUse::Nothing && !chunks_.split()) return;
  exec_.launch([this, in, to, use] {
    std::fill_n(rankStates_, shard_.states(), std::numeric_limits<float>::quiet_NaN());
    if (use == MapUse::Whole || chunks_.split()) {
      mapSegmentsBack(in, to.dOut);
      foldBack(nullptr, false, rankStates_);
    } else {
      const size_t heads = shard_.heads, segments = chunks_.segmentsOfEntry();
      exec_.pool().each(shard_.allHeads(), [&](size_t task, int thread) {
        float* const x = rankStates_ + task * shard_.stateSize();
        std::fill_n(x, shard_.stateSize(), 0.0f);
        const size_t s = task / heads * segments;
        if (segments == 0 || chunks_.segment(s).piece->begins) return;
        runGradients(in, to.dOut, s, task % heads, scratchOf(thread), x, shard_.dv);
      });
    }
    composeTransitions(use, true);
  });
}

void DeltaPasses::chunkGradients(const Inputs& in, const Gradients& to, size_t c, size_t keyHead,
                                 Scratch& scratch) const {
  DeltaChunk& chunk = scratch.chunk;
  placeAt(chunk, c);
  const size_t group = shard_.group(), rows = chunk.rows(), keys = rows * shard_.dk;
  const size_t batch = chunks_.segmentOf(c).batch, first = chunks_.firstToken(c);
  const auto store = [&](const float* from, const Tensor& tensor, size_t head) {
    if (tensor.data != nullptr) storeTile(from, tensor, batch, first, rows, head);
  };
  chunk.loadQueries(in.q, keyHead, shard_.scale, shard_.normalize);
  chunk.loadKeys(in.k, keyHead, shard_.normalize);
  for (size_t g = 0; g < group; ++g) {
    const size_t h = keyHead * group + g;
    chunk.loadValues(in.v, h);
    loadGates(in, chunk, h);
    chunk.loadOutGradients(to.dOut, h);
    chunk.scoreKeys();
    chunk.scoreQueries();
    chunk.write(stateBefore(c, h), shard_.dv);
    chunk.gradients(stateBefore(c, h), scratch.state + g * shard_.stateSize());
    store(chunk.valueGradients(), to.dv, h);
    store(chunk.betaGradients(), to.dGates[beta_], h);
    if (logDecay_ < shard_.family->gateCount) store(chunk.gateGradients(), to.dGates[logDecay_], h);
    if (g == 0) {
      std::copy_n(chunk.queryGradients(), keys, chunk.querySum());
      std::copy_n(chunk.keyGradients(), keys, chunk.keySum());
    } else {
      add(chunk.queryGradients(), keys, chunk.querySum());
      add(chunk.keyGradients(), keys, chunk.keySum());
    }
  }
  chunk.finishQueryGradients(shard_.scale, shard_.normalize, chunk.querySum());
  chunk.finishKeyGradients(shard_.normalize, chunk.keySum());
  store(chunk.querySum(), to.dq, keyHead);
  store(chunk.keySum(), to.dk, keyHead);
}

void DeltaPasses::allGradients(const Inputs& in, const Gradients& to, const float* incoming, float* dBefore) {
  const size_t keyHeads = shard_.keyHeads, size = shard_.stateSize();
  if (to.dInitial != nullptr) std::fill_n(to.dInitial, shard_.sequences * shard_.heads * size, 0.0f);
  if (dBefore != nullptr) std::fill_n(dBefore, shard_.states(), 0.0f);
  exec_.pool().each(chunks_.segments() * keyHeads, [&](size_t task, int thread) {
    segmentGradients(in, to, task / keyHeads, task % keyHeads, thread, incoming, dBefore);
  });
}

void DeltaPasses::copyBehind(size_t s, size_t keyHead, const float* incoming, float* to) const {
  const size_t group = shard_.group(), size = group * shard_.stateSize(), first = keyHead * group;
  const Segment segment = chunks_.segment(s);
  const bool fromBehind = incoming != nullptr && segment.piece->reachesEnd && chunks_.lastOfEntry(s);
  if (segment.continued) {
    std::copy_n(borderOf(s, first), size, to);
  } else if (fromBehind) {
    std::copy_n(incoming + (segment.batch * shard_.heads + first) * shard_.stateSize(), size, to);
  } else {
    std::fill_n(to, size, 0.0f);
  }
}

void DeltaPasses::segmentGradients(const Inputs& in, const Gradients& to, size_t s, size_t keyHead, int thread,
                                   const float* incoming, float* dBefore) {
  const size_t size = shard_.stateSize(), group = shard_.group(), first = keyHead * group;
  const Segment segment = chunks_.segment(s);
  Scratch& scratch = scratchOf(thread);
  copyBehind(s, keyHead, incoming, scratch.state);
  for (size_t n = segment.chunks; n-- > 0;) chunkGradients(in, to, segment.firstChunk + n, keyHead, scratch);
  if (segment.continues) return;
  if (segment.piece->begins) {
    if (to.dInitial != nullptr) {
      std::copy_n(scratch.state, group * size, to.dInitial + (segment.piece->sequence * shard_.heads + first) * size);
    }
  } else if (dBefore != nullptr) {
    std::copy_n(scratch.state, group * size, dBefore + (segment.batch * shard_.heads + first) * size);
  }
}

void DeltaPasses::gradients(const Inputs& in, const Gradients& to, const float*, const float* incoming) {
  exec_.launch([this, in, to, incoming] {
    if (chunks_.split()) foldBack(incoming, true, nullptr);
    allGradients(in, to, incoming, nullptr);
  });
}

void DeltaPasses::backwardAlone(const Inputs& in, const Gradients& to, const float* saved, const float* incoming,
                                float* dBefore) {
  recompute(in, saved);
  exec_.launch([this, in, to, incoming, dBefore] {
    if (chunks_.split()) {
      mapSegmentsBack(in, to.dOut);
      foldBack(incoming, true, nullptr);
    }
    allGradients(in, to, incoming, dBefore);
  });
  if (chunks_.count() == 0 && dBefore != nullptr) copyStates(dBefore, incoming);
}

void DeltaPasses::backwardWithScan(const Inputs& in, const Gradients& to, const float* saved, const OwnScan& scan) {
  const RelayStates states = relay_->statesOf(scan, seqparReverse, rankStates_);
  exec_.launch([this, to] {
    const size_t initials = shard_.sequences * shard_.heads * shard_.stateSize();
    if (to.dInitial != nullptr) std::fill_n(to.dInitial, initials, 0.0f);
  });
  const size_t keyHeads = shard_.keyHeads, group = shard_.group(), segments = chunks_.segmentsOfEntry();
  const size_t size = group * shard_.stateSize();
  // Sequences that start on this rank have no gradient to send.
  const auto startOutgoing = [=](size_t number) {
    if (states.outgoing == nullptr) return;
    float* const outgoing = states.outgoing + number * size;
    if (segments == 0) {
      std::copy_n(states.incoming + number * size, size, outgoing);
    } else {
      std::fill_n(outgoing, size, 0.0f);
    }
  };
  relay_->run(seqparReverse, states,
              {.all =
                   [=, this](size_t number, int thread) {
                     const size_t entry = number / keyHeads, keyHead = number % keyHeads;
                     startOutgoing(number);
                     for (size_t s = entry * segments; s < (entry + 1) * segments; ++s) {
                       for (size_t h = keyHead * group; h < (keyHead + 1) * group; ++h)
                         recomputeSegment(in, s, h, thread, saved);
                       segmentGradients(in, to, s, keyHead, thread, states.incoming, states.outgoing);
                     }
                   },
               .states =
                   [=, this](size_t number, int thread) {
                     const size_t s = number / keyHeads * segments, keyHead = number % keyHeads;
                     startOutgoing(number);
                     if (segments == 0 || chunks_.segment(s).piece->begins) return;
                     Scratch& scratch = scratchOf(thread);
                     copyBehind(s, keyHead, states.incoming, scratch.state);
                     for (size_t g = 0; g < group; ++g) {
                       float* const x = scratch.state + g * shard_.stateSize();
                       runGradients(in, to.dOut, s, keyHead * group + g, scratch, x, shard_.dv);
                     }
                     std::copy_n(scratch.state, size, states.outgoing + number * size);
                   }});
}

}  // namespace seqpar::attn::linear
