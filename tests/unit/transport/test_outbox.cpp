// Outbox and the queues on plain memory, without UCX.
#include <catch2/catch.hpp>
#include <deque>
#include <memory>
#include <random>
#include <thread>
#include <vector>

#include "common/timeouts.h"
#include "transport/outbox.h"
#include "transport/segment.h"
#include "transport/shared_queue.h"
#include "transport/waiter.h"
#include "unit/seed.h"

using namespace seqpar;

namespace {

struct Live {
  size_t begin, end;
  int rank;
  uint64_t sequence;
};

std::unique_ptr<std::byte, void (*)(void*)> clearedSegment(size_t readers) {
  const size_t bytes = Segment::bytes(readers);
  std::unique_ptr<std::byte, void (*)(void*)> memory(static_cast<std::byte*>(std::aligned_alloc(4096, bytes)),
                                                     std::free);
  std::memset(memory.get(), 0, bytes);
  return memory;
}

}  // namespace

TEST_CASE("outbox never returns unread memory across wrap-arounds") {
  const seqpar::test::Seed seed;
  std::mt19937 random(seed);
  const size_t capacity = 64 * 1024;
  Outbox outbox(capacity);
  std::deque<Live> live;
  std::vector<uint64_t> sent(3), consumed(3);
  size_t placed = 0;
  for (int step = 0; step < 100000; ++step) {
    const size_t bytes = random() % (capacity / 8 + 1);
    const auto offset = outbox.place(bytes);
    if (offset) {
      ++placed;
      REQUIRE(*offset % kCacheLine == 0);
      REQUIRE(*offset + bytes <= capacity);
      for (const Live& other : live) REQUIRE((*offset + bytes <= other.begin || other.end <= *offset));
      const int readers = 1 + static_cast<int>(random() % 3);
      for (int rank = 0; rank < readers; ++rank) {
        const auto r = static_cast<size_t>(rank);
        outbox.keep(*offset, bytes, rank, ++sent[r]);
        live.push_back({*offset, *offset + bytes, rank, sent[r]});
      }
    } else {
      REQUIRE_FALSE(live.empty());
    }
    if (!offset || random() % 2 == 0) {
      const size_t r = random() % 3;
      consumed[r] = std::min(sent[r], consumed[r] + random() % 5);
      outbox.reclaim([&](int rank) { return consumed[static_cast<size_t>(rank)]; });
      const auto released = [&](const Live& one) { return one.sequence <= consumed[static_cast<size_t>(one.rank)]; };
      // Only the oldest ones are freed; a consumed one after an unread one may still be kept.
      while (!live.empty() && released(live.front())) live.pop_front();
    }
  }
  REQUIRE(placed > 10000);
}

TEST_CASE("outbox wraps around and accepts a message of the ring's size when all is read") {
  Outbox outbox(1024);
  const auto everything = [](int) { return ~uint64_t{0}; };
  for (const size_t expected : {0, 448, 0, 448}) {
    REQUIRE(outbox.place(400) == expected);
    outbox.keep(expected, 400, 1, 1);
    REQUIRE(outbox.oldest() != nullptr);
    outbox.reclaim(everything);
    REQUIRE(outbox.oldest() == nullptr);
  }
  REQUIRE(outbox.place(1024) == 0U);
  REQUIRE_FALSE(outbox.place(1025));
}

TEST_CASE("outbox has room for any message while at most a window is unread") {
  const seqpar::test::Seed seed;
  std::mt19937 random(seed);
  Outbox outbox(kRingBytes);
  std::deque<size_t> unread;
  size_t total = 0;
  uint64_t sent = 0, consumed = 0;
  for (int step = 0; step < 20000; ++step) {
    while (total > kWindow) {
      total -= unread.front();
      unread.pop_front();
      ++consumed;
    }
    outbox.reclaim([&](int) { return consumed; });
    const size_t bytes = random() % 3 == 0 ? kMaxMessage : random() % kMaxMessage;
    const auto offset = outbox.place(bytes);
    REQUIRE(offset);
    outbox.keep(*offset, bytes, 1, ++sent);
    unread.push_back((bytes + kCacheLine - 1) / kCacheLine * kCacheLine);
    total += unread.back();
  }
}

TEST_CASE("a queue delivers in order across wrap-arounds of its descriptors") {
  const seqpar::test::Seed seed;
  const auto memory = clearedSegment(1);
  const Segment segment(memory.get(), 1);
  Doorbell readerDoorbell{}, writerDoorbell{};
  Health health;
  const Waiter::Options options{0, test::kNoTimeout, false};
  const uint64_t messages = 20 * kDescriptors;
  std::atomic<uint64_t> wrong{0};

  std::thread reader([&] {
    std::mt19937 random(seed);
    Waiter waiter(health, readerDoorbell, nullptr, options);
    waiter.begin("reader", 0);
    ReceiveQueue queue(segment.descriptors(0), segment.ack(0), segment.ring());
    try {
      for (uint64_t i = 0; i < messages; ++i) {
        const size_t bytes = random() % 200;
        waiter.wait(
            Waiter::By::Store, [&] { return queue.arrived(); }, [] { return "for the writer"; });
        if (queue.head() != MessageHead(bytes, static_cast<uint32_t>(i % MessageHead::kMarks))) ++wrong;
        for (size_t at = 0; at < bytes; ++at) {
          if (queue.data()[at] != static_cast<std::byte>(i + at)) ++wrong;
        }
        queue.release();
        ring(writerDoorbell);
      }
    } catch (const Error&) {
      ++wrong;
    }
  });
  std::mt19937 random(seed);
  Waiter waiter(health, writerDoorbell, nullptr, options);
  waiter.begin("writer", 0);
  SendQueue queue(segment.descriptors(0), segment.ack(0));
  Outbox outbox(64 * 1024);
  try {
    for (uint64_t i = 0; i < messages; ++i) {
      const size_t bytes = random() % 200;
      waiter.wait(
          Waiter::By::Store, [&] { return !queue.full(); }, [] { return "for the reader"; });
      const auto mark = static_cast<uint32_t>(i % MessageHead::kMarks);
      std::byte small[kInlineBytes];
      std::optional<size_t> offset;
      if (bytes > kInlineBytes) {
        waiter.wait(
            Waiter::By::Store,
            [&] {
              outbox.reclaim([&](int) { return queue.consumed(); });
              return (offset = outbox.place(bytes)).has_value();
            },
            [] { return "for the reader"; });
      }
      std::byte* data = offset ? segment.ring() + *offset : small;
      for (size_t at = 0; at < bytes; ++at) data[at] = static_cast<std::byte>(i + at);
      if (offset)
        outbox.keep(*offset, bytes, 1, queue.publishAt(*offset, bytes, mark, Trial::None));
      else
        queue.publishInline(small, bytes, mark);
      ring(readerDoorbell);
    }
  } catch (const Error& error) {
    health.fail(seqparRemoteError, error.what());
  }
  reader.join();
  REQUIRE(health.text().empty());
  REQUIRE(wrong == 0);
}

TEST_CASE("the cause of a timeout may be noticed a moment after it") {
  Health health;
  Doorbell doorbell{};
  Waiter waiter(health, doorbell, nullptr, {0, std::chrono::milliseconds(1000), false});
  waiter.begin("call", 1);
  std::jthread control;
  const auto never = [] { return false; };
  const auto description = [&] {
    control = std::jthread([&] { health.fail(seqparRemoteError, "rank 2 is stopped"); });
    return std::string("for rank 1");
  };
  CHECK_THROWS_WITH(waiter.wait(Waiter::By::Store, never, description), "rank 2 is stopped");
}
