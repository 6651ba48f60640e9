// A rank's part of the problem of distributed linear attention: pieces of sequences, and the scan's flags for them.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "attn/linear/families/family.h"

namespace seqpar::attn::linear {

/// A run of tokens of one sequence on one rank.
struct Piece {
  size_t first = 0, tokens = 0;
  bool begins = false;     ///< starts its sequence: from `initial` of `sequence`, else from the incoming state
  size_t sequence = 0;     ///< of packed sequences
  bool reachesEnd = true;  ///< the rank's last piece: its state is passed to the next rank, or is the final one
};

/// Sizes as in the descriptor, except that `tokens` is this rank's.
struct Shard {
  const Family* family = nullptr;
  size_t batch = 1, tokens = 0, heads = 1, keyHeads = 1, dk = 1, dv = 1;
  size_t sequences = 0;  ///< packed sequences; 0: not packed
  seqparDataType_t type = seqparFloat32;
  std::array<int, SEQPAR_ATTN_MAX_GATES> gateTypes{};  ///< seqparDataType_t
  float scale = 1;
  bool normalize = false;               ///< queries and keys, to unit length
  bool training = true, alone = false;  ///< alone: no scan takes place
  bool relays = false;                  ///< on hosts: states are sent from rank to rank head by head, not scanned
  bool inputGate = false;               ///< one follows the family's gates
  bool reserves = false;                ///< forward leaves states for backward
  bool reservesMuch = false;            ///< also those that need many bytes
  std::vector<Piece> pieces;            ///< of one batch entry; equal for all entries. No empty pieces

  size_t width() const { return static_cast<size_t>(decayWidth(*family, static_cast<int64_t>(dk))); }
  size_t group() const { return heads / keyHeads; }
  size_t allHeads() const { return batch * heads; }
  size_t stateSize() const { return dk * dv; }
  size_t states() const { return allHeads() * stateSize(); }
  /// Flags for seqparAllScan() with `sequences` = 1.
  uint8_t flags(seqparDirection_t direction) const;
};

/// The pieces of a token range of the whole, excluding its last bound. `cuSeqlens` empty: one sequence.
std::vector<Piece> cutIntoPieces(std::span<const int64_t> cuSeqlens, int64_t begin, int64_t end);

}  // namespace seqpar::attn::linear
