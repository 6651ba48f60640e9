// Routes between layouts, carried out in memory for all ranks.
#include <catch2/catch.hpp>

#include "layout/overlap.h"
#include "layout/redistribute.h"
#include "support/naive_layout.h"
#include "unit/seed.h"

using namespace seqpar;
using namespace seqpar::test;

namespace {

using Bytes = std::vector<unsigned char>;

/// The byte of a tensor that belongs to a token, in every layout.
unsigned char byteOf(size_t tensor, size_t outer, int64_t token, size_t index) {
  uint64_t key = ((tensor * 31 + outer) * 1048583 + static_cast<uint64_t>(token)) * 257 + index;
  key *= 0x9e3779b97f4a7c15u;
  return static_cast<unsigned char>(key >> 40);
}

/// Tensor `t` of a rank with these tokens.
Bytes tensorOf(size_t t, const RowTensor& tensor, const std::vector<int64_t>& tokens) {
  Bytes out;
  for (size_t o = 0; o < tensor.outer; ++o) {
    for (const auto token : tokens) {
      for (size_t i = 0; i < tensor.rowBytes; ++i) out.push_back(byteOf(t, o, token, i));
    }
  }
  return out;
}

template <typename Visit>
void forEachByte(const StridedRegion& region, Visit visit) {
  for (size_t x = 0; x < region.count[0]; ++x) {
    for (size_t y = 0; y < region.count[1]; ++y) {
      for (size_t z = 0; z < region.count[2]; ++z) {
        const size_t begin = region.offset + x * region.stride[0] + y * region.stride[1] + z * region.stride[2];
        for (size_t i = 0; i < region.run; ++i) visit(begin + i);
      }
    }
  }
}

/// Moves all tensors by the routes of all ranks; returns the error or "".
std::string simulate(const LayoutCase& givenFrom, const LayoutCase& givenTo, const std::vector<RowTensor>& tensors) {
  const Layout from("test", "from", givenFrom.get());
  const Layout to("test", "to", givenTo.get());
  const auto had = dealTokens(givenFrom);
  const auto expected = dealTokens(givenTo);
  const auto ranks = static_cast<size_t>(givenFrom.ranks);
  std::vector<Route> routes;
  for (size_t rank = 0; rank < ranks; ++rank) {
    routes.push_back(redistributeRoute(from, to, tensors, static_cast<int>(rank)));
  }

  std::vector<std::vector<Bytes>> payloads(ranks, std::vector<Bytes>(ranks));  // [source][destination]
  for (size_t rank = 0; rank < ranks; ++rank) {
    std::vector<Bytes> buffers;
    for (size_t t = 0; t < tensors.size(); ++t) buffers.push_back(tensorOf(t, tensors[t], had[rank]));
    for (const auto& [peer, region] : routes[rank].sends) {
      const auto& buffer = buffers[static_cast<size_t>(region.buffer)];
      auto& payload = payloads[rank][static_cast<size_t>(peer)];
      forEachByte(region, [&](size_t at) { payload.push_back(buffer.at(at)); });
    }
  }
  for (size_t rank = 0; rank < ranks; ++rank) {
    std::vector<Bytes> buffers;
    std::vector<std::vector<bool>> written;
    std::vector<size_t> taken(ranks, 0);
    for (size_t t = 0; t < tensors.size(); ++t) {
      buffers.emplace_back(tensors[t].outer * tensors[t].rowBytes * expected[rank].size());
      written.emplace_back(buffers.back().size(), false);
    }
    std::string wrong;
    for (const auto& [peer, region] : routes[rank].receives) {
      const auto source = static_cast<size_t>(peer);
      const auto buffer = static_cast<size_t>(region.buffer);
      forEachByte(region, [&](size_t at) {
        if (written[buffer].at(at)) wrong = "a byte is received twice";
        written[buffer].at(at) = true;
        buffers[buffer].at(at) = payloads[source][rank].at(taken[source]++);
      });
    }
    if (!wrong.empty()) return wrong;
    for (size_t source = 0; source < ranks; ++source) {
      if (taken[source] != payloads[source][rank].size()) return "more is sent than received";
    }
    for (size_t t = 0; t < tensors.size(); ++t) {
      if (buffers[t] != tensorOf(t, tensors[t], expected[rank])) {
        return "tensor " + std::to_string(t) + " of rank " + std::to_string(rank) + " is wrong";
      }
    }
  }
  return "";
}

}  // namespace

TEST_CASE("All pairs of kinds, every small length") {
  const int ranks = GENERATE(range(1, 10));
  for (int64_t tokens = 0; tokens <= 60; tokens += 1 + tokens / 16) {
    for (int kinds = 0; kinds < 25; ++kinds) {
      const auto of = [&](int which) {
        return LayoutCase{std::min(which, 2), ranks, tokens, which == 2 ? 1 : which == 3 ? 2 : 3, 1, {}};
      };
      const auto from = of(kinds / 5);
      const auto to = of(kinds % 5);
      CAPTURE(from.text(), to.text());
      REQUIRE(simulate(from, to, {{1, 3}}) == "");
    }
  }
}

TEST_CASE("Any two layouts, several tensors") {
  const seqpar::test::Seed seed;
  std::mt19937_64 random(seed);
  for (int i = 0; i < 1500; ++i) {
    const int ranks = 1 + static_cast<int>(random() % 16);
    const auto tokens = static_cast<int64_t>(random() % 250);
    const auto from = drawLayout(ranks, tokens, random);
    auto to = drawLayout(ranks, tokens, random);
    if (random() % 3 == 0 && to.kind != seqparPieces) to.bounds = from.bounds;
    std::vector<RowTensor> tensors(random() % 4);
    for (auto& tensor : tensors) tensor = {random() % 4, random() % 5};
    CAPTURE(from.text(), to.text(), tensors.size());
    REQUIRE(simulate(from, to, tensors) == "");
  }
}

TEST_CASE("Long regular layouts become few regions") {
  const int64_t tokens = 1 << 20;
  const int ranks = 8;
  const std::vector<LayoutCase> layouts{{seqparContiguous, ranks, tokens, 1, 1, {}},
                                        {seqparZigzag, ranks, tokens + 0, 1, 1, {}},
                                        {seqparStriped, ranks, tokens, 1, 1, {}},
                                        {seqparStriped, ranks, tokens, 16, 1, {}},
                                        {seqparStriped, ranks, tokens, 24, 1, {}}};
  for (const auto& givenFrom : layouts) {
    for (const auto& givenTo : layouts) {
      CAPTURE(givenFrom.text(), givenTo.text());
      const Layout from("test", "from", givenFrom.get());
      const Layout to("test", "to", givenTo.get());
      int64_t moved = 0;
      for (int rank = 0; rank < ranks; ++rank) {
        for (int peer = 0; peer < ranks; ++peer) {
          const auto patterns = overlaps(from.runs(rank), to.runs(peer));
          CHECK(patterns.size() <= 16);
          for (const auto& pattern : patterns) moved += pattern.length * pattern.count[0] * pattern.count[1];
        }
      }
      CHECK(moved == tokens);
    }
  }
}

TEST_CASE("Packed sequences of equal length repeat one pattern") {
  LayoutCase contiguous{seqparContiguous, 4, 4096, 1, 1, {}};
  for (int64_t bound = 0; bound <= 4096; bound += 64) contiguous.bounds.push_back(bound);
  LayoutCase striped = contiguous;
  striped.kind = seqparStriped;
  const Layout from("test", "from", contiguous.get());
  const Layout to("test", "to", striped.get());
  CHECK(overlaps(from.runs(1), to.runs(2)).size() == 1);
}
