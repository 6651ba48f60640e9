// Payloads that receivers copy from the buffers of processes of this host.
#include <sys/resource.h>

#include <algorithm>
#include <catch2/catch.hpp>
#include <cstring>
#include <memory>
#include <vector>

#include "base/shared_buffers.h"
#include "common/sanitized.h"
#include "exchange/flows.h"
#include "group.h"

using namespace seqpar;
using namespace seqpar::testing;

namespace {

constexpr size_t kBytes = size_t{3} << 20;

bool areAll(const std::byte* data, size_t bytes, unsigned value) {
  return std::all_of(data, data + bytes, [&](std::byte each) { return each == static_cast<std::byte>(value); });
}

uint64_t addressOf(const std::byte* data) {
  return reinterpret_cast<uint64_t>(data);
}

/// Every rank learns the address that each has.
std::vector<uint64_t> exchangeAddresses(Member& member, const std::byte* mine) {
  std::vector<uint64_t> addresses(static_cast<size_t>(member.size));
  member.control.gatherValues(addressOf(mine), std::span(addresses));
  return addresses;
}

/// 0: all processes returned true.
int runProcesses(int ranks, const std::function<bool(Member&)>& body) {
  Meeting meeting(ranks);
  int bad = 0;
  for (const pid_t process : startProcesses(meeting, optionsFor(ranks), body)) bad += join(process) == 0 ? 0 : 1;
  return bad;
}

}  // namespace

TEST_CASE("processes and threads read each other's buffers at any offset") {
  const auto body = [](Member& member) {
    const auto buffer = allocateShared(kBytes, "a test");
    const auto heap = std::make_unique<std::byte[]>(100000);
    std::memset(buffer.get(), 10 + member.rank, kBytes);
    std::memset(heap.get(), 10 + member.rank, 100000);
    const auto addresses = exchangeAddresses(member, buffer.get());
    const auto others = exchangeAddresses(member, heap.get());
    bool good = member.mail.shared(buffer.get(), kBytes) && !member.mail.shared(heap.get(), 100000);
    for (int peer = 0; peer < member.size; ++peer) {
      if (peer == member.rank) continue;
      const auto at = static_cast<size_t>(peer);
      good = good && member.mail.mapped(peer);
      for (const size_t offset : {size_t{0}, size_t{1}, size_t{4097}, kBytes - 1}) {
        const std::byte* const view = member.mail.view(peer, addresses[at] + offset, kBytes - offset);
        good = good && view != nullptr && areAll(view, kBytes - offset, 10 + static_cast<unsigned>(peer));
        std::vector<std::byte> into(kBytes - offset + 2);
        member.mail.read(peer, addresses[at] + offset, std::span(into).subspan(1, kBytes - offset));
        good = good && areAll(into.data() + 1, kBytes - offset, 10 + static_cast<unsigned>(peer));
        good = good && into.front() == std::byte{0} && into.back() == std::byte{0};
      }
      good = good && member.mail.view(peer, others[at], 100000) == nullptr;
      good = good && member.mail.view(peer, addresses[at], SIZE_MAX) == nullptr;
      good = good && member.mail.view(peer, 0, 1) == nullptr;
      member.mail.endViews(peer);
    }
    member.control.barrier();
    return good;
  };
  CHECK(runProcesses(3, body) == 0);
  std::vector<int> good(3);
  const auto errors =
      runThreads(optionsFor(3), [&](Member& member) { good[static_cast<size_t>(member.rank)] = body(member) ? 1 : 0; });
  CHECK(errors == std::vector<std::string>(3));
  CHECK(good == std::vector<int>{1, 1, 1});
}

TEST_CASE("parts of buffers are read into parts of other sizes") {
  CHECK(runProcesses(2, [](Member& member) {
          const auto buffer = allocateShared(kBytes, "a test");
          for (size_t i = 0; i < kBytes; ++i) buffer.get()[i] = static_cast<std::byte>(i % 251);
          const auto addresses = exchangeAddresses(member, buffer.get());
          const uint64_t there = addresses[static_cast<size_t>(1 - member.rank)];
          const RemoteBytes from[] = {{there + 100, 5}, {there + 70000, 60000}, {there, 0}, {there + 9, 35}};
          std::vector<std::byte> into(60040);
          const std::span all(into);
          const std::span<std::byte> parts[] = {all.first(30000), all.subspan(30000, 0), all.subspan(30000)};
          member.mail.read(1 - member.rank, from, parts);
          bool good = true;
          size_t at = 0;
          for (const auto& part : from) {
            for (size_t i = 0; i < part.bytes; ++i, ++at) {
              good = good && into[at] == static_cast<std::byte>((part.address - there + i) % 251);
            }
          }
          member.control.barrier();
          return good;
        }) == 0);
}

