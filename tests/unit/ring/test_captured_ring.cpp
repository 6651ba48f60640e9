// Ring rounds on a GPU captured into a graph, on the CPU's CUDA.
#include <catch2/catch.hpp>

#include <memory>
#include <string>

#include "bootstrap/bootstrap.h"
#include "common/ranks.h"
#include "cpu_cuda.h"
#include "ring/graph_memory.h"
#include "ring/ring.h"

using namespace seqpar;
using namespace seqpar::test;

namespace {

constexpr std::size_t kBytes = 100000;

/// A ring of one rank that sends itself its tensor again and again: nothing that needs a kernel.
struct OneRank {
  std::shared_ptr<Communicator> comm;
  cudaStream_t stream = nullptr, other = nullptr;
  std::unique_ptr<Ring> ring;

  OneRank() {
    CommConfig config;
    config.device = 0;
    config.hostId = "here";
    cudaSetDevice(0);
    cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking);
    cudaStreamCreateWithFlags(&other, cudaStreamNonBlocking);
    comm = std::make_shared<Communicator>(*makeLocalGroup(1, std::chrono::minutes(1)).front(), config);
    RingSpec spec;
    spec.form = {1, 1, false, true, false, 3};
    spec.ranks = {0};
    spec.bytes = {{kBytes}};
    ring = std::make_unique<Ring>(comm, spec, RingBuffers());
  }
  OneRank(const OneRank&) = delete;
  OneRank& operator=(const OneRank&) = delete;
  ~OneRank() {
    capture(nullptr, 0);
    ring.reset();
    comm->close();
    comm.reset();
    cudaStreamDestroy(stream);
    cudaStreamDestroy(other);
  }

  static void capture(cudaStream_t of, unsigned long long number) {
    cpuCuda().captured = of;
    cpuCuda().capture = number;
  }
  void post() const { ring->post({nullptr, stream}); }
  void wait() const { ring->wait({nullptr, stream}); }
  void step() const {
    post();
    wait();
  }
};

template <typename Body>
std::string refusal(Body body) {
  try {
    body();
  } catch (const Error& error) {
    return error.result() == seqparInvalidUsage ? error.what() : std::string("another result: ") + error.what();
  }
  return "accepted";
}

const std::string kWhole = "; expected a round that is captured as a whole, from its first transfer on, or not at all";

}  // namespace

TEST_CASE("A ring round is captured completely or refused") {
  const OneRank self;
  const auto post = [&] { self.post(); };
  const auto wait = [&] { self.wait(); };

  self.step();
  OneRank::capture(self.stream, 7);
  const auto startedOutside = "the stream is being captured, but the round was started outside the capture" + kWhole;
  CHECK(refusal(post) == startedOutside);
  OneRank::capture(nullptr, 0);
  self.post();
  OneRank::capture(self.stream, 7);
  CHECK(refusal(wait) == startedOutside);
  OneRank::capture(nullptr, 0);
  self.wait();

  self.ring->reset();
  OneRank::capture(self.stream, 8);
  self.step();
  self.post();
  OneRank::capture(nullptr, 0);
  CHECK(refusal(wait) == "the round was started in a capture, but this call is outside it" + kWhole);
  OneRank::capture(self.stream, 9);
  CHECK(refusal(wait) == "the round was started in a capture, but this call is in another one" + kWhole);
  OneRank::capture(self.stream, 8);
  self.wait();
  OneRank::capture(nullptr, 0);
  CHECK(refusal(post) == "the round was started in a capture, but this call is outside it" + kWhole);
  CHECK(self.ring->step() == 2);

  // A capture that ended before the wait is no reason to lose the ring.
  self.ring->reset();
  OneRank::capture(self.stream, 10);
  self.post();
  OneRank::capture(nullptr, 0);
  self.ring->reset();
  self.step();
  CHECK(self.ring->step() == 1);
  endCpuGraphs();
  freeOfEndedGraphs();
}

TEST_CASE("A ring keeps its memory while a captured graph uses it") {
  int before = 0;
  {
    OneRank self;
    const std::byte* const home = self.ring->current(0);
    OneRank::capture(self.stream, 20);
    self.step();
    self.step();
    OneRank::capture(nullptr, 0);
    before = cpuAllocations();
    self.ring.reset();
    CHECK(cpuAllocations() == before);
    CHECK(isCpuAllocation(home));
    CHECK(endCpuGraphs() == 1);         // once a capture, however many transfers it has
    CHECK(cpuAllocations() == before);  // the thread on which graphs end must not free anything
    freeOfEndedGraphs();
    CHECK(cpuAllocations() < before);
    CHECK(!isCpuAllocation(home));
  }
}
