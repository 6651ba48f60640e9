// Rings that copy engines move, on devices and streams that the CPU plays.
#include <algorithm>
#include <barrier>
#include <catch2/catch.hpp>
#include <chrono>
#include <cstdlib>
#include <cstring>
#include <deque>
#include <optional>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "bootstrap/bootstrap.h"
#include "common/patience.h"
#include "common/ranks.h"
#include "cpu_cuda.h"
#include "ring/ring.h"

using namespace seqpar;
using namespace seqpar::test;

namespace {

constexpr char kEngine[] = "copy engines, no SM";
constexpr std::size_t kLarge = std::size_t{1} << 20;
constexpr std::size_t kMostScratch = 2 * kLarge;

struct Form {
  std::vector<int> order;  ///< ranks by place
  int inner = 0;
  bool changed = false, keepHome = false, reverse = false;
  std::vector<bool> givesHome;  ///< by rank
  int givesScratch = -1;        ///< the rank that does; -1: none
  int steps = 0;
  int tensors = 1;
  std::vector<std::size_t> bytes;  ///< [place][tensor]
};

Form plainForm(int ranks, int steps) {
  Form form;
  for (int rank = 0; rank < ranks; ++rank) form.order.push_back(rank);
  form.givesHome.assign(static_cast<std::size_t>(ranks), false);
  form.steps = steps;
  form.bytes.assign(static_cast<std::size_t>(ranks), kLarge);
  return form;
}

Form randomForm(int ranks, std::mt19937_64& random) {
  Form form = plainForm(ranks, random() % 2 == 0 ? 0 : ranks);
  std::shuffle(form.order.begin(), form.order.end(), random);
  do {
    form.inner = 1 + static_cast<int>(random() % static_cast<std::uint64_t>(ranks));
  } while (ranks % form.inner != 0);
  form.changed = random() % 2 == 0;
  form.keepHome = random() % 2 == 0;
  form.reverse = random() % 2 == 0;
  for (std::size_t rank = 0; rank < form.givesHome.size(); ++rank) {
    form.givesHome[rank] = random() % 2 == 0;
  }
  form.tensors = 1 + static_cast<int>(random() % 3);
  constexpr std::size_t kLengths[] = {0, 1, 513, 70001, kLarge, kLarge + 4099};
  form.bytes.clear();
  for (int i = 0; i < ranks * form.tensors; ++i) form.bytes.push_back(kLengths[random() % std::size(kLengths)]);
  form.bytes[random() % form.bytes.size()] = kLarge + random() % 5;  // some tensor must be large
  return form;
}

std::ostream& operator<<(std::ostream& out, const Form& form) {
  out << "ring of";
  for (const int rank : form.order) out << ' ' << rank;
  return out << ", inner " << form.inner << (form.changed ? ", changed" : "") << (form.keepHome ? ", home kept" : "")
             << (form.reverse ? ", reverse" : "") << ", " << form.steps << " steps, " << form.tensors << " tensors";
}

/// One rank of a communicator on a device.
struct Rank {
  std::shared_ptr<Communicator> comm;
  int rank, ranks;
  cudaStream_t stream = nullptr;

  Rank(Allgather& meeting, std::chrono::milliseconds timeout, int device)
      : rank(meeting.rank()), ranks(meeting.size()) {
    CommConfig config;
    config.device = device;
    config.timeout = timeout;
    config.hostId = "here";
    cudaSetDevice(device);
    cudaStreamCreateWithPriority(&stream, cudaStreamNonBlocking, 0);
    comm = std::make_shared<Communicator>(meeting, config);
  }
  Rank(const Rank&) = delete;
  Rank& operator=(const Rank&) = delete;
  ~Rank() { cudaStreamDestroy(stream); }

