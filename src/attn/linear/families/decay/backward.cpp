// The backward passes.
#include <algorithm>
#include <limits>

#include "attn/linear/families/decay/passes.h"
#include "attn/linear/host/fold.h"
#include "attn/linear/host/tile.h"
#include "attn/linear/host/vector.h"

namespace seqpar::attn::linear {

void DecayPasses::walkGradients(const Inputs& in, const Gradients& gradients) {
  const size_t width = shard_.width();
  eachSegment([&](size_t s, HeadRange heads, int thread) {
    const Segment segment = chunks_.segment(s);
    for (size_t n = segment.chunks; n-- > 0;) {
      const size_t c = segment.firstChunk + n;
      const bool latest = n + 1 == segment.chunks;
      for (size_t h = heads.begin; h < heads.end; ++h) {
        announce({&in.q, &gradients.dOut, &decaysPerToken(in)}, heads, h, c, n > 0 ? c - 1 : chunks_.count());
        Chunk& chunk = place(thread, c);
        chunk.loadQueries(in.q, h / shard_.group(), shard_.scale);
        chunk.loadOutGradients(gradients.dOut, h);
        chunk.loadDecays(decayOf(in), h);
        chunk.decayQueries();
        chunk.updateStateGradient(latest ? nullptr : slot(backward_, c, h),
                                  n == 0 ? end(backward_, s, h) : slot(backward_, c - 1, h));
        float* const next = n == 0 ? segmentDecay(backward_, s, h) : decayAt(backward_, c - 1, h);
        std::copy_n(chunk.total(), width, next);
        if (!latest) multiplyEach(decayAt(backward_, c, h), 1, width, next);
      }
    }
  });
}

void DecayPasses::foldBack(const float* after, bool keep, float* before, float* dInitial) {
  const size_t heads = shard_.heads, size = shard_.stateSize();
  if (dInitial != nullptr) std::fill_n(dInitial, shard_.sequences * heads * size, 0.0f);
  exec_.pool().each(shard_.allHeads(), [&](size_t task, int thread) {
    const size_t h = task % heads;
    foldHeadBack(
        shard_, chunks_, task, after,
        before != nullptr ? before + task * size : threads_[static_cast<size_t>(thread)].state(),
        [&](size_t, const Segment& segment, const float* gradient) {
          if (keep) std::copy_n(gradient, size, slot(backward_, segment.firstChunk + segment.chunks - 1, h));
        },
        [&](size_t s, float* gradient) { applyMap(backward_, s, h, gradient); },
        [&](size_t sequence, const float* gradient) {
          if (dInitial != nullptr) std::copy_n(gradient, size, dInitial + (sequence * heads + h) * size);
        });
  });
}

void DecayPasses::stateGradients(const Inputs& in, const Gradients& gradients, MapUse) {
  exec_.launch([this, in, gradients] {
    std::fill_n(rankState_, shard_.states(), std::numeric_limits<float>::quiet_NaN());
    walkGradients(in, gradients);
    foldBack(nullptr, false, rankState_, nullptr);
    rankDecays(backward_);
  });
}

void DecayPasses::recompute(const Inputs& in, const float* saved) {
  exec_.launch([this, in, saved] {
    walkStates(in);
    fold(in.initial, saved, true, nullptr);
  });
}

void DecayPasses::recomputeSegment(const Inputs& in, size_t s, size_t keyHead, int thread, const float* saved) {
  const Segment segment = chunks_.segment(s);
  for (size_t g = 0; g < shard_.group(); ++g) {
    const size_t h = keyHead * shard_.group() + g, at = g * shard_.stateSize();
    loadStateBefore(in, s, h, saved, statesAt(thread, 0) + at);
    for (size_t n = 0; n + 1 < segment.chunks; ++n) {
      const size_t c = segment.firstChunk + n;
      announce({&in.k, &in.v, &decaysPerToken(in)}, {}, n + 2 < segment.chunks ? c + 1 : chunks_.count(), h);
      Chunk& chunk = place(thread, c);
      chunk.loadKeys(in.k, keyHead);
      chunk.packValues(in.v, inputGateOf(in), h);
      chunk.loadDecays(decayOf(in), h);
      chunk.decayKeys();
      chunk.updateState(statesAt(thread, n) + at, statesAt(thread, n + 1) + at);
    }
  }
}

void DecayPasses::segmentGradients(const Inputs& in, const Gradients& to, size_t s, size_t keyHead, int thread,
                                   const float* saved, float* carried) {
  const Segment segment = chunks_.segment(s);
  const size_t group = shard_.group();
  recomputeSegment(in, s, keyHead, thread, saved);
  for (size_t n = segment.chunks; n-- > 0;) {
    const size_t c = segment.firstChunk + n;
    announce({&in.q, &in.k, &in.v, &decaysPerToken(in), &to.dOut}, {}, n > 0 ? c - 1 : chunks_.count(),
             keyHead * group);
    if (n > 0) aheadOfThread().add({statesAt(thread, n - 1), 0, group * shard_.stateSize() * sizeof(float), 1});
    chunkGradients(in, to, c, keyHead, thread, statesAt(thread, n), carried);
  }
}

void DecayPasses::chunkGradients(const Inputs& in, const Gradients& to, size_t c, size_t keyHead, int thread,
                                 const float* states, float* carried) {
  const Segment segment = chunks_.segmentOf(c);
  const size_t group = shard_.group(), size = shard_.stateSize(), batch = segment.batch;
  const size_t first = chunks_.firstToken(c), lastChunk = segment.firstChunk + segment.chunks - 1;
  Chunk& chunk = place(thread, c);
  const size_t rows = chunk.rows(), keys = rows * shard_.dk;
  chunk.loadQueries(in.q, keyHead, shard_.scale);
  chunk.loadKeys(in.k, keyHead);
  for (size_t g = 0; g < group; ++g) {
    const size_t h = keyHead * group + g;
    chunk.loadValues(in.v, inputGateOf(in), h);
    chunk.loadDecays(decayOf(in), h);
    chunk.loadOutGradients(to.dOut, h);
    chunk.score();
    const float* const state = states != nullptr ? states + g * size : stateBefore(chunk, c, h);
    const float* after = carried != nullptr ? carried + g * size : slot(backward_, c, h);
    if (carried == nullptr && c != lastChunk) {
      addDecayedState(decayAt(backward_, c, h), shard_.width(), shard_.dk, shard_.dv, after,
                      slot(backward_, lastChunk, h), chunk.stateGradient());
      after = chunk.stateGradient();
    }
    chunk.gradients(state, after);
    if (shard_.family->gateCount > 0 && to.dGates[0].data != nullptr) {
      const float* const gate = chunk.gateGradients(state, after);
      if (!shard_.family->perHead(0)) {
        storeTile(gate, to.dGates[0], batch, first, rows, h);
      } else {
        float sum = 0;
        for (size_t t = 0; t < rows; ++t) sum += gate[t];
        fixedGates_[c * shard_.heads + h] = sum;
      }
    }
    if (inputGateOf(in).data != nullptr) {
      const float* const gate = chunk.inputGradients(in.v, h);
      const Tensor& dInput = to.dGates[shard_.family->gateCount];
      if (dInput.data != nullptr) storeTile(gate, dInput, batch, first, rows, h);
    }
    storeTile(chunk.valueGradients(), to.dv, batch, first, rows, h);
    if (carried != nullptr) chunk.updateStateGradient(carried + g * size, carried + g * size);
    if (g == 0) {
      std::copy_n(chunk.queryGradients(), keys, chunk.querySum());
      std::copy_n(chunk.keyGradients(), keys, chunk.keySum());
    } else {
      add(chunk.queryGradients(), keys, chunk.querySum());
      add(chunk.keyGradients(), keys, chunk.keySum());
    }
  }
  scale(shard_.scale, keys, chunk.querySum());
  storeTile(chunk.querySum(), to.dq, batch, first, rows, keyHead);
  storeTile(chunk.keySum(), to.dk, batch, first, rows, keyHead);
}

/// Sums in fp64: the terms of many chunks may cancel.
void DecayPasses::addFixedGates(const Gradients& to) {
  if (!shard_.family->perHead(0) || to.dGates[0].data == nullptr) return;
  for (size_t h = 0; h < shard_.heads; ++h) {
    double sum = 0;
    for (size_t c = 0; c < chunks_.count(); ++c) sum += static_cast<double>(fixedGates_[c * shard_.heads + h]);
    const auto rounded = static_cast<float>(sum);
    storeTile(&rounded, to.dGates[0], 0, 0, 1, h);
  }
}

void DecayPasses::gradients(const Inputs& in, const Gradients& to, const float*, const float* incoming) {
  exec_.launch([this, in, to, incoming] {
    foldBack(incoming, true, nullptr, to.dInitial);
    const size_t heads = shard_.keyHeads;
    exec_.pool().each(chunks_.count() * heads, [&](size_t task, int thread) {
      announceTask({&in.q, &in.k, &in.v, &decaysPerToken(in), &to.dOut}, {&forward_, &backward_}, task, heads);
      chunkGradients(in, to, task / heads, task % heads, thread, nullptr, nullptr);
    });
    addFixedGates(to);
  });
}

void DecayPasses::backwardAlone(const Inputs& in, const Gradients& to, const float* saved, const float* incoming,
                                float* dBefore) {
  if (!recomputesLate()) recompute(in, saved);
  exec_.launch([this, in, to, saved, incoming, dBefore] {
    const size_t heads = shard_.keyHeads, size = shard_.stateSize(), group = shard_.group();
    if (chunks_.split() || chunks_.count() == 0) {
      walkGradients(in, to);
      foldBack(incoming, true, dBefore, to.dInitial);
      exec_.pool().each(chunks_.count() * heads, [&](size_t task, int thread) {
        announceTask({&in.q, &in.k, &in.v, &decaysPerToken(in), &to.dOut}, {&forward_, &backward_}, task, heads);
        chunkGradients(in, to, task / heads, task % heads, thread, nullptr, nullptr);
      });
      addFixedGates(to);
      return;
    }
    if (to.dInitial != nullptr) std::fill_n(to.dInitial, shard_.sequences * shard_.heads * size, 0.0f);
    if (dBefore != nullptr) std::fill_n(dBefore, shard_.states(), 0.0f);
    exec_.pool().each(chunks_.segments() * heads, [&](size_t task, int thread) {
      const size_t s = task / heads, first = task % heads * group;
      const Segment segment = chunks_.segment(s);
      float* const carried = carried_ + static_cast<size_t>(thread) * group * size;
      const bool fromBehind = incoming != nullptr && segment.piece->reachesEnd && chunks_.lastOfEntry(s);
      if (fromBehind) {
        std::copy_n(incoming + (segment.batch * shard_.heads + first) * size, group * size, carried);
      } else {
        std::fill_n(carried, group * size, 0.0f);
      }
      segmentGradients(in, to, s, task % heads, thread, saved, carried);
      if (segment.piece->begins) {
        if (to.dInitial != nullptr) {
          std::copy_n(carried, group * size, to.dInitial + (segment.piece->sequence * shard_.heads + first) * size);
        }
      } else if (dBefore != nullptr) {
        std::copy_n(carried, group * size, dBefore + (segment.batch * shard_.heads + first) * size);
      }
    });
    addFixedGates(to);
  });
}

}  // namespace seqpar::attn::linear
