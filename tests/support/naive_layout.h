// Naive layouts: every token is assigned to its rank, one after the other, following the text of seqpar/layout.h.
#pragma once

#include <algorithm>
#include <cstdint>
#include <iterator>
#include <random>
#include <sstream>
#include <string>
#include <vector>

#include "seqpar/layout.h"

namespace seqpar::test {

/// The global indices of each rank's tokens, in the rank's memory order.
using TokenLists = std::vector<std::vector<int64_t>>;

/// A layout with its cuSeqlens.
struct LayoutCase {
  int kind = seqparContiguous;
  int ranks = 1;
  int64_t tokens = 0;
  int64_t stripe = 1;
  int slices = 1;
  std::vector<int64_t> bounds;   ///< of pieces or packed sequences; empty: not packed
  std::vector<int> owners = {};  ///< of pieces

  /// For the C interface; lives as long as this.
  seqparLayout_t get() const {
    seqparLayout_t layout = SEQPAR_LAYOUT_INITIALIZER;
    layout.kind = kind;
    layout.ranks = ranks;
    layout.tokens = tokens;
    layout.stripe = stripe;
    layout.slices = slices;
    if (kind == seqparPieces) {
      layout.pieces = static_cast<int64_t>(owners.size());
      layout.pieceBounds = bounds.data();
      layout.pieceOwners = owners.data();
      return layout;
    }
    layout.sequences = bounds.empty() ? 0 : static_cast<int64_t>(bounds.size()) - 1;
    layout.cuSeqlens = bounds.empty() ? nullptr : bounds.data();
    return layout;
  }

  std::string text() const {
    std::ostringstream out;
    out << "kind " << kind << ", ranks " << ranks << ", tokens " << tokens << ", stripe " << stripe << ", slices "
        << slices << ", bounds";
    for (const auto bound : bounds) out << " " << bound;
    out << ", owners";
    for (const auto owner : owners) out << " " << owner;
    return out.str();
  }
};

/// Deals one thing after the other to parts in turn.
class Dealer {
 public:
  explicit Dealer(int parts) : parts_(parts) {}
  size_t next() { return static_cast<size_t>(turn_++ % parts_); }

 private:
  int parts_;
  int64_t turn_ = 0;
};

inline TokenLists dealTokens(const LayoutCase& layout) {
  const auto parts = static_cast<size_t>(layout.ranks / layout.slices);
  TokenLists ofPart(parts);
  Dealer dealer(static_cast<int>(parts));
  const std::vector<int64_t> whole{0, layout.tokens};
  const auto& bounds = layout.bounds.empty() ? whole : layout.bounds;
  for (size_t s = 0; s + 1 < bounds.size(); ++s) {
    const int64_t length = bounds[s + 1] - bounds[s];
    int64_t token = bounds[s];
    if (layout.kind == seqparPieces) {
      while (token < bounds[s + 1]) ofPart[static_cast<size_t>(layout.owners[s])].push_back(token++);
      continue;
    }
    if (layout.kind == seqparStriped) {
      while (token < bounds[s + 1]) {
        auto& list = ofPart[dealer.next()];
        for (int64_t i = 0; i < layout.stripe && token < bounds[s + 1]; ++i) list.push_back(token++);
      }
      continue;
    }
    const size_t halves = layout.kind == seqparZigzag ? 2 : 1;
    std::vector<int64_t> chunk(halves * parts, length / static_cast<int64_t>(halves * parts));
    const int64_t rest = length % static_cast<int64_t>(halves * parts);
    for (int64_t i = 0; i < rest; ++i) {
      const size_t part = dealer.next();
      ++chunk[i < static_cast<int64_t>(parts) ? part : 2 * parts - 1 - part];
    }
    for (size_t c = 0; c < chunk.size(); ++c) {
      auto& list = ofPart[c < parts ? c : 2 * parts - 1 - c];
      for (int64_t i = 0; i < chunk[c]; ++i) list.push_back(token++);
    }
  }

  TokenLists ofRank;
  for (const auto& list : ofPart) {
    auto token = list.begin();
    for (int slice = 0; slice < layout.slices; ++slice) {
      const auto longer = static_cast<int>(list.size() % static_cast<size_t>(layout.slices));
      const auto length = static_cast<int64_t>(list.size()) / layout.slices + (slice < longer ? 1 : 0);
      ofRank.emplace_back(token, token + length);
      token += length;
    }
  }
  return ofRank;
}

/// Up to `most` packed sequences with `tokens` tokens in total, some of them empty.
inline std::vector<int64_t> drawBounds(int64_t tokens, int most, std::mt19937_64& random) {
  std::vector<int64_t> bounds{0, tokens};
  const auto cuts = random() % static_cast<uint64_t>(most);
  for (uint64_t i = 0; i < cuts; ++i) {
    bounds.push_back(static_cast<int64_t>(random() % static_cast<uint64_t>(tokens + 1)));
  }
  std::sort(bounds.begin(), bounds.end());
  return bounds;
}

/// Any layout of this many tokens on this many ranks.
inline LayoutCase drawLayout(int ranks, int64_t tokens, std::mt19937_64& random) {
  constexpr int64_t kStripes[] = {1, 1, 2, 3, 4, 6, 7, 16};
  LayoutCase layout;
  layout.kind = static_cast<int>(random() % 4);
  layout.ranks = ranks;
  layout.tokens = tokens;
  layout.stripe = kStripes[random() % std::size(kStripes)];
  if (random() % 4 == 0) {
    do layout.slices = 1 + static_cast<int>(random() % static_cast<uint64_t>(ranks));
    while (ranks % layout.slices != 0);
  }
  if (layout.kind == seqparPieces) {
    layout.bounds = drawBounds(tokens, 12, random);
    for (size_t piece = 0; piece + 1 < layout.bounds.size(); ++piece) {
      layout.owners.push_back(static_cast<int>(random() % static_cast<uint64_t>(ranks / layout.slices)));
    }
    return layout;
  }
  if (random() % 2 == 0) layout.bounds = drawBounds(tokens, 12, random);
  return layout;
}

}  // namespace seqpar::test
