#include "attn/linear/host/passes.h"

#include <algorithm>
#include <limits>

#include "attn/linear/host/tile.h"
#include "attn/linear/host/vector.h"

namespace seqpar::attn::linear {
namespace {

/// Chunks whose own part is kept until a scan is done: enough for scans of milliseconds, and 8 MiB for a valueDim of
/// 128.
constexpr size_t kMostBesideScan = 256;

float* takeFloats(Arena& arena, size_t count) {
  return static_cast<float*>(arena.take(count * sizeof(float)));
}

}  // namespace

HostPasses::HostPasses(const Shard& shard, HostExec& exec)
    : shard_(shard),
      exec_(exec),
      chunks_(cutIntoChunks(shard_.pieces, shard.keyHeads, static_cast<size_t>(exec.pool().threads()))),
      scratch_(static_cast<size_t>(exec.pool().threads())) {
  split_ = std::any_of(chunks_.segments.begin(), chunks_.segments.end(), [](const auto& s) { return s.continues; });
  withinRoom_ = shard.alone ? 0 : std::min(kMostBesideScan, chunks_.count() * shard.heads);
  withinDone_.resize(withinRoom_);
}

std::string HostPasses::name() const {
  return "host, chunks of " + std::to_string(kChunk) + " tokens on " + std::to_string(exec_.pool().threads()) +
         " threads";
}

HostPasses::Walk HostPasses::carveWalk(Arena& arena) const {
  const size_t heads = shard_.heads, chunks = chunks_.count(), segments = chunks_.segments.size();
  Walk walk;
  walk.slots = takeFloats(arena, chunks * heads * shard_.stateSize());
  walk.decays = takeFloats(arena, chunks * heads * shard_.width());
  walk.ends = takeFloats(arena, segments * heads * shard_.stateSize());
  walk.segmentDecays = takeFloats(arena, segments * heads * shard_.width());
  return walk;
}

void HostPasses::carve(Arena& arena) {
  const size_t width = shard_.width();
  rankState_ = rankDecay_ = nullptr;
  if (!shard_.alone) {
    rankState_ = takeFloats(arena, shard_.states());
    rankDecay_ = takeFloats(arena, shard_.allHeads() * width);
    within_ = takeFloats(arena, withinRoom_ * kChunk * shard_.dv);
  }
  if (shard_.training || !shard_.alone || split_) forward_ = carveWalk(arena);
  if (shard_.training && (!shard_.alone || split_)) backward_ = carveWalk(arena);
  if (shard_.training) {
    carried_ = takeFloats(arena, scratch_.size() * shard_.group() * shard_.stateSize());
    if (shard_.family->gate == GateShape::OfHead) fixedGates_ = takeFloats(arena, chunks_.count() * shard_.heads);
  }
  threads_.clear();
  for (auto*& memory : scratch_) {
    memory = takeFloats(arena, Chunk::numbers(shard_.dk, shard_.dv, width, shard_.training));
    threads_.emplace_back(shard_.dk, shard_.dv, width, shard_.training, memory);
  }
}

Chunk& HostPasses::place(int thread, size_t chunk) {
  Chunk& placed = threads_[static_cast<size_t>(thread)];
  placed.place(chunks_.segment(chunk).batch, chunks_.firstToken(chunk), chunks_.tokens(chunk));
  return placed;
}

Decay HostPasses::decayOf(const Inputs& in) const {
  return {in.gate, shard_.family->gate == GateShape::OfHead, shard_.width()};
}

void HostPasses::walkStates(const Inputs& in) {
  const size_t heads = shard_.heads, width = shard_.width();
  exec_.pool().each(chunks_.segments.size() * heads, [&](size_t task, int thread) {
    const size_t s = task / heads, h = task % heads;
    const Segment& segment = chunks_.segments[s];
    for (size_t n = 0; n < segment.chunks; ++n) {
      const size_t c = segment.firstChunk + n;
      const bool last = n + 1 == segment.chunks;
      Chunk& chunk = place(thread, c);
      chunk.loadKeys(in.k, h / shard_.group());
      chunk.loadValues(in.v, h);
      chunk.loadDecays(decayOf(in), h);
      chunk.decayKeys();
      chunk.updateState(n == 0 ? nullptr : slot(forward_, c, h), last ? end(forward_, s, h) : slot(forward_, c + 1, h));
      float* const next = last ? segmentDecay(forward_, s, h) : decayAt(forward_, c + 1, h);
      std::copy_n(chunk.total(), width, next);
      if (n > 0) multiplyEach(decayAt(forward_, c, h), 1, width, next);
    }
  });
}

void HostPasses::walkGradients(const Inputs& in, const Gradients& gradients) {
  const size_t heads = shard_.heads, width = shard_.width();
  exec_.pool().each(chunks_.segments.size() * heads, [&](size_t task, int thread) {
    const size_t s = task / heads, h = task % heads;
    const Segment& segment = chunks_.segments[s];
    for (size_t n = segment.chunks; n-- > 0;) {
      const size_t c = segment.firstChunk + n;
      const bool latest = n + 1 == segment.chunks;
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
  });
}

void HostPasses::fold(const float* initial, const float* before, bool keep, float* after) {
  const size_t heads = shard_.heads, size = shard_.stateSize(), width = shard_.width();
  exec_.pool().each(shard_.allHeads(), [&](size_t task, int thread) {
    const size_t b = task / heads, h = task % heads;
    float* const running = after != nullptr ? after + task * size : threads_[static_cast<size_t>(thread)].state();
    const auto set = [&](const float* from) {
      if (from != nullptr) {
        std::copy_n(from, size, running);
      } else {
        std::fill_n(running, size, 0.0f);
      }
    };
    set(before == nullptr ? nullptr : before + task * size);
    for (size_t s = 0; s < chunks_.segments.size(); ++s) {
      const Segment& segment = chunks_.segments[s];
      if (segment.batch != b) continue;
      if (segment.piece->begins && !segment.continues) {
        set(initial == nullptr ? nullptr : initial + (segment.piece->sequence * heads + h) * size);
      }
      if (keep) std::copy_n(running, size, slot(forward_, segment.firstChunk, h));
      addDecayedState(segmentDecay(forward_, s, h), width, shard_.dk, shard_.dv, end(forward_, s, h), running, running);
    }
  });
}

void HostPasses::foldBack(const float* after, bool keep, float* before, float* dInitial) {
  const size_t heads = shard_.heads, size = shard_.stateSize(), width = shard_.width();
  if (dInitial != nullptr) std::fill_n(dInitial, shard_.sequences * heads * size, 0.0f);
  exec_.pool().each(shard_.allHeads(), [&](size_t task, int thread) {
    const size_t b = task / heads, h = task % heads;
    float* const running = before != nullptr ? before + task * size : threads_[static_cast<size_t>(thread)].state();
    const bool fromBehind = after != nullptr && (shard_.pieces.empty() || shard_.pieces.back().goesOn);
    if (fromBehind) {
      std::copy_n(after + task * size, size, running);
    } else {
      std::fill_n(running, size, 0.0f);
    }
    for (size_t s = chunks_.segments.size(); s-- > 0;) {
      const Segment& segment = chunks_.segments[s];
      if (segment.batch != b) continue;
      if (keep) std::copy_n(running, size, slot(backward_, segment.firstChunk + segment.chunks - 1, h));
      addDecayedState(segmentDecay(backward_, s, h), width, shard_.dk, shard_.dv, end(backward_, s, h), running,
                      running);
      if (!segment.piece->begins || segment.continues) continue;
      if (dInitial != nullptr) std::copy_n(running, size, dInitial + (segment.piece->sequence * heads + h) * size);
      std::fill_n(running, size, 0.0f);
    }
  });
}

void HostPasses::rankDecays(const Walk& walk) {
  const size_t heads = shard_.heads, width = shard_.width();
  std::fill_n(rankDecay_, shard_.allHeads() * width, 1.0f);
  for (size_t s = 0; s < chunks_.segments.size(); ++s) {
    multiplyEach(segmentDecay(walk, s, 0), 1, heads * width, rankDecay_ + chunks_.segments[s].batch * heads * width);
  }
}

void HostPasses::states(const Inputs& in, size_t) {
  exec_.launch([this, in] {
    scanDone_ = false;
    std::fill(withinDone_.begin(), withinDone_.end(), char{0});
    // What a failed pass leaves must not look like a state to other ranks.
    std::fill_n(rankState_, shard_.states(), std::numeric_limits<float>::quiet_NaN());
    walkStates(in);
    fold(in.initial, nullptr, false, rankState_);
    rankDecays(forward_);
  });
}

void HostPasses::besideScan(const Inputs& in) {
  exec_.launchBeside([this] { scanDone_ = true; });
  exec_.launch([this, in] {
    const size_t heads = shard_.heads;
    exec_.pool().each(withinRoom_, [&](size_t task, int thread) {
      if (scanDone_) return;
      const size_t h = task % heads;
      Chunk& chunk = place(thread, task / heads);
      chunk.loadQueries(in.q, h / shard_.group(), shard_.scale);
      chunk.loadKeys(in.k, h / shard_.group());
      chunk.loadValues(in.v, h);
      chunk.loadDecays(decayOf(in), h);
      chunk.score();
      chunk.attendWithin(within_ + task * kChunk * shard_.dv);
      withinDone_[task] = 1;
    });
  });
}

void HostPasses::chunkOutput(const Inputs& in, const Tensor& out, size_t c, size_t h, int thread, const float* within) {
  Chunk& chunk = place(thread, c);
  chunk.loadQueries(in.q, h / shard_.group(), shard_.scale);
  chunk.loadDecays(decayOf(in), h);
  if (within == nullptr) {
    chunk.loadKeys(in.k, h / shard_.group());
    chunk.loadValues(in.v, h);
    chunk.score();
    chunk.attendWithin(chunk.out());
  } else {
    chunk.decayQueriesAsScored();
    std::copy_n(within, chunk.rows() * shard_.dv, chunk.out());
  }
  const float* state = slot(forward_, c, h);
  if (!chunks_.first(c)) {
    addDecayedState(decayAt(forward_, c, h), shard_.width(), shard_.dk, shard_.dv, state,
                    slot(forward_, chunks_.segment(c).firstChunk, h), chunk.state());
    state = chunk.state();
  }
  chunk.attendState(state, chunk.out());
  storeTile(chunk.out(), out, chunks_.segment(c).batch, chunks_.firstToken(c), chunk.rows(), h);
}

void HostPasses::outputs(const Inputs& in, const Tensor& out, const float* incoming, size_t) {
  exec_.launch([this, in, out, incoming] {
    fold(in.initial, incoming, true, nullptr);
    const size_t heads = shard_.heads;
    exec_.pool().each(chunks_.count() * heads, [&](size_t task, int thread) {
      const bool done = task < withinRoom_ && withinDone_[task] != 0;
      chunkOutput(in, out, task / heads, task % heads, thread, done ? within_ + task * kChunk * shard_.dv : nullptr);
    });
  });
}

void HostPasses::segmentOutput(const Inputs& in, const Tensor& out, size_t s, size_t h, int thread,
                               const float* incoming, float* final) {
  const Segment& segment = chunks_.segments[s];
  const size_t size = shard_.stateSize();
  float* const state = threads_[static_cast<size_t>(thread)].state();
  const float* const before =
      segment.piece->begins
          ? (in.initial == nullptr ? nullptr : in.initial + segment.piece->sequence * shard_.heads * size)
          : (incoming == nullptr ? nullptr : incoming + segment.batch * shard_.heads * size);
  if (before != nullptr) {
    std::copy_n(before + h * size, size, state);
  } else {
    std::fill_n(state, size, 0.0f);
  }
  for (size_t n = 0; n < segment.chunks; ++n) {
    const size_t c = segment.firstChunk + n;
    Chunk& chunk = place(thread, c);
    chunk.loadQueries(in.q, h / shard_.group(), shard_.scale);
    chunk.loadKeys(in.k, h / shard_.group());
    chunk.loadValues(in.v, h);
    chunk.loadDecays(decayOf(in), h);
    chunk.score();
    chunk.attendWithin(chunk.out());
    chunk.attendState(state, chunk.out());
    storeTile(chunk.out(), out, segment.batch, chunks_.firstToken(c), chunk.rows(), h);
    chunk.updateState(state, state);
  }
  const bool lastOfRank = s + 1 == chunks_.segments.size() || chunks_.segments[s + 1].batch != segment.batch;
  if (final != nullptr && lastOfRank) std::copy_n(state, size, final + (segment.batch * shard_.heads + h) * size);
}

void HostPasses::forwardAlone(const Inputs& in, const Tensor& out, const float* incoming, float* final) {
  if (chunks_.count() == 0) {
    if (final != nullptr) copyStates(final, incoming);
    return;
  }
  exec_.launch([this, in, out, incoming, final] {
    const size_t heads = shard_.heads;
    if (!split_) {
      exec_.pool().each(chunks_.segments.size() * heads, [&](size_t task, int thread) {
        segmentOutput(in, out, task / heads, task % heads, thread, incoming, final);
      });
      return;
    }
    walkStates(in);
    fold(in.initial, incoming, true, final);
    exec_.pool().each(chunks_.count() * heads, [&](size_t task, int thread) {
      chunkOutput(in, out, task / heads, task % heads, thread, nullptr);
    });
  });
}

void HostPasses::stateGradients(const Inputs& in, const Gradients& gradients) {
  exec_.launch([this, in, gradients] {
    std::fill_n(rankState_, shard_.states(), std::numeric_limits<float>::quiet_NaN());
    walkGradients(in, gradients);
    foldBack(nullptr, false, rankState_, nullptr);
    rankDecays(backward_);
  });
}

void HostPasses::recompute(const Inputs& in, const float* saved) {
  exec_.launch([this, in, saved] {
    walkStates(in);
    fold(in.initial, saved, true, nullptr);
  });
}

void HostPasses::chunkGradients(const Inputs& in, const Gradients& to, size_t c, size_t keyHead, int thread,
                                float* carried) {
  const size_t group = shard_.group(), size = shard_.stateSize(), batch = chunks_.segment(c).batch;
  const size_t first = chunks_.firstToken(c), lastChunk = chunks_.segment(c).firstChunk + chunks_.segment(c).chunks - 1;
  Chunk& chunk = place(thread, c);
  const size_t rows = chunk.rows(), keys = rows * shard_.dk;
  chunk.loadQueries(in.q, keyHead, shard_.scale);
  chunk.loadKeys(in.k, keyHead);
  for (size_t g = 0; g < group; ++g) {
    const size_t h = keyHead * group + g;
    chunk.loadValues(in.v, h);
    chunk.loadDecays(decayOf(in), h);
    chunk.loadOutGradients(to.dOut, h);
    chunk.score();
    const float* state = slot(forward_, c, h);
    if (!chunks_.first(c)) {
      addDecayedState(decayAt(forward_, c, h), shard_.width(), shard_.dk, shard_.dv, state,
                      slot(forward_, chunks_.segment(c).firstChunk, h), chunk.state());
      state = chunk.state();
    }
    const float* after = carried != nullptr ? carried + g * size : slot(backward_, c, h);
    if (carried == nullptr && c != lastChunk) {
      addDecayedState(decayAt(backward_, c, h), shard_.width(), shard_.dk, shard_.dv, after,
                      slot(backward_, lastChunk, h), chunk.stateGradient());
      after = chunk.stateGradient();
    }
    chunk.gradients(state, after);
    storeTile(chunk.valueGradients(), to.dv, batch, first, rows, h);
    if (to.dGate.data != nullptr) {
      const float* const gate = chunk.gateGradients(state, after);
      if (shard_.family->gate != GateShape::OfHead) {
        storeTile(gate, to.dGate, batch, first, rows, h);
      } else {
        float sum = 0;
        for (size_t t = 0; t < rows; ++t) sum += gate[t];
        fixedGates_[c * shard_.heads + h] = sum;
      }
    }
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

/// Adds in fp64: the terms of many chunks may cancel.
void HostPasses::addFixedGates(const Gradients& to) {
  if (shard_.family->gate != GateShape::OfHead || to.dGate.data == nullptr) return;
  for (size_t h = 0; h < shard_.heads; ++h) {
    double sum = 0;
    for (size_t c = 0; c < chunks_.count(); ++c) sum += static_cast<double>(fixedGates_[c * shard_.heads + h]);
    const auto rounded = static_cast<float>(sum);
    storeTile(&rounded, to.dGate, 0, 0, 1, h);
  }
}

void HostPasses::gradients(const Inputs& in, const Gradients& to, const float*, const float* incoming) {
  exec_.launch([this, in, to, incoming] {
    foldBack(incoming, true, nullptr, to.dInitial);
    const size_t heads = shard_.keyHeads;
    exec_.pool().each(chunks_.count() * heads, [&](size_t task, int thread) {
      chunkGradients(in, to, task / heads, task % heads, thread, nullptr);
    });
    addFixedGates(to);
  });
}

void HostPasses::backwardAlone(const Inputs& in, const Gradients& to, const float* saved, const float* incoming,
                               float* dBefore) {
  recompute(in, saved);
  exec_.launch([this, in, to, incoming, dBefore] {
    const size_t heads = shard_.keyHeads, size = shard_.stateSize(), group = shard_.group();
    if (split_ || chunks_.count() == 0) {
      walkGradients(in, to);
      foldBack(incoming, true, dBefore, to.dInitial);
      exec_.pool().each(chunks_.count() * heads, [&](size_t task, int thread) {
        chunkGradients(in, to, task / heads, task % heads, thread, nullptr);
      });
      addFixedGates(to);
      return;
    }
    if (to.dInitial != nullptr) std::fill_n(to.dInitial, shard_.sequences * shard_.heads * size, 0.0f);
    if (dBefore != nullptr) std::fill_n(dBefore, shard_.states(), 0.0f);
    exec_.pool().each(chunks_.segments.size() * heads, [&](size_t task, int thread) {
      const size_t s = task / heads, first = task % heads * group;
      const Segment& segment = chunks_.segments[s];
      float* const carried = carried_ + static_cast<size_t>(thread) * group * size;
      const bool fromBehind = incoming != nullptr && segment.piece->goesOn &&
                              (s + 1 == chunks_.segments.size() || chunks_.segments[s + 1].batch != segment.batch);
      if (fromBehind) {
        std::copy_n(incoming + (segment.batch * shard_.heads + first) * size, group * size, carried);
      } else {
        std::fill_n(carried, group * size, 0.0f);
      }
      for (size_t n = segment.chunks; n-- > 0;) {
        chunkGradients(in, to, segment.firstChunk + n, task % heads, thread, carried);
      }
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

void HostPasses::copyStates(float* to, const float* from) {
  exec_.launch([this, to, from] {
    if (from == nullptr) {
      std::fill_n(to, shard_.states(), 0.0f);
    } else {
      std::copy_n(from, shard_.states(), to);
    }
  });
}

std::unique_ptr<Passes> makeHostPasses(const Shard& shard, Exec& exec) {
  return std::make_unique<HostPasses>(shard, dynamic_cast<HostExec&>(exec));
}

}  // namespace seqpar::attn::linear
