#include "attn/linear/families/decay/passes.h"

#include <algorithm>

#include "attn/linear/host/tile.h"
#include "attn/linear/host/vector.h"
#include "base/sgemm.h"

namespace seqpar::attn::linear {
namespace {

/// Maximum number of chunks with intra-chunk outputs stored until a scan is done: enough for scans of milliseconds, and
/// 8 MiB for a valueDim of 128.
constexpr size_t kMostBesideScan = 256;

float* takeFloats(Arena& arena, size_t count) {
  return static_cast<float*>(arena.take(count * sizeof(float)));
}

}  // namespace

DecayPasses::DecayPasses(const Shard& shard, HostExec& exec)
    : shard_(shard),
      exec_(exec),
      chunks_(shard_.pieces, shard.batch, shard.keyHeads, threadsOfHead(shard, exec)),
      scratch_(static_cast<size_t>(exec.pool().threads())) {
  withinRoom_ = shard.alone || !exec.overlaps() ? 0 : std::min(kMostBesideScan, chunks_.count() * shard.heads);
  withinDone_.resize(withinRoom_);
}

std::string DecayPasses::name() const {
  return "host, chunks of " + std::to_string(kChunk) + " tokens on " + std::to_string(exec_.pool().threads()) +
         " threads";
}

DecayPasses::Walk DecayPasses::carveWalk(Arena& arena) const {
  const size_t heads = shard_.heads, chunks = chunks_.count(), segments = chunks_.segments();
  Walk walk;
  walk.slots = takeFloats(arena, chunks * heads * shard_.stateSize());
  walk.decays = takeFloats(arena, chunks * heads * shard_.width());
  walk.ends = takeFloats(arena, segments * heads * shard_.stateSize());
  walk.segmentDecays = takeFloats(arena, segments * heads * shard_.width());
  return walk;
}

void DecayPasses::carve(Arena& arena) {
  const size_t width = shard_.width();
  rankState_ = rankDecay_ = nullptr;
  if (!shard_.alone) {
    rankState_ = takeFloats(arena, shard_.states());
    rankDecay_ = takeFloats(arena, shard_.allHeads() * width);
    within_ = takeFloats(arena, withinRoom_ * kChunk * shard_.dv);
  }
  if (!shard_.alone || chunks_.split()) forward_ = carveWalk(arena);
  if (shard_.training && (!shard_.alone || chunks_.split())) backward_ = carveWalk(arena);
  if (shard_.training) {
    const size_t states = scratch_.size() * chunks_.longestSegment() * shard_.group();
    if (recomputesLate()) states_ = takeFloats(arena, states * shard_.stateSize());
    carried_ = takeFloats(arena, scratch_.size() * shard_.group() * shard_.stateSize());
    if (shard_.family->perHead(0)) fixedGates_ = takeFloats(arena, chunks_.count() * shard_.heads);
  }
  threads_.clear();
  for (auto*& memory : scratch_) {
    memory = takeFloats(arena, Chunk::numbers(shard_.dk, shard_.dv, width, shard_.training));
    Floats parts(memory);
    threads_.emplace_back(shard_.dk, shard_.dv, width, shard_.training, parts);
  }
}

Chunk& DecayPasses::place(int thread, size_t chunk) {
  Chunk& placed = threads_[static_cast<size_t>(thread)];
  placed.place(chunks_.segmentOf(chunk).batch, chunks_.firstToken(chunk), chunks_.tokens(chunk));
  return placed;
}

Decay DecayPasses::decayOf(const Inputs& in) const {
  if (shard_.family->gateCount == 0) return {};
  return {in.gates[0], shard_.family->perHead(0), shard_.width()};
}

const Tensor& DecayPasses::inputGateOf(const Inputs& in) const {
  return in.gates[shard_.family->gateCount];
}

const Tensor& DecayPasses::decaysPerToken(const Inputs& in) const {
  static const Tensor none;
  return shard_.family->gateCount == 0 || shard_.family->perHead(0) ? none : in.gates[0];
}

void DecayPasses::announce(std::initializer_list<const Tensor*> tensors, std::initializer_list<const Walk*> walks,
                           size_t chunk, size_t head) const {
  Ahead& ahead = aheadOfThread();
  ahead.clear();
  if (chunk >= chunks_.count()) return;
  const size_t batch = chunks_.segmentOf(chunk).batch, first = chunks_.firstToken(chunk),
               tokens = chunks_.tokens(chunk);
  for (const Tensor* const tensor : tensors) {
    announceTile(*tensor, batch, first, tokens, head * static_cast<size_t>(tensor->heads) / shard_.heads);
  }
  for (const Walk* const walk : walks) ahead.add({slot(*walk, chunk, head), 0, shard_.stateSize() * sizeof(float), 1});
}

void DecayPasses::announceTask(std::initializer_list<const Tensor*> tensors, std::initializer_list<const Walk*> walks,
                               size_t task, size_t heads) const {
  const size_t next = task + scratch_.size();
  announce(tensors, walks, next / heads, next % heads * (shard_.heads / heads));
}

void DecayPasses::rankDecays(const Walk& walk) {
  const size_t heads = shard_.heads, width = shard_.width();
  std::fill_n(rankDecay_, shard_.allHeads() * width, 1.0f);
  for (size_t s = 0; s < chunks_.segments(); ++s) {
    multiplyEach(segmentDecay(walk, s, 0), 1, heads * width, rankDecay_ + chunks_.segment(s).batch * heads * width);
  }
}

const float* DecayPasses::stateBefore(Chunk& chunk, size_t c, size_t head) const {
  const float* const state = slot(forward_, c, head);
  const size_t first = chunks_.segmentOf(c).firstChunk;
  if (c == first) return state;
  addDecayedState(decayAt(forward_, c, head), shard_.width(), shard_.dk, shard_.dv, state, slot(forward_, first, head),
                  chunk.state());
  return chunk.state();
}

void DecayPasses::copyStates(float* to, const float* from) {
  exec_.launch([this, to, from] {
    if (from == nullptr) {
      std::fill_n(to, shard_.states(), 0.0f);
    } else {
      std::copy_n(from, shard_.states(), to);
    }
  });
}

std::unique_ptr<Passes> makeDecayPasses(const Shard& shard, Exec& exec) {
  return std::make_unique<DecayPasses>(shard, dynamic_cast<HostExec&>(exec));
}

}  // namespace seqpar::attn::linear
