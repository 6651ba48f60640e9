// Gated linear attention of one rank, head by head, in passes that a caller can order around a scan.
#pragma once

#include <cstddef>
#include <memory>

#include "seqpar/attn.h"

namespace seqpar::attn {

/// The arguments of seqparGlaForward(), checked.
struct GlaProblem {
  const float* q = nullptr;
  const float* k = nullptr;
  const float* v = nullptr;
  const float* logDecay = nullptr;
  float* out = nullptr;
  size_t batch = 1, tokens = 0, heads = 1, dk = 1, dv = 1;
  float scale = 1;

  size_t allHeads() const { return batch * heads; }
  size_t stateSize() const { return dk * dv; }
  size_t chunks() const;
  /// Where token t of head h (batch folded in) begins in an array with `width` numbers a token and head.
  size_t offset(size_t h, size_t t, size_t width) const {
    return (((h / heads) * tokens + t) * heads + h % heads) * width;
  }
};

/// The whole forward pass, the state being `initial` before the first token (nullptr: 0). `final` may be null.
void glaLocal(const GlaProblem& problem, const float* initial, float* final);

/// The passes of the distributed forward, and what they keep between each other.
class GlaPasses {
 public:
  explicit GlaPasses(const GlaProblem& problem);

  /// Pass 1: the states of all chunks as if the state before the first token were 0, the rank's state and its decay.
  void states();
  /// Makes the rank's state NaN, so that a failed pass cannot be taken for a result.
  void spoilRankState();
  /// Pass 2, needs nothing from other passes: what tokens contribute to tokens of their own chunk. Writes out.
  void withinChunks();
  /// Pass 3: adds to out what comes from earlier chunks and from `incoming`, the state before the first token.
  void acrossChunks(const float* incoming);

  const float* rankState() const { return rankState_.get(); }        ///< [allHeads][dk][dv]
  const float* rankLogDecay() const { return rankLogDecay_.get(); }  ///< [allHeads][dk]

 private:
  using Numbers = std::unique_ptr<float[]>;

  float* chunkState(size_t h, size_t chunk) const;
  float* chunkLogDecay(size_t h, size_t chunk) const;

  GlaProblem problem_;
  Numbers rankState_, rankLogDecay_;
  Numbers chunkStates_;     // before chunks 1, 2, ... of each head
  Numbers chunkLogDecays_;  // from the rank's first token to the starts of chunks 1, 2, ...
};

}  // namespace seqpar::attn
