#include "attn/linear/gla.h"

#include <algorithm>
#include <limits>
#include <vector>

#include "attn/linear/chunk.h"
#include "base/sgemm.h"

namespace seqpar::attn {
namespace {

std::unique_ptr<float[]> makeNumbers(size_t count) {
  return std::make_unique_for_overwrite<float[]>(count);
}

/// One chunk of one head, gathered from the caller's arrays into dense ones, and the scratch memory that it needs.
class Chunk {
 public:
  explicit Chunk(const GlaProblem& problem)
      : problem_(problem),
        q(makeNumbers(kChunk * problem.dk)),
        k(makeNumbers(kChunk * problem.dk)),
        v(makeNumbers(kChunk * problem.dv)),
        decay(makeNumbers(kChunk * problem.dk)),
        out(makeNumbers(kChunk * problem.dv)),
        product(makeNumbers(problem.dk)),
        scores_(makeNumbers(kChunk * kChunk)),
        scratch_(makeNumbers((kSubBlock + 1) * problem.dk)) {}

  void place(size_t h, size_t chunk) {
    h_ = h;
    first_ = chunk * kChunk;
    rows = std::min(kChunk, problem_.tokens - first_);
  }

  void loadQueries() {
    gather(problem_.q, problem_.dk, q.get());
    for (size_t i = 0; i < rows * problem_.dk; ++i) q[i] *= problem_.scale;
  }
  void loadKeys() { gather(problem_.k, problem_.dk, k.get()); }
  void loadValues() { gather(problem_.v, problem_.dv, v.get()); }
  void loadLogDecays() { gather(problem_.logDecay, problem_.dk, decay.get()); }
  void loadDecays() {
    loadLogDecays();
    exponentiateDecays();
  }
  void exponentiateDecays() { exponentiate(decay.get(), rows * problem_.dk, decay.get()); }
  void loadOut() { gather(problem_.out, problem_.dv, out.get()); }
  void storeOut() const {
    for (size_t t = 0; t < rows; ++t) {
      std::copy_n(out.get() + t * problem_.dv, problem_.dv,
                  problem_.out + problem_.offset(h_, first_ + t, problem_.dv));
    }
  }

  /// out = scores v; needs queries, keys, values and decays. Decays the keys to the end of the chunk.
  void attendWithin() {
    scoresOfChunk(q.get(), decay.get(), rows, problem_.dk, k.get(), product.get(), scores_.get(), scratch_.get());
    multiply(rows, problem_.dv, rows, {scores_.get(), kChunk}, {v.get(), problem_.dv}, false, out.get(), problem_.dv);
  }

  /// out += q state; needs queries and decays, and changes the queries.
  void attendState(const float* state) {
    decayQueriesFromStart(decay.get(), rows, problem_.dk, q.get(), scratch_.get());
    if (!allFinite(state, problem_.stateSize())) {
      attendNonFiniteState(state);
      return;
    }
    multiply(rows, problem_.dv, problem_.dk, {q.get(), problem_.dk}, {state, problem_.dv}, true, out.get(),
             problem_.dv);
  }

  /// next = the decayed state + k^T v; needs keys decayed to the end of the chunk. state may be null (0), or next.
  void updateState(const float* state, float* next) const {
    if (state != nullptr) scaleState(product.get(), state, problem_.dk, problem_.dv, next);
    multiply(problem_.dk, problem_.dv, rows, {k.get(), problem_.dk, true}, {v.get(), problem_.dv}, state != nullptr,
             next, problem_.dv);
  }

 private:
  /// A matrix product would carry NaN and infinity past decays of 0: the rows that have them are added one by one.
  void attendNonFiniteState(const float* state) {
    const size_t dk = problem_.dk, dv = problem_.dv;
    std::vector<float> finite(state, state + problem_.stateSize());
    for (size_t d = 0; d < dk; ++d) {
      if (allFinite(state + d * dv, dv)) continue;
      std::fill_n(finite.data() + d * dv, dv, 0.0f);
      addRow(decay.get() + d, q.get() + d, state + d * dv, rows, dk, dv, out.get());
    }
    multiply(rows, dv, dk, {q.get(), dk}, {finite.data(), dv}, true, out.get(), dv);
  }

  void gather(const float* from, size_t width, float* to) const {
    for (size_t t = 0; t < rows; ++t) std::copy_n(from + problem_.offset(h_, first_ + t, width), width, to + t * width);
  }

  const GlaProblem& problem_;
  size_t h_ = 0, first_ = 0;

 public:
  size_t rows = 0;
  std::unique_ptr<float[]> q, k, v, decay, out;
  std::unique_ptr<float[]> product;  // the decay over the chunk

