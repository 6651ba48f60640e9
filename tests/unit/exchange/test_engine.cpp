// exchangeOnHost() and reduceOnHost() over a mailbox that keeps its contract to the letter, against naive.h.
#include <catch2/catch.hpp>

#include "base/convert.h"
#include "common/covering.h"
#include "exchange/exchange.h"
#include "exchange/reduction.h"
#include "memory_mailbox.h"
#include "naive.h"
#include "unit/seed.h"

using namespace seqpar;
using namespace seqpar::test;

namespace {

/// `bytes` as regions, multiples of `unit`, from `place` of a buffer on; advances `place`.
std::vector<StridedRegion> randomRegions(std::mt19937_64& random, size_t bytes, size_t unit, size_t& place) {
  std::vector<StridedRegion> regions;
  while (bytes > 0) {
    StridedRegion region;
    const size_t units = 1 + random() % (bytes / unit);
    const size_t runs = units % 6 == 0 ? 6 : units % 2 == 0 ? 2 : 1;
    region.run = units / runs * unit;
    region.count = {1, runs == 6 ? 3u : 1u, runs == 1 ? 1u : 2u};
    const size_t gap = random() % 3 * unit;
    region.stride = {0, 2 * (region.run + gap), region.run + gap};
    region.offset = place;
    place += (region.run + gap) * runs + random() % 2 * unit;
    bytes -= region.bytes();
    regions.push_back(region);
  }
  return regions;
}

Bytes randomBytes(std::mt19937_64& random, size_t bytes) {
  Bytes out(bytes);
  for (auto& byte : out) byte = static_cast<std::byte>(random());
  return out;
}

MemoryMailboxOptions optionsOf(std::mt19937_64& random) {
  MemoryMailboxOptions options;
  options.maxMessage = size_t{512} << random() % 8;
  options.window = 4 * options.maxMessage;
  options.messages = random() % 2 == 0;
  options.mapped = random() % 2 == 0;
  return options;
}

size_t randomLength(std::mt19937_64& random, size_t unit) {
  const size_t kinds[] = {0, 1, 1 + random() % 40, random() % 3000, random() % 30000};
  return kinds[random() % std::size(kinds)] * unit;
}

struct ReductionCase {
  std::vector<Reduction> reductions;
  std::vector<size_t> sendBytes, receiveBytes;
};

ReductionCase randomReduction(std::mt19937_64& random, int ranks) {
  ReductionCase out;
  out.reductions.resize(static_cast<size_t>(ranks));
  out.sendBytes.resize(static_cast<size_t>(ranks));
  for (int rank = 0; rank < ranks; ++rank) {
    size_t place = 0;
    for (size_t sums = random() % 4; sums > 0; --sums) {
      Sum sum;
      sum.existing = random() % 2 == 0;
      for (const int from : shuffled(random, static_cast<size_t>(ranks))) {
        if (random() % 3 != 0) sum.from.push_back(from);
      }
      const size_t bytes = randomLength(random, sizeof(float));
      if (bytes == 0) continue;
      // One region per sum; the sends are cut differently.
      StridedRegion region = randomRegions(random, bytes, sizeof(float), place).front();
      place = std::max(place, bytesOf(region).back() + 1);
      sum.region = region;
      for (const int from : sum.from) {
        const auto sender = static_cast<size_t>(from);
        for (const StridedRegion& sent : randomRegions(random, region.bytes(), sizeof(float), out.sendBytes[sender])) {
          out.reductions[sender].sends.push_back({rank, sent});
        }
      }
      out.reductions[static_cast<size_t>(rank)].sums.push_back(sum);
      if (!sum.from.empty() && random() % 4 == 0) {  // again over the same region
        Sum again{region, true, {sum.from.front()}};
        const auto sender = static_cast<size_t>(again.from[0]);
        out.reductions[sender].sends.push_back({rank, {0, out.sendBytes[sender], region.bytes()}});
        out.sendBytes[sender] += region.bytes();
        out.reductions[static_cast<size_t>(rank)].sums.push_back(again);
      }
    }
    out.receiveBytes.push_back(place);
  }
  return out;
}

}  // namespace

