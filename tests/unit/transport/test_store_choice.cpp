// The choice of stores against a reader with given reading times.
#include "transport/store_choice.h"

#include <catch2/catch.hpp>

#include "base/target.h"

using namespace seqpar;

namespace {

/// A sender, and a reader with settable reading times.
class Pair {
 public:
  explicit Pair(Store first) : choice_(first) {}

  /// Sends messages of `bytes`; returns how many of them were written with ordinary stores.
  int send(int messages, size_t bytes = 65536) {
    int cached = 0;
    for (int i = 0; i < messages; ++i) {
      const auto use = choice_.next(bytes, [this] { return times_; });
      cached += use.store == Store::Cached ? 1 : 0;
      const bool ordinary = use.store == Store::Cached;
      if (use.trial != Trial::None) {
        choice_.wrote(use.trial, ordinary ? cachedWriting : streamedWriting);
        clock_.begin(use.trial, bytes, now_);
      }
      now_ += ordinary ? cachedTicks : streamedTicks;
      if (interruptEvery != 0 && ++read_ % interruptEvery == 0) now_ += 1000000;
      if (!clock_.running()) continue;
      if (const auto times = clock_.end(now_)) times_ = *times;
    }
    return cached;
  }
  StoreChoice& choice() { return choice_; }

  int64_t cachedTicks = 100, streamedTicks = 100;  ///< of the reader
  int64_t cachedWriting = 40, streamedWriting = 40;
  int interruptEvery = 0;

 private:
  StoreChoice choice_;
  TrialClock clock_;
  ReadingTimes times_;
  int64_t now_ = 1;
  int read_ = 0;
};

}  // namespace

TEST_CASE("stores follow a reader that shares a cache, and one that no longer does") {
  for (const Store first : {Store::Cached, Store::Streamed}) {
    Pair pair(first);
    pair.cachedTicks = 40;
    pair.send(100);
    CHECK(pair.choice().store() == Store::Cached);
    pair.send(10000);
    pair.cachedTicks = 1000;
    pair.send(400);
    CHECK(pair.choice().store() == Store::Streamed);
    pair.send(10000);
    pair.cachedTicks = 40;
    pair.send(400);
    CHECK(pair.choice().store() == Store::Cached);
  }
}

TEST_CASE("few messages are written the slower way once the stores are chosen") {
  Pair pair(Store::Streamed);
  pair.cachedTicks = 1000;
  pair.send(2000);
  CHECK(pair.send(10000) <= 10000 / 256 + 1);
  pair.cachedTicks = 40;
  pair.send(2000);
  CHECK(pair.send(10000) >= 10000 - 10000 / 256 - 1);
}

TEST_CASE("stores that only the sender finds slow are not chosen") {
  Pair pair(Store::Cached);
  pair.cachedTicks = 90;
  pair.cachedWriting = 1000;
  pair.send(100);
  CHECK(pair.choice().store() == Store::Streamed);
}

TEST_CASE("reading times of hours are limited") {
  const auto times = ReadingTimes::of(65535, int64_t{1} << 50, 7);
  CHECK(times.first() == static_cast<int64_t>(ReadingTimes::kMost));
  CHECK(times.second() == 7);
  CHECK(times.word != ReadingTimes::of(0, int64_t{1} << 50, 7).word);
}

TEST_CASE("equal times keep the stores") {
  for (const Store first : {Store::Cached, Store::Streamed}) {
    Pair pair(first);
    pair.send(10000);
    CHECK(pair.choice().store() == first);
  }
}

TEST_CASE("interrupts of the reader do not change the stores") {
  Pair pair(Store::Streamed);
  pair.cachedTicks = 1000;
  pair.interruptEvery = 41;
  pair.send(1000);
  for (int i = 0; i < 200; ++i) {
    pair.send(50);
    CHECK(pair.choice().store() == Store::Streamed);
  }
}

TEST_CASE("trials compare messages of equal size") {
  Pair pair(Store::Streamed);
  pair.cachedTicks = 40;
  for (int i = 0; i < 500; ++i) {
    pair.send(1, 4096);
    pair.send(1, 65536);
  }
  CHECK(pair.choice().store() == Store::Streamed);
  for (int i = 0; i < 50; ++i) {
    pair.send(3, 4096);
    pair.send(3, 65536);
  }
  CHECK(pair.choice().store() == Store::Cached);
}

TEST_CASE("payloads that are read in place become messages when a trial is due") {
  Pair pair(Store::Streamed);
  pair.cachedTicks = 40;
  int payloads = 0, inMessages = 0;
  while (pair.choice().store() == Store::Streamed && payloads < 1000) {
    ++payloads;
    if (!pair.choice().trialDue()) continue;
    ++inMessages;
    pair.send(4);
  }
  CHECK(pair.choice().store() == Store::Cached);
  CHECK(inMessages < payloads / 2);
}
