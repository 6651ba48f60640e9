// Rings that copy engines move, on devices and streams that the CPU plays.
#include <barrier>
#include <catch2/catch.hpp>
#include <cstdlib>
#include <optional>
#include <thread>

#include "copy_ring_case.h"
#include "device/cuda.h"
#include "unit/seed.h"

using namespace seqpar;
using namespace seqpar::test;

namespace {

/// On `gpus` devices; 0: one device per rank.
std::string onRanks(int ranks, std::chrono::milliseconds timeout, const std::function<void(Rank&)>& body,
                    int gpus = 0) {
  setenv("SEQPAR_RING_ENGINE", "copy", 1);
  const auto meeting = makeLocalGroup(ranks, kNoTimeout);
  // After a failure, copies into a rank's window may be in flight until the other ranks have noticed it.
  std::barrier<> end(ranks);
  return onThreads(ranks, [&](int rank) {
    std::optional<Rank> self;
    try {
      self.emplace(*meeting[static_cast<std::size_t>(rank)], timeout, gpus == 0 ? rank : rank % gpus);
      body(*self);
    } catch (...) {
      if (self) self->comm->abort();
      end.arrive_and_wait();
      throw;
    }
    end.arrive_and_wait();
  });
}

void runForms(int ranks, std::uint64_t seed, int forms) {
  const auto errors = onRanks(ranks, kNoTimeout, [&](Rank& self) {
    std::mt19937_64 random(seed);  // all ranks draw the same
    for (int i = 0; i < forms; ++i) {
      const Form form = randomForm(ranks, random);
      OpenRing ring(self, form, seed);
      expect(ring.engine() == kEngine, form, ": the engine is ", ring.engine());
      const int rounds = 3 + static_cast<int>(random() % 4);
      for (int round = 0; round < rounds; ++round) {
        const bool left = random() % 2 == 0;
        ring.round(round,
                   left ? static_cast<int>(random() % static_cast<std::uint64_t>(ring.steps() + 1)) : ring.steps());
      }
      self.synchronize();
      self.comm->health().check();
      expect(ring.wrong() == 0, form, ": ", ring.wrong(), " tensors are wrong");
    }
    self.comm->close();
  });
  CHECK(errors == "");
}

/// Posts until the communicator fails, closes the ring and returns the failure's text.
std::string runUntilFailure(const Rank& self, int ranks) {
  OpenRing ring(self, plainForm(ranks, 0), 1);
  try {
    for (;;) {
      ring.reset();
      for (int step = 1; step < ranks; ++step) {
        ring.post();
        ring.wait();
      }
      self.synchronize();
      self.comm->health().check();
    }
  } catch (const seqpar::Error& error) {
    expect(error.result() == seqparRemoteError, error.what());
  }
  self.synchronize();
  return self.comm->health().text();
}

}  // namespace

TEST_CASE("copy rings carry every form of ring") {
  const seqpar::test::Seed seed;
  const bool oneAfterTheOther = GENERATE(false, true);
  CAPTURE(oneAfterTheOther);
  cpuCuda() = {oneAfterTheOther, 300};
  for (const int ranks : {2, 3, 4, 6}) runForms(ranks, seed, 12);
}

TEST_CASE("copy rings continue after their stamps wrap") {
  cpuCuda() = {};
  constexpr int kRounds = 4096 + 600;
  const auto errors = onRanks(2, kNoTimeout, [&](Rank& self) {
    OpenRing ring(self, plainForm(2, 1), 5);
    for (int round = 0; round < kRounds; ++round) {
      ring.reset();
      const bool polls = round % 500 == 0 || round > 4000;
      if (polls) ring.fillHome(round);
      ring.post();
      ring.wait();
      if (polls) ring.check(round, 0);
    }
    self.synchronize();
    self.comm->health().check();
    expect(ring.wrong() == 0, ring.wrong(), " tensors are wrong");
  });
  CHECK(errors == "");
}

TEST_CASE("a rank that never posts is named and all copy rings end") {
  cpuCuda() = {GENERATE(false, true), 100};
  constexpr int kRanks = 3, kSilent = 2;  // both others wait for it in their first step
  const auto wrong = withGrowingTimeout(1000, [&](int timeoutMs) {
    return onRanks(kRanks, std::chrono::milliseconds(timeoutMs), [&](Rank& self) {
      if (self.rank != kSilent) {
        const auto text = runUntilFailure(self, kRanks);
        expect(text.find("for rank " + std::to_string(kSilent)) != std::string::npos, text);
        return;
      }
      const OpenRing ring(self, plainForm(kRanks, 0), 1);
      while (self.comm->health().ok()) std::this_thread::sleep_for(std::chrono::milliseconds(5));
      expect(self.comm->health().result() == seqparRemoteError, "it was not told");
    });
  });
  CHECK(wrong == "");
}

