#include "attn/linear/families/delta/passes.h"

#include <algorithm>

#include "attn/linear/host/vector.h"
#include "base/sgemm.h"

namespace seqpar::attn::linear {

DeltaPasses::DeltaPasses(const Shard& shard, HostExec& exec)
    : shard_(shard),
      exec_(exec),
      chunks_(shard_.pieces, shard.batch, shard.keyHeads, threadsOfHead(shard, exec)),
      logDecay_(shard.family->find(kLogDecay)),
      beta_(shard.family->find(kBeta)),
      memory_(static_cast<size_t>(exec.pool().threads())) {}

std::string DeltaPasses::name() const {
  return "host, chunks of " + std::to_string(kChunk) + " tokens in the WY form on " +
         std::to_string(exec_.pool().threads()) + " threads";
}

void DeltaPasses::carve(Arena& arena) {
  const auto take = [&](size_t count) { return static_cast<float*>(arena.take(count * sizeof(float))); };
  const bool maps = !shard_.alone || chunks_.split();
  if (!shard_.alone) {
    rankStates_ = take(shard_.states());
    rankTransition_ = take(shard_.allHeads() * shard_.dk * shard_.dk);
  }
  if (maps) maps_ = take(chunks_.segments() * shard_.heads * wideSize());
  if (maps && shard_.training) mapsBack_ = take(chunks_.segments() * shard_.heads * wideSize());
  if (chunks_.split()) borders_ = take(chunks_.segments() * shard_.heads * shard_.stateSize());
  if (shard_.training) states_ = take(chunks_.count() * shard_.heads * shard_.stateSize());
  const DeltaSizes sizes{shard_.dk, shard_.dv, shard_.width(), shard_.training, maps};
  const size_t states = shard_.group() * shard_.stateSize(), wide = maps ? wideSize() : 0;
  const size_t transition = maps ? shard_.dk * shard_.dk : 0;
  threads_.clear();
  for (auto*& memory : memory_) {
    memory = take(DeltaChunk::numbers(sizes) + states + wide + transition + kChunk);
    Floats parts(memory);
    DeltaChunk chunk(sizes, parts);
    float *const state = parts.take(states), *const ofMaps = parts.take(wide);
    threads_.push_back({chunk, state, ofMaps, parts.take(transition)});
  }
}

void DeltaPasses::placeAt(DeltaChunk& chunk, size_t number) const {
  chunk.place(chunks_.segmentOf(number).batch, chunks_.firstToken(number), chunks_.tokens(number));
}

void DeltaPasses::loadGates(const Inputs& in, DeltaChunk& chunk, size_t head) const {
  chunk.loadDecays(logDecay_ < shard_.family->gateCount ? in.gates[logDecay_] : Tensor{}, head);
  chunk.loadBetas(in.gates[beta_], head);
}

void DeltaPasses::loadKeySide(const Inputs& in, DeltaChunk& chunk, size_t head) const {
  chunk.loadKeys(in.k, head / shard_.group(), shard_.normalize);
  chunk.loadValues(in.v, head);
  loadGates(in, chunk, head);
  chunk.scoreKeys();
}

void DeltaPasses::setIdentity(float* state) const {
  const size_t dk = shard_.dk, dv = shard_.dv, columns = dv + dk;
  std::fill_n(state, dk * columns, 0.0f);
  for (size_t i = 0; i < dk; ++i) state[i * columns + dv + i] = 1.0f;
}

void DeltaPasses::applyMap(const float* map, float* state, Scratch& scratch) const {
  const size_t dk = shard_.dk, dv = shard_.dv, columns = dv + dk;
  for (size_t i = 0; i < dk; ++i) std::copy_n(map + i * columns, dv, scratch.wide + i * dv);
  multiplyForgetting(dk, dv, dk, {map + dv, columns}, {state, dv}, true, scratch.wide, dv);
  std::copy_n(scratch.wide, dk * dv, state);
}

// Maps in reverse contain transposes of A, whose product is transposed at the end.
void DeltaPasses::composeTransitions(MapUse use, bool reverse) {
  const size_t heads = shard_.heads, dk = shard_.dk, columns = shard_.dv + dk, size = dk * dk;
  if (use != MapUse::Whole) {
    std::fill_n(rankTransition_, shard_.allHeads() * size, 0.0f);
    return;
  }
  exec_.pool().each(shard_.allHeads(), [&](size_t task, int thread) {
    float* const product = scratchOf(thread).transition;
    float* const to = rankTransition_ + task * size;
    std::fill_n(to, size, 0.0f);
    for (size_t i = 0; i < dk; ++i) to[i * dk + i] = 1.0f;
    const size_t segments = chunks_.segmentsOfEntry(), first = task / heads * segments;
    for (size_t n = 0; n < segments; ++n) {
      const size_t s = first + (reverse ? segments - 1 - n : n);
      const float* const matrix = mapOf(reverse ? mapsBack_ : maps_, s, task % heads) + shard_.dv;
      multiplyForgetting(dk, dk, dk, {matrix, columns}, {to, dk}, false, product, dk);
      std::copy_n(product, size, to);
    }
    for (size_t i = 0; reverse && i < dk; ++i) {
      for (size_t j = 0; j < i; ++j) std::swap(to[i * dk + j], to[j * dk + i]);
    }
  });
}

const float* DeltaPasses::before(const Inputs& in, size_t s, size_t head, const float* incoming) const {
  const Segment segment = chunks_.segment(s);
  const size_t size = shard_.stateSize();
  if (segment.continues) return borderOf(s, head);
  if (!segment.piece->begins) {
    return incoming == nullptr ? nullptr : incoming + (segment.batch * shard_.heads + head) * size;
  }
  return in.initial == nullptr ? nullptr : in.initial + (segment.piece->sequence * shard_.heads + head) * size;
}

void DeltaPasses::copyBefore(const Inputs& in, size_t s, size_t head, const float* incoming, float* to) const {
  const float* const from = before(in, s, head, incoming);
  if (from == nullptr) {
    std::fill_n(to, shard_.stateSize(), 0.0f);
  } else {
    std::copy_n(from, shard_.stateSize(), to);
  }
}

void DeltaPasses::copyStates(float* to, const float* from) {
  exec_.launch([this, to, from] {
    if (from == nullptr) {
      std::fill_n(to, shard_.states(), 0.0f);
    } else {
      std::copy_n(from, shard_.states(), to);
    }
  });
}

std::unique_ptr<Passes> makeDeltaPasses(const Shard& shard, Exec& exec) {
  return std::make_unique<DeltaPasses>(shard, dynamic_cast<HostExec&>(exec));
}

}  // namespace seqpar::attn::linear