 private:
  std::unique_ptr<float[]> scores_, scratch_;
};

}  // namespace

size_t GlaProblem::chunks() const {
  return (tokens + kChunk - 1) / kChunk;
}

void glaLocal(const GlaProblem& problem, const float* initial, float* final) {
  Chunk chunk(problem);
  const auto ownState = final == nullptr ? makeNumbers(problem.stateSize()) : nullptr;
  for (size_t h = 0; h < problem.allHeads(); ++h) {
    float* const state = final == nullptr ? ownState.get() : final + h * problem.stateSize();
    if (initial != nullptr) {
      std::copy_n(initial + h * problem.stateSize(), problem.stateSize(), state);
    } else {
      std::fill_n(state, problem.stateSize(), 0.0f);
    }
    for (size_t n = 0; n < problem.chunks(); ++n) {
      chunk.place(h, n);
      chunk.loadQueries();
      chunk.loadKeys();
      chunk.loadValues();
      chunk.loadDecays();
      chunk.attendWithin();
      chunk.attendState(state);
      chunk.storeOut();
      chunk.updateState(state, state);
    }
  }
}

GlaPasses::GlaPasses(const GlaProblem& problem)
    : problem_(problem),
      rankState_(makeNumbers(problem.allHeads() * problem.stateSize())),
      rankLogDecay_(makeNumbers(problem.allHeads() * problem.dk)) {
  if (problem.chunks() > 1) {
    chunkStates_ = makeNumbers(problem.allHeads() * (problem.chunks() - 1) * problem.stateSize());
    chunkLogDecays_ = makeNumbers(problem.allHeads() * (problem.chunks() - 1) * problem.dk);
  }
}

float* GlaPasses::chunkState(size_t h, size_t chunk) const {
  return chunkStates_.get() + (h * (problem_.chunks() - 1) + chunk - 1) * problem_.stateSize();
}

float* GlaPasses::chunkLogDecay(size_t h, size_t chunk) const {
  return chunkLogDecays_.get() + (h * (problem_.chunks() - 1) + chunk - 1) * problem_.dk;
}

void GlaPasses::states() {
  Chunk chunk(problem_);
  const size_t heads = problem_.allHeads(), dk = problem_.dk, size = problem_.stateSize(), chunks = problem_.chunks();
  std::vector<double> logDecays(heads * dk);
  for (size_t n = 0; n < chunks; ++n) {
    for (size_t h = 0; h < heads; ++h) {
      double* const logDecay = logDecays.data() + h * dk;
      if (n > 0) std::copy_n(logDecay, dk, chunkLogDecay(h, n));
      chunk.place(h, n);
      chunk.loadKeys();
      chunk.loadValues();
      chunk.loadLogDecays();
      addLogDecays(chunk.decay.get(), chunk.rows, dk, logDecay);
      chunk.exponentiateDecays();
      decayKeysToEnd(chunk.decay.get(), chunk.rows, dk, chunk.k.get(), chunk.product.get());
      chunk.updateState(n > 0 ? chunkState(h, n) : nullptr,
                        n + 1 < chunks ? chunkState(h, n + 1) : rankState_.get() + h * size);
    }
  }
  if (chunks == 0) std::fill_n(rankState_.get(), heads * size, 0.0f);
  std::copy(logDecays.begin(), logDecays.end(), rankLogDecay_.get());
}

void GlaPasses::spoilRankState() {
  std::fill_n(rankState_.get(), problem_.allHeads() * problem_.stateSize(), std::numeric_limits<float>::quiet_NaN());
}

void GlaPasses::withinChunks() {
  Chunk chunk(problem_);
  for (size_t n = 0; n < problem_.chunks(); ++n) {
    for (size_t h = 0; h < problem_.allHeads(); ++h) {
      chunk.place(h, n);
      chunk.loadQueries();
      chunk.loadKeys();
      chunk.loadValues();
      chunk.loadDecays();
      chunk.attendWithin();
      chunk.storeOut();
    }
  }
}

void GlaPasses::acrossChunks(const float* incoming) {
  Chunk chunk(problem_);
  const auto factor = makeNumbers(problem_.dk);
  for (size_t n = 0; n < problem_.chunks(); ++n) {
    for (size_t h = 0; h < problem_.allHeads(); ++h) {
      const float* const before = incoming + h * problem_.stateSize();
      const float* state = before;
      if (n > 0) {
        exponentiate(chunkLogDecay(h, n), problem_.dk, factor.get());
        addDecayedState(factor.get(), before, problem_.dk, problem_.dv, chunkState(h, n));
        state = chunkState(h, n);
      }
      chunk.place(h, n);
      chunk.loadQueries();
      chunk.loadDecays();
      chunk.loadOut();
      chunk.attendState(state);
      chunk.storeOut();
    }
  }
}

}  // namespace seqpar::attn