TEST_CASE("copy rings end when a rank times out in the middle") {
  cpuCuda() = {GENERATE(false, true), 100};
  constexpr int kRanks = 5;
  const auto errors = onRanks(kRanks, kNoTimeout, [&](Rank& self) {
    if (self.rank != 3) {
      runUntilFailure(self, kRanks);
      return;
    }
    OpenRing ring(self, plainForm(kRanks, 0), 1);
    for (int round = 0; round < 5; ++round) ring.round(round, ring.steps());
    ring.reset();
    ring.post();
    self.comm->abort();
  });
  CHECK(errors == "");
}

TEST_CASE("the caller's input tensors are never written") {
  cpuCuda() = {false, 100};
  const auto errors = onRanks(2, kNoTimeout, [&](Rank& self) {
    Form form = plainForm(2, 2);  // the second step would bring tensors home
    form.givesHome[0] = true;
    OpenRing ring(self, form, 3);
    ring.round(0, 2);
    ring.round(1, 2);
    self.synchronize();
    expect(ring.engine() == kEngine, "the engine is ", ring.engine());
    expect(ring.wrong() == 0, ring.wrong(), " tensors are wrong");
    expect(!ring.isHome(), "the last tensors arrived in the first buffers");
    self.comm->close();
  });
  CHECK(errors == "");
}

TEST_CASE("a ring reports its engine and the reason") {
  cpuCuda() = {};
  const std::string kernels = "kernels on a stream of the ring";
  const auto errors = onRanks(3, kNoTimeout, [&](Rank& self) {
    const auto check = [&](const char* what, const Form& form, const std::string& engine, const std::string& reason) {
      const OpenRing ring(self, form, 1);
      expect(ring.engine() == engine, what, ": the engine is ", ring.engine());
      expect(ring.reason() == reason, what, ": the reason is ", ring.reason());
    };
    // All ranks are in this process and share its environment.
    const auto environment = [&](const char* request) {
      std::vector<int> all(3);
      self.comm->control().gatherValues(self.rank, std::span(all));
      if (self.rank == 0) setenv("SEQPAR_RING_ENGINE", request, 1);
      self.comm->control().gatherValues(self.rank, std::span(all));
    };
    Form small = plainForm(3, 0);
    small.bytes.assign(3, 2 * kLarge - 1);
    Form large = small;
    large.bytes[1] = 2 * kLarge;
    Form pair = small;
    pair.tensors = 2;
    pair.bytes = {kLarge / 4, 2 * kLarge, kLarge / 4, kLarge, 0, 0};  // the largest of each count
    Form few = pair;
    few.bytes[1] = 2 * kLarge - 1;
    Form scratch = large;
    scratch.givesScratch = 1;
    check("copies asked for", small, kEngine, "SEQPAR_RING_ENGINE is copy");
    check("memory for arrivals", scratch, kernels, "rank 1 passed scratch memory");
    environment("auto");
    check("small tensors", small, kernels, "a step has less than 2048 KiB");
    check("large tensors", large, kEngine, "a step has at least 2048 KiB");
    check("two small tensors", few, kernels, "a step has less than 2304 KiB");
    check("two tensors", pair, kEngine, "a step has at least 2304 KiB");
    environment("kernels");
    check("kernels asked for", large, kernels, "SEQPAR_RING_ENGINE is kernels on rank 0");
    self.comm->close();
  });
  CHECK(errors == "");
}

TEST_CASE("a ring of ranks that share a GPU uses only the caller's stream") {
  cpuCuda() = {};
  const auto onTwoGpus = [&](Rank& self) {
    const OpenRing ring(self, plainForm(3, 0), 1);
    expect(ring.engine() == "kernels on the caller's stream", "the engine is ", ring.engine());
    expect(ring.reason() == "ranks 0 and 2 share a GPU and a process", "the reason is ", ring.reason());
    self.comm->close();
  };
  CHECK(onRanks(3, kNoTimeout, onTwoGpus, 2) == "");
}

TEST_CASE("a failed device allocation is an error with size, purpose and free memory") {
  const std::size_t bytes = std::size_t{1} << 60;
  const auto said = [](const auto& allocate) -> std::string {
    try {
      allocate();
    } catch (const Error& error) {
      return error.result() == seqparSystemError ? error.what() : "another result";
    }
    return "no error";
  };
  const std::string text = "no memory: 1152921504606846976 bytes for a test; ";
  const std::string device = "an error, GPU 0 has 5 of 10 bytes free";
  CHECK(said([&] { allocateDevice(bytes, "a test"); }) == text + "cudaMalloc: " + device);
  CHECK(said([&] { allocateMapped(bytes, "a test"); }) == text + "cudaHostAlloc: " + device);
}
