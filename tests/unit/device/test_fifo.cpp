// Fifos: order, reuse of rings, credit, and words that look absent.
#include <catch2/catch.hpp>
#include <cmath>
#include <limits>

#include "base/convert.h"
#include "kernels/arch/numbers.h"
#include "thread_peers.h"

using namespace seqpar;
using namespace seqpar::test;

namespace {

using Out = Sender<ThreadMemory>;
using In = Receiver<ThreadMemory>;

LamportPacket packetOf(std::uint32_t number) {
  return {{number, number ^ 0x55555555U, number * 2654435761U >> 1, 7}};
}

bool same(const LamportPacket& a, const LamportPacket& b) {
  return std::equal(a.word, a.word + 4, b.word);
}

}  // namespace

TEST_CASE("A fifo keeps order over many rounds of its ring") {
  ThreadPeers peers(2, 1);
  constexpr std::uint32_t kPackets = 5 * kRingPackets + 17;
  std::uint32_t wrong = 0;
  bool ok = true;
  peers.run(1, [&](const ChannelThread& thread) {
    if (thread.view.self == 0) {
      Out out(thread.view, 1, 0, 0, 0);
      for (std::uint32_t i = 0; i < kPackets; ++i) {
        if (!out.reserve(i + 1)) return;
        out.put(i, packetOf(i));
      }
    } else {
      const In in(thread.view, 0, 0, 0);
      for (std::uint32_t i = 0; i < kPackets; ++i) {
        LamportPacket packet = in.poll(i);
        if (!in.take(i, packet)) {
          ok = false;
          return;
        }
        wrong += same(packet, packetOf(i)) ? 0 : 1;
        if ((i + 1) % kCreditPackets == 0) giveCredit<ThreadMemory>(thread.view, 0, 0, i + 1);
      }
    }
  });
  CHECK(ok);
  CHECK(wrong == 0);
  CHECK(peers.packetsPublished(0, 1) == 0);
  CHECK(peers.creditSent(0, 1) == 5 * kRingPackets);
}

TEST_CASE("A sender without credit waits until the timeout") {
  ThreadPeers peers(2, 1, std::chrono::milliseconds(20));
  Out out(peers.view(0), 1, 0, 0, 0);
  REQUIRE(out.reserve(kRingPackets));
  CHECK(peers.timedOut(0) == 0);
  CHECK_FALSE(out.reserve(kRingPackets + 1));
  CHECK(peers.timedOut(0) == 2);
  giveCredit<ThreadMemory>(peers.view(1), 0, 0, 1);
  CHECK(out.reserve(kRingPackets + 1));
}

TEST_CASE("Credit from earlier calls is used") {
  ThreadPeers peers(2, 1, std::chrono::milliseconds(20));
  constexpr std::uint64_t kBase = (std::uint64_t{1} << 40) + 5;
  Out out(peers.view(0), 1, 0, kBase, kBase - 3);
  CHECK(out.reserve(kRingPackets - 3));
  CHECK_FALSE(out.reserve(kRingPackets - 2));
}

TEST_CASE("A packet is complete only after all of its words have arrived") {
  ThreadPeers peers(2, 1, std::chrono::milliseconds(20));
  const Out out(peers.view(0), 1, 0, kRingPackets + 9, kRingPackets + 9);
  const In in(peers.view(1), 0, 0, kRingPackets + 9);
  for (std::uint32_t word = 0; word < 4; ++word) {
    CHECK_FALSE(complete(in.poll(2)));
    out.putWord(8 + word, word);
    CHECK(in.pollWord(8 + word) == word);
  }
  LamportPacket packet = in.poll(2);
  CHECK(same(packet, LamportPacket{{0, 1, 2, 3}}));
  CHECK(in.take(2, packet));
  CHECK_FALSE(complete(in.poll(2)));
  CHECK_FALSE(in.take(2, packet = in.poll(2)));
  CHECK(peers.timedOut(1) == 1);
}

TEST_CASE("Abort ends a wait that has no timeout") {
  ThreadPeers peers(2, 1, std::chrono::milliseconds(0));
  std::jthread killer([&] {
    std::this_thread::sleep_for(std::chrono::milliseconds(20));
    peers.abort();
  });
  std::uint32_t word = kAbsent;
  CHECK_FALSE(In(peers.view(1), 0, 0, 0).awaitWord(0, word));
  CHECK(peers.timedOut(1) == 1);
}

TEST_CASE("A value equal to the sentinel is sent as another NaN") {
  CHECK(std::isnan(asFloat(kAbsent)));
  CHECK(std::isnan(asFloat(sendable(kAbsent, kAbsentAsFloat))));
  for (const std::uint32_t half : {kAbsentAsHalves >> 16, kAbsentAsHalves & 0xffffU}) {
    CHECK(std::isnan(halfToFloat(half)));
    CHECK(std::isnan(bfloatToFloat(half)));
  }
  for (const float value : {-0.0F, 0.0F, std::numeric_limits<float>::infinity(), 1.0F}) {
    CHECK(sendable(asBits(value), kAbsentAsFloat) == asBits(value));
  }
  CHECK(sendable(0x7fc12345U, kAbsentAsFloat) == 0x7fc12345U);
}

TEST_CASE("16-bit types convert to fp32 and back as on the host") {
  for (std::uint32_t bits = 0; bits < 0x10000; ++bits) {
    const auto half = static_cast<std::uint16_t>(bits);
    float host = 0;
    toFloat(&half, seqparBfloat16, &host, 1);
    CHECK((asBits(bfloatToFloat(bits)) == asBits(host) || std::isnan(host)));
    toFloat(&half, seqparFloat16, &host, 1);
    CHECK((asBits(halfToFloat(bits)) == asBits(host) || (std::isnan(host) && std::isnan(halfToFloat(bits)))));
    toFloat(&half, seqparFloat16, &host, 1);
    CHECK((asBits(halfToFloat(bits)) == asBits(host) || (std::isnan(host) && std::isnan(halfToFloat(bits)))));
  }
  std::uint32_t bits = 1;
  for (int i = 0; i < 100000; ++i) {
    bits = bits * 1664525U + 1013904223U;
    const float value = asFloat(bits);
    std::uint16_t host = 0;
    fromFloat(&value, &host, seqparBfloat16, 1);
    CHECK(floatsToBfloats(value, 1.0F) == (0x3f800000U | host));
    // Most of all floats are beyond fp16; these go from its subnormals to infinity.
    const float near = std::ldexp(1.0F + static_cast<float>(bits >> 9) * 0x1p-23F, static_cast<int>(bits % 48) - 28);
    for (const float number : {value, near}) {
      if (std::isnan(number)) continue;
      fromFloat(&number, &host, seqparFloat16, 1);
      CHECK(floatsToHalves(number, 1.0F) == (0x3c000000U | host));
    }
  }
}

TEST_CASE("Each call starts at the same multiple of eight packets on both sides") {
  for (std::uint64_t packets = 0; packets < 40; ++packets) {
    FifoState state;
    state.sent = packets;
    state.received = 1000 + packets;
    state.credited = state.credit = packets / 2;
    const FifoState at = alignedToCall(state);
    CHECK(at.sent == (packets + 7) / 8 * 8);
    CHECK(at.received == 1000 + at.sent);
    CHECK(at.credited == state.credited);
    CHECK(at.credit == state.credit);
    CHECK(alignedToCall(at).sent == at.sent);
  }
}
