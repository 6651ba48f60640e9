#include "base/lines.h"
#include "base/target.h"
#include "unit/seed.h"

#include <catch2/catch.hpp>
#include <cstring>
#include <random>
#include <vector>

using namespace seqpar;

namespace {

constexpr std::byte kUntouched{0xa5};

/// Bytes with a margin on both sides that must not change.
struct Guarded {
  explicit Guarded(size_t size) : bytes(size + 256, kUntouched) {
    const auto address = reinterpret_cast<uintptr_t>(bytes.data());
    begin = 64 + (64 - address % 64) % 64;
  }
  bool onlyWrote(size_t offset, size_t size) const {
    for (size_t i = 0; i < bytes.size(); ++i) {
      const bool inside = i >= begin + offset && i < begin + offset + size;
      if (!inside && bytes[i] != kUntouched) return false;
    }
    return true;
  }
  std::byte* at(size_t offset) { return bytes.data() + begin + offset; }
  std::vector<std::byte> bytes;
  size_t begin;
};

}  // namespace

TEST_CASE("copies write exactly their bytes for any size, alignment and store mode") {
  const seqpar::test::Seed seed;
  std::mt19937 random(seed);
  for (const size_t size : {0, 1, 63, 64, 65, 127, 128, 1000, 4096, 4097}) {
    std::vector<std::byte> source(size + 64);
    for (auto& byte : source) byte = static_cast<std::byte>(random());
    for (const size_t from : {0, 1, 17}) {
      for (const size_t to : {0, 1, 32}) {
        CAPTURE(size, from, to);
        const auto same = [&](Guarded& target) {
          return target.onlyWrote(to, size) &&
                 (size == 0 || std::memcmp(target.at(to), source.data() + from, size) == 0);
        };
        for (const Store store : {Store::Cached, Store::Streamed}) {
          Guarded target(size + 64);
          copyTo({target.at(to), store}, source.data() + from, size);
          CHECK(same(target));
        }
        for (const Store store : {Store::Cached, Store::Streamed}) {
          Guarded target(size + 64);
          copyFrom(target.at(to), source.data() + from, size, store);
          finishParts();
          CHECK(same(target));
        }
        // As parts that are finished together.
        Guarded target(size + 64);
        copyPartTo({target.at(to), Store::Streamed}, source.data() + from, size / 2);
        copyPartTo({target.at(to + size / 2), Store::Streamed}, source.data() + from + size / 2, size - size / 2);
        finishParts();
        CHECK(same(target));
      }
    }
  }
}

TEST_CASE("copies of lines write exactly their lines with every instruction set of this processor") {
  const seqpar::test::Seed seed;
  std::mt19937 random(seed);
  for (const Isa isa : supportedIsas()) {
    for (const size_t lines : {0, 1, 2, 33}) {
      const size_t bytes = lines * kCopiedLine;
      std::vector<std::byte> source(bytes + 64);
      for (auto& byte : source) byte = static_cast<std::byte>(random());
      for (const size_t from : {0, 3}) {
        for (const size_t to : {0, 5}) {
          for (const bool streams : {false, true}) {
            if (streams && to != 0) continue;  // whole lines only
            CAPTURE(isaName(isa), lines, from, to, streams);
            Guarded target(bytes + 64);
            const LineCopies& copies = lineCopies(isa);
            (streams ? copies.streamed : copies.cached)(target.at(to), source.data() + from, lines);
            finishParts();
            CHECK(target.onlyWrote(to, bytes));
            CHECK((bytes == 0 || std::memcmp(target.at(to), source.data() + from, bytes) == 0));
          }
        }
      }
    }
  }
}

TEST_CASE("an empty target stays empty, and an offset target keeps its store mode") {
  CHECK_FALSE(Target());
  CHECK_FALSE(Target(nullptr));
  std::byte bytes[2];
  const Target second = Target(bytes, Store::Streamed).after(1);
  CHECK(second.data == bytes + 1);
  CHECK(second.store == Store::Streamed);
}