TEST_CASE("an exchange follows its route") {
  const seqpar::test::Seed seed;
  std::mt19937_64 random(seed);
  for (int i = 0; i < (seqpar::test::kSanitized ? 36 : 150); ++i) {
    const int ranks = 1 + i % 9;
    CAPTURE(i, ranks);
    const auto count = static_cast<size_t>(ranks);
    std::vector<Route> routes(count);
    std::vector<size_t> sendBytes(count), receiveBytes(count);
    for (int from = 0; from < ranks; ++from) {
      for (int to = 0; to < ranks; ++to) {
        const size_t bytes = randomLength(random, 1);
        auto& sender = routes[static_cast<size_t>(from)].sends;
        auto& receiver = routes[static_cast<size_t>(to)].receives;
        for (auto& region : randomRegions(random, bytes, 1, sendBytes[static_cast<size_t>(from)])) {
          sender.push_back({to, region});
        }
        for (auto& region : randomRegions(random, bytes, 1, receiveBytes[static_cast<size_t>(to)])) {
          receiver.push_back({from, region});
        }
      }
    }
    Buffers sends(count), receives(count);
    for (size_t rank = 0; rank < count; ++rank) {
      sends[rank] = {randomBytes(random, sendBytes[rank])};
      receives[rank] = {randomBytes(random, receiveBytes[rank])};
    }
    Buffers expected = receives;
    simulate(routes, sends, expected);
    MemoryLanes lanes(ranks, optionsOf(random));
    lanes.run([&](Mailbox& mail) {
      const auto rank = static_cast<size_t>(mail.rank());
      exchangeOnHost(mail, routes[rank], pointersTo(sends[rank]), pointersTo(receives[rank]));
    });
    REQUIRE((receives == expected));
  }
}

TEST_CASE("large payloads are read in place unless they have many parts") {
  const size_t partsAtSender = GENERATE(1, 4, 16, 4096);
  const size_t partsAtReceiver = GENERATE(1, 8, 16384);
  const size_t bytes = seqpar::test::kSanitized && partsAtSender > 1 ? 1 << 20 : 4 << 20;  // 4 MiB bypass the caches
  CAPTURE(partsAtSender, partsAtReceiver);
  const auto regionOf = [&](size_t parts) {
    return StridedRegion{0, 3, bytes / parts, {parts, 1, 1}, {bytes / parts + (parts > 1 ? 7 : 0), 0, 0}};
  };
  const StridedRegion from = regionOf(partsAtSender);
  const StridedRegion to = regionOf(partsAtReceiver);
  const size_t room = bytes + 7 * 16384 + 3;
  std::mt19937_64 random(5);
  std::vector<Route> routes(3);
  Buffers sends(3), receives(3);
  for (size_t rank = 0; rank < 3; ++rank) {
    routes[rank].sends = {{static_cast<int>((rank + 1) % 3), from}};
    routes[rank].receives = {{static_cast<int>((rank + 2) % 3), to}};
    sends[rank] = {randomBytes(random, room)};
    receives[rank] = {randomBytes(random, room)};
  }
  Buffers expected = receives;
  // simulate() would take long.
  for (size_t rank = 0; rank < 3; ++rank) {
    for (size_t at = 0; at < bytes; ++at) {
      const auto place = [&](const StridedRegion& p) { return p.offset + at / p.run * p.stride[0] + at % p.run; };
      expected[rank][0][place(to)] = sends[(rank + 2) % 3][0][place(from)];
    }
  }
  MemoryLanes lanes(3, {});
  lanes.run([&](Mailbox& mail) {
    const auto rank = static_cast<size_t>(mail.rank());
    exchangeOnHost(mail, routes[rank], pointersTo(sends[rank]), pointersTo(receives[rank]));
  });
  CHECK((receives == expected));
  // The number of regions, and the regions unless there is one; or no regions, and many messages.
  const bool read = bytes / partsAtSender >= 4096;
  CHECK((lanes.messagesOn(0, 1) == (partsAtSender == 1 ? 1 : 2)) == read);
}

