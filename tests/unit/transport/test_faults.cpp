// The mailbox's behavior when a rank is late, the communicator fails, or a process dies.
#include <sys/resource.h>

#include <algorithm>
#include <csignal>

#include <catch2/catch.hpp>

#include "bootstrap/agree.h"
#include "group.h"
#include "transport/ucx.h"

using namespace seqpar;
using namespace seqpar::testing;
using namespace std::chrono_literals;

namespace {

/// Rank 0 fills its ring until it has to wait.
void sendForEver(Member& member) {
  while (true) {
    member.mail.acquire(1, member.mail.maxMessage());
    member.mail.commit();
  }
}

void receiveForEver(Member& member) {
  while (true) {
    member.mail.receive(1, 8);
    member.mail.release(1);
  }
}

/// The exception's text or "".
template <typename Body>
Error thrownBy(Body&& body) {
  try {
    body();
  } catch (const Error& error) {
    return error;
  }
  return {seqparSuccess, ""};
}

}  // namespace

TEST_CASE("a timeout is a RemoteError with operation, ranks and time") {
  MailboxOptions options = optionsFor(2);
  options.transport = GENERATE(seqparTransportAuto, seqparTransportNetwork);
  const bool sends = GENERATE(false, true);
  const bool alone = GENERATE(false, true);
  if (alone) options.hostIds[1] = "elsewhere";
  CAPTURE(options.transport, sends, alone);
  // The timeout also applies to the creation of the mailboxes, which must be faster.
  const auto wrong = test::withGrowingTimeout(300, [&](int timeoutMs) -> std::string {
    options.timeout = std::chrono::milliseconds(timeoutMs);
    Error error(seqparSuccess, "");
    bool failed = false;
    const auto errors = runThreads(options, [&](Member& member) {
      if (member.rank == 0) {
        member.mail.begin("seqparAllScan", 17);
        error = thrownBy([&] { sends ? sendForEver(member) : receiveForEver(member); });
        failed = !member.health.ok();
        // Nothing is published afterwards.
        const Error later = thrownBy([&] {
          member.mail.acquire(1, 8);
          member.mail.commit();
        });
        if (later.result() != seqparRemoteError) fail(seqparInternalError, "published after a failure");
      }
    });
    const std::string expected = concat("seqparAllScan #17: rank 0 waited ", timeoutMs / 1000.0, " s for ",
                                        sends ? "rank 1 to read its messages" : "a message from rank 1");
    const bool right = error.result() == seqparRemoteError && failed && error.what() == expected;
    return errors[0] + errors[1] + (right ? "" : concat("; result ", error.result(), ": ", error.what()));
  });
  REQUIRE(wrong == "");
}

TEST_CASE("a failure reported by another thread ends every wait") {
  MailboxOptions options = optionsFor(2);
  options.transport = GENERATE(seqparTransportAuto, seqparTransportNetwork);
  const bool sends = GENERATE(false, true);
  const bool timed = GENERATE(false, true);
  if (!timed) options.timeout = 0ms;
  CAPTURE(options.transport, sends, timed);
  Error error(seqparSuccess, "");
  const auto errors = runThreads(options, [&](Member& member) {
    if (member.rank == 0) {
      std::thread reporter([&] {
        std::this_thread::sleep_for(100ms);
        member.health.fail(seqparSystemError, "the test says so");
      });
      member.mail.begin("waiting", 0);
      error = thrownBy([&] { sends ? sendForEver(member) : receiveForEver(member); });
      reporter.join();
    }
  });
  CAPTURE(errors);
  REQUIRE(error.result() == seqparSystemError);
  REQUIRE(std::string(error.what()) == "the test says so");
}

TEST_CASE("data that a rank read from a peer that had given up is an error") {
  MailboxOptions options = optionsFor(2);
  const bool gaveUp = GENERATE(false, true);
  const size_t bytes = GENERATE(size_t{5}, size_t{100000}, size_t{20} << 20);
  CAPTURE(gaveUp, bytes);
  bool readable = false, same = false;
  Error error(seqparSuccess, "");
  const auto errors = runThreads(options, [&](Member& member) {
    std::vector<std::byte> data(bytes, member.rank == 0 ? std::byte{7} : std::byte{0});
    const uint64_t mine = reinterpret_cast<uint64_t>(data.data());
    std::vector<uint64_t> addresses(2);
    member.control.gatherValues(mine, std::span(addresses));
    if (member.rank == 0) {
      member.mail.begin("seqparSendRecv", 1);
      if (gaveUp) member.mail.abandon();
      member.control.barrier();
      member.control.barrier();
      return;
    }
    readable = member.mail.readable(0);
    member.control.barrier();
    if (readable) error = thrownBy([&] { member.mail.read(0, addresses[0], data); });
    same = std::count(data.begin(), data.end(), std::byte{7}) == static_cast<std::ptrdiff_t>(bytes);
    member.control.barrier();
  });
  CHECK(errors == std::vector<std::string>(2));
  if (!readable) return;
  CHECK(same);
  CHECK(error.result() == (gaveUp ? seqparRemoteError : seqparSuccess));
  CHECK(std::string(error.what()) == (gaveUp ? "rank 0 had given up before rank 1 had read its data" : ""));
}

