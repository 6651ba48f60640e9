// The masks of softmax_attn_perf: full, causal and those of mask_examples.h, with the layouts that balance them.
#pragma once

#include <vector>

#include "attn/layer.h"
#include "common/names.h"
#include "mask_examples.h"

namespace seqpar::perf {

/// Masks of slices, of mask_examples.h.
enum SliceMasks { kPacked = seqparAttnCausal + 1, kPrefixLm, kVideo, kSharedPrefix };
inline const Names kMasks{{"full", seqparAttnFull}, {"causal", seqparAttnCausal},
                          {"packed", kPacked},      {"prefix-lm", kPrefixLm},
                          {"video", kVideo},        {"shared-prefix", kSharedPrefix}};

/// Empty for masks without slices.
inline attn::perf::Slices slicesOf(int mask, int64_t tokens) {
  if (mask < kPacked) return {};
  return attn::perf::examples(tokens)[static_cast<size_t>(mask - kPacked)].second;
}

/// The layout that balances slices.
struct SolvedLayout {
  SolvedLayout(const attn::perf::Slices& slices, int64_t tokens, int ranks)
      : bounds(2 * static_cast<size_t>(ranks)), owners(bounds.size()) {
    if (slices.empty()) return;
    const auto desc = attn::perf::descOf(slices, tokens);
    layout.kind = seqparPieces;
    layout.tokens = tokens;
    layout.ranks = ranks;
    requireAttn(seqparAttnSolveLayout(&desc, ranks, nullptr, bounds.data(), owners.data(), &layout.pieces),
                "seqparAttnSolveLayout");
    layout.pieceBounds = bounds.data();
    layout.pieceOwners = owners.data();
    loads.resize(static_cast<size_t>(ranks));
    requireAttn(seqparAttnLayoutLoad(&desc, &layout, loads.data()), "seqparAttnLayoutLoad");
  }

  std::vector<int64_t> bounds;
  std::vector<int> owners;
  std::vector<seqparAttnLoad_t> loads;  ///< empty without slices
  seqparLayout_t layout = SEQPAR_LAYOUT_INITIALIZER;
};

}  // namespace seqpar::perf