TEST_CASE("a large copy of a rank to itself may bypass the caches") {
  const size_t bytes = GENERATE(size_t{9} << 20, size_t{17} << 20);
  const size_t fromParts = GENERATE(1, 4096), toParts = GENERATE(1, 4096);
  CAPTURE(bytes, fromParts, toParts);
  const auto regionOf = [&](size_t parts) {
    return StridedRegion{0, 3, bytes / parts, {parts, 1, 1}, {bytes / parts + (parts > 1 ? 7 : 0), 0, 0}};
  };
  const StridedRegion from = regionOf(fromParts), to = regionOf(toParts);
  const size_t room = bytes + 7 * 4096 + 3;
  std::mt19937_64 random(5);
  Route route;
  route.sends = {{0, from}};
  route.receives = {{0, to}};
  Bytes block = randomBytes(random, 4099), sent(room);
  for (size_t i = 0; i < room; ++i) sent[i] = block[i % block.size()];
  Buffers sends = {{sent}}, receives = {{Bytes(room)}};
  Buffers expected = receives;
  for (size_t at = 0; at < bytes; ++at) {
    const auto place = [&](const StridedRegion& p) { return p.offset + at / p.run * p.stride[0] + at % p.run; };
    expected[0][0][place(to)] = sends[0][0][place(from)];
  }
  MemoryLanes lanes(1, {});
  lanes.run([&](Mailbox& mail) { exchangeOnHost(mail, route, pointersTo(sends[0]), pointersTo(receives[0])); });
  CHECK((receives == expected));
}

TEST_CASE("data equal for several ranks is written once") {
  const size_t bytes = 60000;
  std::vector<Route> routes(4);
  Buffers sends(4), receives(4);
  for (int rank = 0; rank < 4; ++rank) {
    for (int other = 0; other < 4; ++other) {
      routes[static_cast<size_t>(rank)].sends.push_back({other, {0, 0, bytes}});
      routes[static_cast<size_t>(rank)].receives.push_back({other, {0, static_cast<size_t>(other) * bytes, bytes}});
    }
    sends[static_cast<size_t>(rank)] = {Bytes(bytes, static_cast<std::byte>(rank + 1))};
    receives[static_cast<size_t>(rank)] = {Bytes(4 * bytes)};
  }
  Buffers expected = receives;
  simulate(routes, sends, expected);
  MemoryLanes lanes(4, {});
  lanes.run([&](Mailbox& mail) {
    const auto rank = static_cast<size_t>(mail.rank());
    exchangeOnHost(mail, routes[rank], pointersTo(sends[rank]), pointersTo(receives[rank]));
  });
  CHECK((receives == expected));
  CHECK(lanes.messagesFrom(0) == lanes.messagesOn(0, 1));
}

TEST_CASE("more ranks than the window serves are served in batches") {
  const int ranks = 24;
  std::vector<Route> routes(ranks);
  std::vector<Reduction> reductions(ranks);
  Buffers sends(ranks), receives(ranks);
  std::mt19937_64 random(7);
  for (int rank = 0; rank < ranks; ++rank) {
    const auto self = static_cast<size_t>(rank);
    for (size_t other = 0; other < ranks; ++other) {
      routes[self].sends.push_back({static_cast<int>(other), {0, other * 4000, 4000}});
      routes[self].receives.push_back({static_cast<int>(other), {0, other * 4000, 4000}});
    }
    reductions[self].sends = routes[self].sends;
    reductions[self].sums = {{{0, 0, 4000}, false, inOrder(ranks)}};
    std::vector<float> values(ranks * 1000);
    for (float& value : values) value = static_cast<float>(random() % 1000);
    sends[self] = {toBytes(values)};
    receives[self] = {Bytes(ranks * 4000)};
  }
  Buffers expected = receives;
  Buffers sums = receives;
  Buffers expectedSums = receives;
  simulate(routes, sends, expected);
  simulate(reductions, sends, expectedSums);
  MemoryMailboxOptions options;
  options.maxMessage = 1024;
  options.window = 4096;  // two messages of 512 bytes a round
  MemoryLanes lanes(ranks, options);
  lanes.run([&](Mailbox& mail) {
    const auto rank = static_cast<size_t>(mail.rank());
    exchangeOnHost(mail, routes[rank], pointersTo(sends[rank]), pointersTo(receives[rank]));
    reduceOnHost(mail, reductions[rank], seqparFloat32, pointersTo(sends[rank]), pointersTo(sums[rank]));
  });
  CHECK((receives == expected));
  CHECK((sums == expectedSums));
}