TEST_CASE("a buffer that was freed and allocated again is read as it is now") {
  CHECK(runProcesses(2, [](Member& member) {
          bool good = true;
          std::vector<std::byte> into(kBytes);
          std::vector<std::shared_ptr<std::byte>> kept;
          for (unsigned round = 1; round < 12; ++round) {
            // Other sizes, so that a place belongs to other buffers from round to round.
            const size_t bytes = kBytes >> round % 4;
            const auto buffer = allocateShared(bytes, "a test");
            if (round % 3 == 0) kept.push_back(allocateShared(200000, "a test"));
            std::memset(buffer.get(), static_cast<int>(2 * round) + member.rank, bytes);
            const auto addresses = exchangeAddresses(member, buffer.get());
            const int peer = 1 - member.rank;
            member.mail.read(peer, addresses[static_cast<size_t>(peer)], std::span(into).first(bytes));
            good = good && areAll(into.data(), bytes, 2 * round + static_cast<unsigned>(peer));
            member.control.barrier();
          }
          return good;
        }) == 0);
}

TEST_CASE("a read of a buffer that its rank frees after a failure is an error, not a signal") {
  CHECK(runProcesses(2, [](Member& member) {
          auto buffer = allocateShared(kBytes, "a test");
          std::memset(buffer.get(), 7, kBytes);
          const auto addresses = exchangeAddresses(member, buffer.get());
          member.mail.begin("seqparSendRecv", 1);
          if (member.rank == 0) {
            member.control.barrier();
            member.mail.abandon();
            buffer.reset();
            member.control.barrier();
            return true;
          }
          const std::byte* const view = member.mail.view(0, addresses[0], kBytes);
          if (view == nullptr || !areAll(view, kBytes, 7)) return false;
          member.control.barrier();
          for (int i = 0; i < 20; ++i) {
            if (std::any_of(view, view + kBytes,
                            [](std::byte each) { return each != std::byte{7} && each != std::byte{0}; })) {
              return false;
            }
          }
          member.control.barrier();
          try {
            member.mail.endViews(0);
          } catch (const Error& error) {
            return error.result() == seqparRemoteError;
          }
          return false;
        }) == 0);
}

TEST_CASE("the buffers of a process that dies stay readable for its peers") {
  void* const memory =
      mmap(nullptr, sizeof(std::atomic<int>), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  REQUIRE(memory != MAP_FAILED);
  auto* const died = new (memory) std::atomic<int>(0);
  Meeting meeting(2);
  const auto processes = startProcesses(meeting, optionsFor(2), [&](Member& member) {
    member.waitsForOthers = false;
    const auto buffer = allocateShared(kBytes, "a test");
    std::memset(buffer.get(), 7, kBytes);
    const auto addresses = exchangeAddresses(member, buffer.get());
    const std::byte* const view = member.rank == 1 ? member.mail.view(0, addresses[0], kBytes) : nullptr;
    member.control.barrier();
    if (member.rank == 0) kill(getpid(), SIGKILL);
    bool good = view != nullptr;
    while (good && died->load() == 0) good = areAll(view, kBytes, 7);
    return good && areAll(view, kBytes, 7);
  });
  CHECK(join(processes[0]) == -1);
  died->store(1);
  CHECK(join(processes[1]) == 0);
  munmap(memory, sizeof(std::atomic<int>));
}

#ifndef SEQPAR_SANITIZED  // sanitizers need more addresses than the limit
TEST_CASE("ranks without addresses for shared buffers use the kernel or messages") {
  const bool both = GENERATE(false, true);
  CAPTURE(both);
  Meeting meeting(2);
  std::vector<pid_t> processes;
  for (int rank = 0; rank < 2; ++rank) {
    const pid_t process = fork();
    REQUIRE(process >= 0);
    if (process != 0) {
      processes.push_back(process);
      continue;
    }
    bool good = false;
    try {
      const rlimit few{size_t{1} << 30, size_t{1} << 30};
      if (rank == 0 || both) setrlimit(RLIMIT_AS, &few);
      runMember(meeting, rank, optionsFor(2), [&](Member& member) {
        const auto buffer = allocateShared(kBytes, "a test");
        std::memset(buffer.get(), 20 + rank, kBytes);
        const auto addresses = exchangeAddresses(member, buffer.get());
        good = !member.mail.mapped(1 - rank) && member.mail.view(1 - rank, addresses[1 - rank], kBytes) == nullptr;
        std::vector<std::byte> into(kBytes);
        const std::span<const std::byte> out(buffer.get(), kBytes);
        const std::span<std::byte> in(into);
        member.mail.begin("seqparSendRecv", 1);
        const Flow flow{1 - rank, std::span(&out, 1), 1 - rank, std::span(&in, 1)};
        exchangeFlows(member.mail, std::span(&flow, 1));
        member.mail.end();
        good = good && areAll(into.data(), kBytes, 21 - static_cast<unsigned>(rank));
      });
    } catch (const std::exception& error) {
      std::cerr << "rank " << rank << ": " << error.what() << std::endl;
      good = false;
    }
    _exit(good ? 0 : 1);
  }
  for (const pid_t process : processes) CHECK(join(process) == 0);
}
#endif