  void synchronize() const { cudaStreamSynchronize(stream); }
};

class OpenRing {
 public:
  OpenRing(const Rank& self, const Form& form, std::uint64_t seed) : self_(self), form_(form), seed_(seed) {
    const int places = self.ranks;
    RingSpec spec;
    spec.place = static_cast<int>(std::find(form.order.begin(), form.order.end(), self.rank) - form.order.begin());
    spec.ranks = form.order;
    spec.form = {places,        form.inner == 0 ? places : form.inner,    form.reverse, !form.changed,
                 form.keepHome, form.steps == 0 ? places - 1 : form.steps};
    for (int place = 0; place < places; ++place) {
      spec.bytes.emplace_back();
      for (int i = 0; i < form.tensors; ++i) spec.bytes.back().push_back(bytesOf(place, i));
    }
    RingBuffers buffers;
    for (int i = 0; i < form.tensors; ++i) home_.emplace_back(bytesOf(spec.place, i) + kLarge);
    if (form.givesHome[static_cast<std::size_t>(self.rank)]) {
      for (auto& tensor : home_) buffers.home.push_back(reinterpret_cast<std::byte*>(tensor.data()));
    }
    if (form.givesScratch == self.rank) {
      const int sets = ringSchedule(spec.form, spec.place).sets;
      for (int set = 1; set < sets; ++set) {
        buffers.scratch.emplace_back();
        for (int i = 0; i < form.tensors; ++i) {
          scratch_.emplace_back(kMostScratch);
          buffers.scratch.back().push_back(reinterpret_cast<std::byte*>(scratch_.back().data()));
        }
      }
    }
    ring_ = std::make_unique<Ring>(self.comm, std::move(spec), std::move(buffers));
  }

  std::string engine() const { return ring_->engine(); }
  std::string reason() const { return ring_->reason(); }
  void post() { ring_->post({nullptr, self_.stream}); }
  void wait() { ring_->wait({nullptr, self_.stream}); }
  void reset() { ring_->reset(); }
  int wrong() const { return *wrong_; }
  /// Whether the current tensor is in the buffer of the round's beginning.
  bool isHome() const {
    const std::byte* const last = ring_->current(0);
    ring_->reset();
    return last == ring_->current(0);
  }

  void fillHome(int round) {
    eachTensor([&](int tensor, unsigned char* at, std::size_t bytes) {
      const auto value = valueOf(round, self_.rank, tensor);
      onCpuStream(self_.stream, [=] { std::memset(at, value, bytes); });
    });
  }

  int steps() const { return form_.steps == 0 ? self_.ranks - 1 : form_.steps; }

  /// A round that is left after `steps` steps.
  void round(int number, int steps) {
    reset();
    fillHome(number);
    for (int step = 0; step <= steps; ++step) {
      if (form_.changed) change();
      if (step < steps) post();
      check(number, form_.changed ? step + 1 : 0);
      if (step < steps) wait();
    }
  }

  /// Counts tensors that are not what they must be, on the stream.
  void check(int round, int added) {
    const int place = ring_->origin();
    const int source = form_.order[static_cast<std::size_t>(place)];
    eachTensor([&](int tensor, const unsigned char* at, std::size_t bytes) {
      expect(bytes == bytesOf(place, tensor), "a tensor has ", bytes, " bytes");
      const auto value = static_cast<unsigned char>(valueOf(round, source, tensor) + added);
      onCpuStream(self_.stream, [=, wrong = wrong_] {
        *wrong += std::all_of(at, at + bytes, [=](auto byte) { return byte == value; }) ? 0 : 1;
      });
    });
  }

