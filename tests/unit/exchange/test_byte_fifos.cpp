// Routes through byte FIFOs, on threads, against their definition.
#include <catch2/catch.hpp>

#include "common/covering.h"
#include "kernels/exchange/regions.h"
#include "unit/exchange/byte_fifos_on_threads.h"

using namespace seqpar;
using namespace seqpar::test;

namespace {

Bytes randomBytes(std::mt19937_64& random, std::size_t count) {
  Bytes bytes(count);
  // Runs of equal bytes, including all zeros and all ones: no data pattern may be mistaken for a flag.
  for (std::size_t i = 0; i < count;) {
    const auto run = std::min<std::size_t>(count - i, 1 + random() % 40);
    const auto kind = random() % 4;
    for (const auto end = i + run; i < end; ++i) {
      bytes[i] = kind == 0 ? std::byte{0} : kind == 1 ? std::byte{0xff} : static_cast<std::byte>(random());
    }
  }
  return bytes;
}

/// `bytes` as one run, or in several dimensions if they divide well; appended at `used`.
StridedRegion drawRegion(std::mt19937_64& random, std::size_t bytes, std::size_t& used) {
  StridedRegion region;
  const std::size_t aligned = std::size_t{1} << random() % 5;
  region.offset = (used + aligned - 1) / aligned * aligned;
  region.run = bytes;
  for (std::size_t dimension = 3; dimension-- > 0;) {
    const std::size_t by = 1 + random() % 4;
    if (region.run % by == 0) {
      region.count[dimension] = by;
      region.run /= by;
    }
  }
  std::size_t extent = region.run;
  for (std::size_t dimension = 3; dimension-- > 0;) {
    region.stride[dimension] = extent + (random() % 2 == 0 ? 0 : aligned * (random() % 5));
    extent = region.stride[dimension] * (region.count[dimension] - 1) + extent;
  }
  used = region.offset + extent;
  return region;
}

/// Cuts a payload into regions of one rank's only buffer.
void cut(std::mt19937_64& random, int peer, std::size_t bytes, std::vector<Transfer>& list, std::size_t& used) {
  while (bytes > 0) {
    std::size_t part = random() % 3 == 0 ? bytes : 1 + random() % bytes;
    if (part > 16 && random() % 2 == 0) part -= part % 16;
    list.push_back({peer, drawRegion(random, part, used)});
    bytes -= part;
  }
}

struct Case {
  std::vector<Route> routes;
  Buffers sends, receives;
};

Case drawCase(std::mt19937_64& random, int ranks, const std::vector<std::size_t>& lengths) {
  Case made;
  const auto count = static_cast<std::size_t>(ranks);
  made.routes.resize(count);
  std::vector<std::size_t> out(count, 0), in(count, 0);
  for (int from = 0; from < ranks; ++from) {
    for (int to = 0; to < ranks; ++to) {
      const std::size_t bytes = lengths[random() % lengths.size()];
      const auto sender = static_cast<std::size_t>(from);
      const auto receiver = static_cast<std::size_t>(to);
      cut(random, to, bytes, made.routes[sender].sends, out[sender]);
      cut(random, from, bytes, made.routes[receiver].receives, in[receiver]);
    }
  }
  for (std::size_t rank = 0; rank < count; ++rank) {
    made.sends.push_back({randomBytes(random, out[rank])});
    made.receives.push_back({Bytes(in[rank], std::byte{0xa5})});
  }
  return made;
}

/// Exchanges that follow each other through the same byte FIFOs.
void check(int ranks, int channels, int rounds, const std::vector<std::size_t>& lengths, unsigned seed) {
  std::mt19937_64 random(seed);
  ByteFifoPeers peers(ranks, channels);
  for (int round = 0; round < rounds; ++round) {
    Case drawn = drawCase(random, ranks, lengths);
    auto expected = drawn.receives;
    simulate(drawn.routes, drawn.sends, expected);
    const auto ok = peers.exchange(drawn.routes, drawn.sends, drawn.receives);
    INFO("round " << round);
    REQUIRE(std::all_of(ok.begin(), ok.end(), [](bool one) { return one; }));
    REQUIRE(drawn.receives == expected);
  }
}

Route ofOne(bool sends, int peer, std::size_t bytes) {
  Route route;
  (sends ? route.sends : route.receives).push_back({peer, StridedRegion{.run = bytes}});
  return route;
}

}  // namespace

TEST_CASE("short payloads go in packets and wrap around the rings") {
  check(3, 2, kSanitized ? 30 : 60, {0, 1, 8, 13, 16, 512, 1535, 1536, 1540, 5000, 20000}, 1);
}

TEST_CASE("long payloads go in chunks and wrap around the rings") {
  check(2, 1, 3, {900001, 37000, 1500000}, 2);
}

TEST_CASE("strings of all lengths between many ranks") {
  check(4, 2, kSanitized ? 1 : 3, {0, 8, 4096, 60000, 100003, 300000}, 3);
}

TEST_CASE("long payloads of one length are batched, interleaved with single ones") {
  constexpr int kRanks = 3;
  std::mt19937_64 random(6);
  ByteFifoPeers peers(kRanks, 2);
  for (int round = 0; round < (kSanitized ? 2 : 4); ++round) {
    const std::size_t bytes = 80000 + 16 * (random() % 5000);
    Case drawn = drawCase(random, kRanks, {bytes});
    REQUIRE(isLong(bytes, 2));
    auto expected = drawn.receives;
    simulate(drawn.routes, drawn.sends, expected);
    const auto taking = round % 2 == 0 ? ByteFifoPeers::Taking::Together : ByteFifoPeers::Taking::Each;
    const auto ok = peers.exchange(drawn.routes, drawn.sends, drawn.receives, {}, taking);
    REQUIRE(std::all_of(ok.begin(), ok.end(), [](bool one) { return one; }));
    REQUIRE(drawn.receives == expected);
  }
}