TEST_CASE("a reduction adds in its order, bit for bit, however it is cut") {
  const seqpar::test::Seed seed;
  std::mt19937_64 random(seed);
  std::normal_distribution<float> normal;
  for (int i = 0; i < (seqpar::test::kSanitized ? 45 : 120); ++i) {
    const int ranks = 1 + i % 9;
    CAPTURE(i, ranks);
    const auto count = static_cast<size_t>(ranks);
    const ReductionCase given = randomReduction(random, ranks);
    Buffers sends(count), receives(count);
    const auto values = [&](size_t bytes) {
      std::vector<float> out(bytes / sizeof(float));
      for (float& value : out) value = normal(random);
      return toBytes(out);
    };
    for (size_t rank = 0; rank < count; ++rank) {
      sends[rank] = {values(given.sendBytes[rank])};
      receives[rank] = {values(given.receiveBytes[rank])};
    }
    Buffers expected = receives;
    simulate(given.reductions, sends, expected);
    MemoryLanes lanes(ranks, optionsOf(random));
    lanes.run([&](Mailbox& mail) {
      const auto rank = static_cast<size_t>(mail.rank());
      reduceOnHost(mail, given.reductions[rank], seqparFloat32, pointersTo(sends[rank]), pointersTo(receives[rank]));
    });
    REQUIRE((receives == expected));
  }
}

TEST_CASE("sums of 16-bit types are rounded once") {
  const auto type = GENERATE(seqparFloat16, seqparBfloat16);
  const size_t elements = 5001;
  std::mt19937_64 random(9);
  std::vector<Reduction> reductions(5);
  Buffers sends(5), receives(5);
  std::vector<std::vector<float>> values(5, std::vector<float>(5 * elements));
  for (size_t rank = 0; rank < 5; ++rank) {
    for (size_t other = 0; other < 5; ++other) {
      reductions[rank].sends.push_back({static_cast<int>(other), {0, other * elements * 2, elements * 2}});
    }
    reductions[rank].sums = {{{0, 0, elements * 2}, false, inOrder(5)}};
    // 1 and many terms that are lost one by one when added to it.
    for (float& value : values[rank]) value = rank == 0 ? 1.0f : 0x1p-9f * static_cast<float>(random() % 3);
    Bytes encoded(5 * elements * 2);
    fromFloat(values[rank].data(), encoded.data(), type, 5 * elements);
    sends[rank] = {encoded};
    receives[rank] = {Bytes(elements * 2)};
  }
  MemoryLanes lanes(5, {});
  lanes.run([&](Mailbox& mail) {
    const auto rank = static_cast<size_t>(mail.rank());
    reduceOnHost(mail, reductions[rank], type, pointersTo(sends[rank]), pointersTo(receives[rank]));
  });
  for (size_t rank = 0; rank < 5; ++rank) {
    std::vector<float> sums(elements);
    for (size_t i = 0; i < elements; ++i) {
      for (size_t from = 0; from < 5; ++from) sums[i] += values[from][rank * elements + i];
    }
    Bytes expected(elements * 2);
    fromFloat(sums.data(), expected.data(), type, elements);
    CHECK((receives[rank][0] == expected));
  }
}

TEST_CASE("ranks that disagree about a payload get an error") {
  MemoryLanes lanes(2, {});
  Bytes memory(1000);
  CHECK_THROWS_WITH(lanes.run([&](Mailbox& mail) {
    Route route;
    if (mail.rank() == 0) route.sends = {{1, {0, 0, 100}}};
    if (mail.rank() == 1) route.receives = {{0, {0, 200, 101}}};
    const std::byte* const from = memory.data();
    std::byte* const to = memory.data();
    exchangeOnHost(mail, route, std::span(&from, 1), std::span(&to, 1));
  }),
                    Catch::Contains("expects 101 bytes from rank 0, which sent 100"));
  MemoryLanes alone(1, {});
  CHECK_THROWS_WITH(alone.run([&](Mailbox& mail) {
    Route route;
    route.sends = {{0, {0, 0, 100}}};
    const std::byte* const from = memory.data();
    std::byte* const to = memory.data();
    exchangeOnHost(mail, route, std::span(&from, 1), std::span(&to, 1));
  }),
                    Catch::Contains("sends itself 100 bytes and receives 0"));
  MemoryLanes another(1, {});
  CHECK_THROWS_WITH(another.run([&](Mailbox& mail) {
    Reduction reduction;
    reduction.sums = {{{0, 0, 8}, false, {0}}};
    const std::byte* const from = memory.data();
    std::byte* const to = memory.data();
    reduceOnHost(mail, reduction, seqparFloat32, std::span(&from, 1), std::span(&to, 1));
  }),
                    Catch::Contains("lacks terms"));
}