 private:
  void change() {
    eachTensor([&](int, unsigned char* at, std::size_t bytes) {
      onCpuStream(self_.stream, [=] {
        for (std::size_t i = 0; i < bytes; ++i) ++at[i];
      });
    });
  }
  unsigned char valueOf(int round, int rank, int tensor) const {
    return static_cast<unsigned char>(seed_ + static_cast<unsigned>(round * 31 + rank * 7 + tensor * 3));
  }
  std::size_t bytesOf(int place, int tensor) const {
    return form_.bytes[static_cast<std::size_t>(place * form_.tensors + tensor)];
  }
  template <typename Body>
  void eachTensor(Body body) {
    for (int tensor = 0; tensor < form_.tensors; ++tensor) {
      const auto number = static_cast<std::size_t>(tensor);
      const std::size_t bytes = ring_->currentBytes(number);
      if (bytes > 0) body(tensor, reinterpret_cast<unsigned char*>(ring_->current(number)), bytes);
    }
  }

  const Rank& self_;
  Form form_;
  std::uint64_t seed_;
  std::vector<std::vector<unsigned char>> home_;
  std::deque<std::vector<unsigned char>> scratch_;
  std::unique_ptr<Ring> ring_;
  std::shared_ptr<int> wrong_ = std::make_shared<int>(0);  ///< belongs to the stream
};

/// On `gpus` devices; 0: each on its own.
std::string onRanks(int ranks, std::chrono::milliseconds timeout, const std::function<void(Rank&)>& body,
                    int gpus = 0) {
  setenv("SEQPAR_RING_ENGINE", "copy", 1);
  const auto meeting = makeLocalGroup(ranks, kNoTimeout);
  // After a failure copies into a rank's window may be under way until the others have noticed.
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
  const auto seed = static_cast<std::uint64_t>(std::random_device{}());
  CAPTURE(seed);
  const bool oneAfterTheOther = GENERATE(false, true);
  CAPTURE(oneAfterTheOther);
  cpuCuda() = {oneAfterTheOther, 300};
  for (const int ranks : {2, 3, 4, 6}) runForms(ranks, seed, 12);
}

TEST_CASE("copy rings run on when their stamps are used up") {
  cpuCuda() = {};
  constexpr int kRounds = 4096 + 600;
  const auto errors = onRanks(2, kNoTimeout, [&](Rank& self) {
    OpenRing ring(self, plainForm(2, 1), 5);
    for (int round = 0; round < kRounds; ++round) {
      ring.reset();
      const bool looks = round % 500 == 0 || round > 4000;
      if (looks) ring.fillHome(round);
      ring.post();
      ring.wait();
      if (looks) ring.check(round, 0);
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

TEST_CASE("copy rings end when a rank gives up in the middle") {
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

TEST_CASE("the caller's own tensors are read, and never written") {
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

TEST_CASE("a ring's engine, and why it is that") {
  cpuCuda() = {};
  const std::string kernels = "kernels on a stream of the ring";
  const auto errors = onRanks(3, kNoTimeout, [&](Rank& self) {
    const auto check = [&](const char* what, const Form& form, const std::string& engine, const std::string& reason) {
      const OpenRing ring(self, form, 1);
      expect(ring.engine() == engine, what, ": the engine is ", ring.engine());
      expect(ring.reason() == reason, what, ": the reason is ", ring.reason());
    };
    // Of one process, whose environment it is.
    const auto environment = [&](const char* wish) {
      std::vector<int> all(3);
      self.comm->control().gatherValues(self.rank, std::span(all));
      if (self.rank == 0) setenv("SEQPAR_RING_ENGINE", wish, 1);
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
    check("memory for arrivals", scratch, kernels, "rank 1 gave memory for what arrives");
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

TEST_CASE("a ring of ranks that share a GPU has no stream but the caller's") {
  cpuCuda() = {};
  const auto onTwoGpus = [&](Rank& self) {
    const OpenRing ring(self, plainForm(3, 0), 1);
    expect(ring.engine() == "kernels on the caller's stream", "the engine is ", ring.engine());
    expect(ring.reason() == "ranks 0 and 2 share a GPU and a process", "the reason is ", ring.reason());
    self.comm->close();
  };
  CHECK(onRanks(3, kNoTimeout, onTwoGpus, 2) == "");
}