TEST_CASE("network peers detect a killed process while idle and while waiting") {
  const bool waits = GENERATE(false, true);
  CAPTURE(waits);
  MailboxOptions options = optionsFor(3);
  options.transport = seqparTransportNetwork;
  Meeting meeting(3);
  Meeting survivors(2);
  const auto processes = startProcesses(meeting, options, [&](Member& member) {
    member.waitsForOthers = false;
    member.control.barrier();
    if (member.rank == 2) {
      std::this_thread::sleep_for(50ms);
      kill(getpid(), SIGKILL);
    }
    if (waits) {
      member.mail.begin("waiting", 0);
      const Error error = thrownBy([&] {
        member.mail.receive(2, 8);
        member.mail.release(2);
      });
      if (error.result() != seqparRemoteError) return false;
    }
    while (member.health.ok()) std::this_thread::sleep_for(1ms);
    // A survivor that leaves is a lost connection too, so none leaves before both have noticed.
    MeetingAllgather(survivors, member.rank).barrier();
    return member.health.result() == seqparRemoteError && member.health.text().find("to rank 2") != std::string::npos;
  });
  CHECK(join(processes[0]) == 0);
  CHECK(join(processes[1]) == 0);
  CHECK(join(processes[2]) == -1);
}

TEST_CASE("a rank that leaves in order is no failure for the remaining ranks") {
  MailboxOptions options = optionsFor(3);
  options.transport = seqparTransportNetwork;
  Meeting meeting(3);
  std::vector<std::string> texts(3);
  std::vector<std::thread> threads;
  for (int rank = 0; rank < 3; ++rank) {
    threads.emplace_back([&, rank] {
      MeetingAllgather control(meeting, rank);
      Health health;
      MailboxDescription description;
      auto mail = makeMailbox(control, options, health, description);
      control.barrier();
      std::this_thread::sleep_for(rank * 100ms);
      mail.reset();
      texts[static_cast<size_t>(rank)] = health.text();
    });
  }
  for (std::thread& thread : threads) thread.join();
  REQUIRE(texts == std::vector<std::string>(3));
}

TEST_CASE("closing a mailbox with messages in flight does not hang") {
  MailboxOptions options = optionsFor(2);
  options.transport = GENERATE(seqparTransportAuto, seqparTransportNetwork);
  const bool broken = GENERATE(false, true);
  const auto errors = runThreads(options, [&](Member& member) {
    member.mail.begin("leaving", 0);
    for (int i = 0; i < 3; ++i) {
      member.mail.acquire(1 - member.rank, 100000);
      member.mail.commit();
    }
    if (member.mail.ready(1 - member.rank)) member.mail.receive(1 - member.rank, 100000);
    if (broken) member.health.fail(seqparRemoteError, "the test says so");
  });
  REQUIRE(errors == std::vector<std::string>(2));
}

TEST_CASE("many processes on two cores exchange messages") {
  for (const int transport : {seqparTransportAuto, seqparTransportNetwork}) {
    MailboxOptions options = optionsFor(8);
    options.transport = transport;
    Meeting meeting(8);
    const auto processes = startProcesses(meeting, options, [&](Member& member) {
      pinTo(member.rank % 2);
      const int right = (member.rank + 1) % 8, left = (member.rank + 7) % 8;
      for (int step = 0; step < 200; ++step) {
        member.mail.begin("ring", 0);
        std::memset(member.mail.acquire(right, 3000).data, step & 127, 3000);
        member.mail.commit();
        const std::byte* data = member.mail.receive(left, 3000);
        if (data[0] != std::byte(step & 127) || data[2999] != std::byte(step & 127)) return false;
        member.mail.release(left);
        member.mail.end();
      }
      return true;
    });
    for (const pid_t process : processes) CHECK(join(process) == 0);
  }
}

TEST_CASE("a setup's error is of the rank that caused it, not of a rank that misses another") {
  const auto errors = runThreads(optionsFor(4), [](Member& member) {
    together(member.control, [&] {
      if (member.rank == 0) fail(seqparRemoteError, "cannot connect to 192.0.2.1");
      if (member.rank == 2) fail(seqparSystemError, "no memory");
      if (member.rank == 3) fail(seqparInvalidUsage, "own");
    });
  });
  CHECK(errors == std::vector<std::string>{"rank 2: no memory", "rank 2: no memory", "no memory", "own"});
  const auto missing = runThreads(optionsFor(3), [](Member& member) {
    together(member.control, [&] {
      if (member.rank > 0) fail(seqparRemoteError, "rank ", member.rank - 1, " does not answer");
    });
  });
  CHECK(missing ==
        std::vector<std::string>{"rank 1: rank 0 does not answer", "rank 0 does not answer", "rank 1 does not answer"});
}

TEST_CASE("UCX's errors say how much memory and how many descriptors are left") {
  if (!findUcx().problem.empty()) return;
  using Catch::Contains;
  CHECK_THROWS_WITH(checkUcx(UCS_ERR_NO_MEMORY, "ucp_worker_create"),
                    Contains("ucp_worker_create: Out of memory; /dev/shm has ") && Contains(" bytes left"));
  CHECK_THROWS_WITH(checkUcx(UCS_ERR_IO_ERROR, "ucp_worker_create"), !Contains("/dev/shm"));
  rlimit before{};
  REQUIRE(getrlimit(RLIMIT_NOFILE, &before) == 0);
  rlimit few = before;
  few.rlim_cur = 200;
  REQUIRE(setrlimit(RLIMIT_NOFILE, &few) == 0);
  CHECK_THROWS_WITH(checkUcx(UCS_ERR_IO_ERROR, "ucp_worker_create"), Contains("more descriptors (ulimit -n is 200)"));
  CHECK_THROWS_WITH(checkUcx(UCS_ERR_NO_RESOURCE, "ucp_worker_create"), Contains("more descriptors"));
  REQUIRE(setrlimit(RLIMIT_NOFILE, &before) == 0);
  CHECK_NOTHROW(checkUcx(UCS_OK, "ucp_worker_create"));
}
