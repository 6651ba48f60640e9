// Buffers that peers map: places, alignment, reuse, and child processes.
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <catch2/catch.hpp>
#include <cstring>
#include <map>
#include <random>
#include <vector>

#include "base/shared_buffers.h"
#include "unit/seed.h"

using namespace seqpar;

namespace {

constexpr size_t kMiB = size_t{1} << 20;

/// The exit status of a child process that runs `body`; -1 if a signal ended it.
template <typename Body>
int inChild(Body&& body) {
  const pid_t child = fork();
  if (child == 0) _exit(body() ? 0 : 1);
  int status = 0;
  return waitpid(child, &status, 0) == child && WIFEXITED(status) ? WEXITSTATUS(status) : -1;
}

}  // namespace

TEST_CASE("shared buffers are aligned, disjoint, and inside the file") {
  SharedBuffers buffers(64 * kMiB);
  const seqpar::test::Seed seed;
  std::mt19937_64 random(seed);
  std::map<std::byte*, std::vector<std::byte>> held;
  for (int i = 0; i < 2000; ++i) {
    if (random() % 2 == 0 && !held.empty()) {
      const auto entry = std::next(held.begin(), static_cast<std::ptrdiff_t>(random() % held.size()));
      CHECK(std::equal(entry->second.begin(), entry->second.end(), entry->first));
      buffers.free(entry->first);
      held.erase(entry);
      continue;
    }
    const size_t bytes = random() % 8 == 0 ? 2 * kMiB + random() % kMiB : 1 + random() % 100000;
    std::byte* const made = buffers.allocate(bytes);
    if (made == nullptr) continue;
    CHECK(reinterpret_cast<uintptr_t>(made) % (bytes >= 2 * kMiB ? 2 * kMiB : 4096) == 0);
    CHECK(buffers.contain(made, bytes));
    std::vector<std::byte> values(bytes, static_cast<std::byte>(random()));
    std::copy(values.begin(), values.end(), made);
    held[made] = std::move(values);
  }
  for (const auto& [made, values] : held) CHECK(std::equal(values.begin(), values.end(), made));
  for (const auto& entry : held) buffers.free(entry.first);
  // All places are one again, except the first page and the rest of its 2 MiB.
  std::byte* const all = buffers.allocate(62 * kMiB);
  CHECK(all == buffers.begin() + 2 * kMiB);
  CHECK(buffers.allocate(2 * kMiB) == nullptr);
  CHECK(buffers.allocate(2 * kMiB - 4096) == buffers.begin() + 4096);
  CHECK(buffers.allocate(1) == nullptr);
  CHECK(buffers.allocate(size_t{1} << 62) == nullptr);
}

TEST_CASE("only whole ranges of the file count as shared") {
  SharedBuffers buffers(4 * kMiB);
  const auto* const begin = buffers.begin();
  std::vector<std::byte> other(100);
  CHECK(buffers.contain(begin, 4 * kMiB));
  CHECK(buffers.contain(begin + 4 * kMiB - 1, 1));
  CHECK_FALSE(buffers.contain(begin + 4 * kMiB - 1, 2));
  CHECK_FALSE(buffers.contain(begin + 1, SIZE_MAX));
  CHECK_FALSE(buffers.contain(begin - 1, 1));
  CHECK_FALSE(buffers.contain(begin + 4 * kMiB, 1));
  CHECK_FALSE(buffers.contain(other.data(), other.size()));
}

TEST_CASE("a freed buffer returns its memory, and its place is used again") {
  SharedBuffers buffers(16 * kMiB);
  std::byte* const first = buffers.allocate(kMiB);
  REQUIRE(first != nullptr);
  std::memset(first, 0x5a, kMiB);
  buffers.free(first);
  buffers.free(first);  // not in use: no effect
  std::byte* const second = buffers.allocate(kMiB);
  CHECK(second == first);
  CHECK(std::all_of(second, second + kMiB, [](std::byte value) { return value == std::byte{0}; }));
}

TEST_CASE("a child process neither frees nor allocates its parent's buffers") {
  const auto buffers = SharedBuffers::ofProcess(true);
  if (buffers == nullptr) return;  // the system allows none
  std::byte* const mine = buffers->allocate(kMiB);
  REQUIRE(mine != nullptr);
  std::memset(mine, 0x33, kMiB);
  const int status = inChild([&] {
    const bool reads = mine[kMiB - 1] == std::byte{0x33};
    buffers->free(mine);
    const auto inherited = SharedBuffers::ofProcess(false);
    const auto own = SharedBuffers::ofProcess(true);
    std::byte* const made = own == nullptr ? nullptr : own->allocate(kMiB);
    if (made != nullptr) std::memset(made, 0x44, kMiB);
    return reads && inherited == nullptr && own != nullptr && made != nullptr && own->mine() && !buffers->mine();
  });
  CHECK(status == 0);
  CHECK(std::all_of(mine, mine + kMiB, [](std::byte value) { return value == std::byte{0x33}; }));
  CHECK(SharedBuffers::ofProcess(false) == buffers);
  buffers->free(mine);
}

TEST_CASE("buffers are shared if they are large and the process has a file for them") {
  CHECK(SharedBuffers::ofProcess(false) == nullptr);
  const auto before = allocateShared(kMiB, "a test");
  const auto buffers = SharedBuffers::ofProcess(true);
  if (buffers == nullptr) return;
  CHECK(SharedBuffers::ofProcess(true) == buffers);
  const auto small = allocateShared(100, "a test");
  auto large = allocateShared(kMiB, "a test");
  CHECK_FALSE(buffers->contain(before.get(), kMiB));
  CHECK_FALSE(buffers->contain(small.get(), 100));
  CHECK(buffers->contain(large.get(), kMiB));
  const std::byte* const place = large.get();
  large.reset();
  CHECK(allocateShared(kMiB, "a test").get() == place);
}
