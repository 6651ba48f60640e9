// Random batches of requests over a paged cache, and their mask by the definition.
#pragma once

#include <algorithm>
#include <catch2/catch.hpp>
#include <random>
#include <vector>

#include "seqpar/attn.h"
#include "softmax_features.h"

namespace seqpar::attn::test {

struct Prefill {
  std::vector<int64_t> cuQueries = {0}, lengths;  ///< of the requests
  std::vector<seqparAttnPage_t> pages;            ///< in order of columns
  std::vector<int64_t> bounds = {0};              ///< [pages + 1]: columns of pages, their unused ends included
  int64_t windowLeft = SEQPAR_ATTN_NO_WINDOW;

  int64_t queries() const { return cuQueries.back(); }
  int64_t keys() const { return bounds.back(); }

  std::vector<seqparAttnSlice_t> slices() const {
    std::vector<seqparAttnSlice_t> made(pages.size());
    int64_t count = 0;
    const auto result =
        seqparAttnPageSlices(cuQueries.data(), lengths.data(), static_cast<int64_t>(lengths.size()), pages.data(),
                             static_cast<int64_t>(pages.size()), windowLeft, made.data(), &count);
    REQUIRE(result == seqparSuccess);
    made.resize(static_cast<size_t>(count));
    return made;
  }

  /// Whether query i sees the key in column j.
  bool sees(int64_t i, int64_t j) const {
    const auto page = static_cast<size_t>(std::upper_bound(bounds.begin(), bounds.end(), j) - bounds.begin()) - 1;
    const auto& p = pages[page];
    if (p.request < 0 || j - p.column >= p.keys) return false;
    const auto r = static_cast<size_t>(p.request);
    if (i < cuQueries[r] || i >= cuQueries[r + 1]) return false;
    const int64_t query = lengths[r] - (cuQueries[r + 1] - i), key = p.position + j - p.column;
    return key <= query && (windowLeft == SEQPAR_ATTN_NO_WINDOW || key >= query - windowLeft);
  }
};

/// Up to `requests` requests of up to `most` keys, in pages of equal size, up to `mostPage`, and random order; some
/// pages are free.
inline Prefill drawPrefill(std::mt19937_64& random, uint64_t requests, uint64_t most, uint64_t mostPage = 9) {
  Prefill c;
  const auto count = 1 + random() % requests;
  const auto size = static_cast<int64_t>(1 + random() % mostPage);
  for (uint64_t r = 0; r < count; ++r) {
    const auto length = static_cast<int64_t>(1 + random() % most);
    const auto queries = static_cast<int64_t>(random() % static_cast<uint64_t>(length + 1));
    c.lengths.push_back(length);
    c.cuQueries.push_back(c.cuQueries.back() + queries);
    for (int64_t at = 0; at < length; at += size) {
      c.pages.push_back({0, static_cast<int64_t>(r), at, std::min(size, length - at)});
    }
  }
  if (c.queries() == 0) ++c.cuQueries.back();  // plans of no tokens have tests of their own
  for (uint64_t i = random() % 4; i > 0; --i) c.pages.push_back({0, -1, 0, 0});
  if (random() % 4 != 0) std::shuffle(c.pages.begin(), c.pages.end(), random);
  for (auto& page : c.pages) {
    page.column = c.bounds.back();
    c.bounds.push_back(page.column + size);
  }
  if (random() % 3 == 0) c.windowLeft = static_cast<int64_t>(random() % most);
  return c;
}

/// Softmax attention of the requests: pages on random ranks, and queries on random ranks.
inline SoftmaxSpec specOf(const Prefill& c, std::mt19937_64& random, int ranks, int algorithm) {
  SoftmaxSpec s;
  s.algorithm = algorithm;
  s.tokens = c.queries();
  s.kvTokens = c.keys();
  s.kvHeads = static_cast<int64_t>(ranks);
  s.heads = s.kvHeads * static_cast<int64_t>(1 + random() % 2);
  s.headDim = static_cast<int64_t>(1 + random() % 8);
  s.valueDim = static_cast<int64_t>(1 + random() % 8);
  s.sinks = random() % 3 == 0;
  s.slices = c.slices();
  if (s.slices.empty()) s.slices.push_back(SEQPAR_ATTN_SLICE_FULL(0, 0, 0, 0));
  s.layoutKind = seqparPieces;
  s.pieceBounds = {0, s.tokens / 3, s.tokens};
  s.kvPieceBounds = c.bounds;
  const auto owner = [&] { return static_cast<int>(random() % static_cast<uint64_t>(ranks)); };
  s.pieceOwners = {owner(), owner()};
  for (size_t i = 0; i < c.pages.size(); ++i) s.kvPieceOwners.push_back(owner());
  return s;
}

}  // namespace seqpar::attn::test
