// The index maps against layouts that are dealt by hand.
#include <catch2/catch.hpp>

#include "layout/layout.h"
#include "layout/run.h"
#include "support/naive_layout.h"
#include "unit/seed.h"

using namespace seqpar;
using namespace seqpar::test;

namespace {

/// Compares all results of a layout with the lists; returns the first difference as text, or "".
std::string compare(const LayoutCase& given, const TokenLists& expected) {
  const Layout layout("test", "layout", given.get());
  std::ostringstream out;
  std::vector<int> owners(static_cast<size_t>(given.tokens), -1);
  for (int rank = 0; rank < given.ranks; ++rank) {
    const auto& tokens = expected[static_cast<size_t>(rank)];
    if (layout.localLength(rank) != static_cast<int64_t>(tokens.size())) {
      out << "rank " << rank << " has " << layout.localLength(rank) << " tokens, expected " << tokens.size();
      return out.str();
    }
    std::vector<int64_t> fromRuns;
    for (const auto& run : layout.runs(rank)) {
      if (run.local != static_cast<int64_t>(fromRuns.size()) || run.length < 1 || run.count < 1 ||
          (run.count > 1 && run.stride <= run.length)) {
        return "a run is not as it should be";
      }
      for (int64_t i = 0; i < run.count * run.length; ++i) {
        fromRuns.push_back(run.global + i / run.length * run.stride + i % run.length);
      }
    }
    if (fromRuns != tokens) return "the runs of rank " + std::to_string(rank) + " have other tokens";
    for (size_t i = 0; i < tokens.size(); ++i) {
      const TokenPlace place{rank, static_cast<int64_t>(i)};
      if (layout.toGlobal(rank, place.local) != tokens[i] || layout.toLocal(tokens[i]) != place) {
        out << "token " << tokens[i] << " is token " << i << " of rank " << rank << "; the maps say "
            << layout.toGlobal(rank, place.local) << " and rank " << layout.toLocal(tokens[i]).rank << ", "
            << layout.toLocal(tokens[i]).local;
        return out.str();
      }
      ++owners[static_cast<size_t>(tokens[i])];
    }
    for (int64_t bound = 0; bound <= given.tokens; ++bound) {
      const auto before = std::lower_bound(tokens.begin(), tokens.end(), bound) - tokens.begin();
      if (countBefore(layout.runs(rank), bound) != before) return "countBefore is wrong";
    }
  }
  return std::count(owners.begin(), owners.end(), 0) == given.tokens ? "" : "a token is on no rank or on several";
}

std::vector<LayoutCase> kinds(int ranks, int64_t tokens) {
  std::vector<LayoutCase> out{{seqparContiguous, ranks, tokens, 1, 1, {}}, {seqparZigzag, ranks, tokens, 1, 1, {}}};
  for (const int64_t stripe : {1, 2, 3, 8}) out.push_back({seqparStriped, ranks, tokens, stripe, 1, {}});
  return out;
}

}  // namespace

TEST_CASE("Every length on every number of ranks") {
  const int ranks = GENERATE(range(1, 17));
  for (int64_t tokens = 0; tokens <= 200; tokens += tokens < 70 ? 1 : 13) {
    for (auto& layout : kinds(ranks, tokens)) {
      CAPTURE(layout.text());
      REQUIRE(compare(layout, dealTokens(layout)) == "");
    }
  }
}

TEST_CASE("Packed sequences and slices") {
  const seqpar::test::Seed seed;
  std::mt19937_64 random(seed);
  for (int i = 0; i < 3000; ++i) {
    const auto layout = drawLayout(1 + static_cast<int>(random() % 16), static_cast<int64_t>(random() % 201), random);
    CAPTURE(layout.text());
    REQUIRE(compare(layout, dealTokens(layout)) == "");
  }
}

TEST_CASE("Contiguous, zigzag and single tokens are balanced to a token, packed or not") {
  const seqpar::test::Seed seed;
  std::mt19937_64 random(seed);
  for (int i = 0; i < 2000; ++i) {
    auto given = drawLayout(1 + static_cast<int>(random() % 16), static_cast<int64_t>(random() % 301), random);
    given.stripe = 1;
    if (given.kind == seqparPieces) continue;
    CAPTURE(given.text());
    const Layout layout("test", "layout", given.get());
    int64_t least = given.tokens;
    int64_t most = 0;
    for (int rank = 0; rank < given.ranks; ++rank) {
      least = std::min(least, layout.localLength(rank));
      most = std::max(most, layout.localLength(rank));
    }
    REQUIRE(most - least <= 1);
  }
}

TEST_CASE("Layouts of divisible lengths are those of the literature") {
  const auto lists = [](const LayoutCase& layout) {
    TokenLists out;
    for (int rank = 0; rank < layout.ranks; ++rank) {
      auto& tokens = out.emplace_back();
      const Layout maps("test", "layout", layout.get());
      for (int64_t i = 0; i < maps.localLength(rank); ++i) tokens.push_back(maps.toGlobal(rank, i));
    }
    return out;
  };
  CHECK(lists({seqparContiguous, 2, 8, 1, 1, {}}) == TokenLists{{0, 1, 2, 3}, {4, 5, 6, 7}});
  CHECK(lists({seqparZigzag, 2, 8, 1, 1, {}}) == TokenLists{{0, 1, 6, 7}, {2, 3, 4, 5}});
  CHECK(lists({seqparStriped, 2, 8, 1, 1, {}}) == TokenLists{{0, 2, 4, 6}, {1, 3, 5, 7}});
  CHECK(lists({seqparStriped, 2, 8, 2, 1, {}}) == TokenLists{{0, 1, 4, 5}, {2, 3, 6, 7}});
  CHECK(lists({seqparZigzag, 2, 12, 1, 1, {0, 4, 12}}) == TokenLists{{0, 3, 4, 5, 10, 11}, {1, 2, 6, 7, 8, 9}});
  // USP with two Ulysses ranks in each of two ring positions.
  CHECK(lists({seqparZigzag, 4, 8, 1, 2, {}}) == TokenLists{{0, 1}, {6, 7}, {2, 3}, {4, 5}});
  // The leftover tokens of the second sequence continue after the first one's.
  CHECK(lists({seqparContiguous, 3, 8, 1, 1, {0, 4, 8}}) == TokenLists{{0, 1, 4}, {2, 5, 6}, {3, 7}});
}

TEST_CASE("The search time does not depend on the sequence length") {
  const int64_t tokens = int64_t{1} << 48;
  for (const auto& given : kinds(13, tokens)) {
    CAPTURE(given.text());
    const Layout layout("test", "layout", given.get());
    CHECK(layout.runs(7).size() <= 2);
    for (const int64_t token : {int64_t{0}, tokens / 3, tokens - 1}) {
      const auto place = layout.toLocal(token);
      CHECK(layout.toGlobal(place.rank, place.local) == token);
    }
  }
}