TEST_CASE("a batched receive waits for the missing payload") {
  constexpr std::size_t kBytes = 2000000;
  // Rank 2 never sends, and rank 1 must have sent before rank 0 gives up.
  const auto wrong = withGrowingTimeout(300, [&](int timeoutMs) -> std::string {
    ByteFifoPeers peers(3, 1, std::chrono::milliseconds(timeoutMs));
    Buffers sends{{}, {Bytes(kBytes)}, {}};
    Buffers receives{{Bytes(2 * kBytes, std::byte{0xa5})}, {}, {}};
    Route both;
    both.receives = {{1, StridedRegion{.run = kBytes}}, {2, StridedRegion{.offset = kBytes, .run = kBytes}}};
    const auto before = receives;
    const auto ok = peers.exchange({both, ofOne(true, 0, kBytes), Route{}}, sends, receives, {0, 1},
                                   ByteFifoPeers::Taking::Together);
    CHECK_FALSE(ok[0]);
    CHECK(receives == before);
    return peers.timedOut(0) == 3 ? "" : "it gave up 1 + rank " + std::to_string(peers.timedOut(0));
  });
  CHECK(wrong == "");
}

TEST_CASE("the protocol and chunks of a payload depend only on its size") {
  std::mt19937_64 random(4);
  for (int i = 0; i < 20000; ++i) {
    device::PeerPayload payload{};
    payload.bytes = 1 + random() % (std::uint64_t{1} << random() % 34);
    const int channels = 1 + static_cast<int>(random() % 128);
    shareAmong(payload, channels);
    REQUIRE(payload.channels >= 1);
    REQUIRE(payload.channels <= channels);
    REQUIRE(payload.each % 128 == 0);
    REQUIRE(payload.each * static_cast<std::uint64_t>(payload.channels) >= payload.bytes);
    REQUIRE(payload.each * static_cast<std::uint64_t>(payload.channels - 1) < payload.bytes);
    REQUIRE(payload.chunk <= ByteFifoLayout::kChunk);
    REQUIRE(payload.chunk % 16 == 0);
    if (payload.chunk == 0) REQUIRE(payload.each <= ByteFifoLayout::kMostBlocks * ByteFifoLayout::kBlockBytes);
  }
}

TEST_CASE("a region's bytes are at the offsets of its runs") {
  std::mt19937_64 random(5);
  for (int i = 0; i < 300; ++i) {
    std::size_t used = 0;
    const StridedRegion region = drawRegion(random, 1 + random() % 5000, used);
    const auto offsets = bytesOf(region);
    const Bytes buffer(used);
    const auto made = makeRegion(region, buffer.data(), 0);
    for (std::size_t at = 0; at < offsets.size(); ++at) {
      REQUIRE(device::addressOf(made, at) == buffer.data() + offsets[at]);
    }
  }
}

TEST_CASE("regions of more vecs than 32 bits count are found too") {
  // Nothing is read: only addresses are compared.
  const StridedRegion region{.run = 3, .count = {5, 1 << 20, 500}, .stride = {std::size_t{1} << 40, 4096, 4}};
  const std::byte anchor{};
  const auto base = reinterpret_cast<std::uintptr_t>(&anchor);
  const auto made = makeRegion(region, &anchor, 0);
  CHECK(made.huge);
  for (const std::size_t i0 : {0, 4}) {
    for (const std::size_t i1 : {1, (1 << 20) - 1}) {
      const std::size_t at = ((i0 << 20 | i1) * 500 + 499) * 3 + 2;
      const auto address = reinterpret_cast<std::uintptr_t>(device::addressOf(made, at));
      REQUIRE(address - base == (i0 << 40) + i1 * 4096 + 499 * 4 + 2);
    }
  }
}

TEST_CASE("a timed-out wait names the missing rank and passes no partial data on") {
  for (const std::size_t bytes : {std::size_t{100}, std::size_t{2000000}}) {
    ByteFifoPeers peers(2, 1, std::chrono::milliseconds(50));
    Buffers sends{{Bytes(bytes)}, {Bytes(bytes)}};
    Buffers receives{{Bytes(bytes, std::byte{0xa5})}, {Bytes(bytes, std::byte{0xa5})}};
    const auto before = receives;
    // Rank 1 never sends.
    const auto ok = peers.exchange({ofOne(false, 1, bytes), Route{}}, sends, receives, {0});
    CHECK_FALSE(ok[0]);
    CHECK(peers.timedOut(0) == 2);
    CHECK(receives == before);
  }
}

TEST_CASE("a sender without room waits and times out") {
  ByteFifoPeers peers(2, 1, std::chrono::milliseconds(50));
  Buffers sends{{Bytes(30000)}, {}};
  Buffers receives{{}, {}};
  std::vector<bool> ok;
  for (int round = 0; round < 4; ++round)
    ok.push_back(peers.exchange({ofOne(true, 1, 30000), {}}, sends, receives, {0})[0]);
  CHECK(ok[0]);
  CHECK_FALSE(ok[3]);
  CHECK(peers.timedOut(0) == 2);
}

TEST_CASE("an abort ends every wait") {
  ByteFifoPeers peers(2, 1);
  peers.abort();
  Buffers sends{{Bytes(3000000)}, {}};
  Buffers receives{{}, {}};
  CHECK_FALSE(peers.exchange({ofOne(true, 1, 3000000), {}}, sends, receives, {0})[0]);
}
