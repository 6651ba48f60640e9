// A rank with several threads scans next to other work; a rank with one thread scans between its passes. Chunks are not
// divided among threads here, so both compute equal bits.
#include <random>

#include "attn/exec/host.h"
#include "attn/plan/plan.h"
#include "attn/plan/registry.h"
#include "rank_threads.h"
#include "unit/seed.h"

namespace {

using namespace seqpar::attn;  // NOLINT(google-build-using-namespace)
using seqpar::attn::test::RankThreads;
using Numbers = std::vector<float>;

constexpr int64_t kTokens = 100, kHeads = 2, kDim = 8;
constexpr size_t kElements = kTokens * kHeads * kDim, kStates = kHeads * kDim * kDim;

/// One rank's tensors: inputs by `seed`, results NaN.
struct Arrays {
  explicit Arrays(uint64_t seed) {
    std::mt19937_64 random(seed);
    std::uniform_real_distribution<float> uniform(-1, 1);
    for (Numbers* const numbers : {&q, &k, &v, &gate, &dOut}) {
      for (float& x : *numbers) x = uniform(random);
    }
    for (float& x : gate) x = -std::abs(x);
  }
  std::vector<Numbers> results() const { return {out, saved, final, dq, dk, dv, dGate}; }

  Numbers q = Numbers(kElements), k = q, v = q, gate = q, dOut = q;
  Numbers out = Numbers(kElements, NAN), dq = out, dk = out, dv = out, dGate = out;
  Numbers saved = Numbers(kStates, NAN), final = saved;
};

seqparAttnTensor_t view(Numbers& numbers) {
  return {numbers.data(), 0, 0, 0};
}

/// A forward and a backward pass of one rank with `threads` threads.
void run(int algorithm, seqparComm_t comm, int threads, Arrays& a) {
  seqparAttnDesc_t desc = SEQPAR_ATTN_DESC_INITIALIZER;
  desc.family = seqparAttnGla;
  desc.algorithm = algorithm;
  int ranks = 0;
  seqparCommCount(comm, &ranks);
  desc.tokens = ranks * kTokens;
  desc.heads = kHeads;
  desc.headDim = kDim;
  const AlgorithmRow& row = *findAlgorithm(algorithm, false);
  const Problem problem = shardedFor(readProblem("test", &desc, comm), row);
  HostExec exec(threads, comm);
  const auto made = row.make(problem, exec);
  Arena counting;
  made->carve(counting);
  const auto memory = exec.allocate(counting.used(), "a test");
  Arena arena(memory.get());
  made->carve(arena);
  made->open();

  seqparAttnForwardArgs_t forward = SEQPAR_ATTN_FORWARD_INITIALIZER;
  forward.q = view(a.q), forward.k = view(a.k), forward.v = view(a.v), forward.gates[0] = view(a.gate);
  forward.out = view(a.out), forward.saved = a.saved.data(), forward.final = a.final.data();
  seqparAttnBackwardArgs_t backward = SEQPAR_ATTN_BACKWARD_INITIALIZER;
  backward.q = forward.q, backward.k = forward.k, backward.v = forward.v, backward.gates[0] = forward.gates[0];
  backward.saved = a.saved.data(), backward.dOut = view(a.dOut);
  backward.dq = view(a.dq), backward.dk = view(a.dk), backward.dv = view(a.dv), backward.dGates[0] = view(a.dGate);
  exec.begin(nullptr);
  made->forward(forward);
  made->backward(backward);
  exec.finish();
  exec.drain();
}

TEST_CASE("a scan next to other work gives the bits of a scan between the passes") {
  const int algorithm = GENERATE(seqparAttnZeco, seqparAttnLasp2);
  const int count = GENERATE(2, 3);
  const seqpar::test::Seed seed;
  const RankThreads ranks(count);
  CAPTURE(algorithm, count);
  std::vector<std::vector<Numbers>> results[2];
  for (const int threads : {1, 2}) {
    auto& ofRanks = results[threads - 1];
    ofRanks.resize(static_cast<size_t>(count));
    ranks.each([&](int rank) {
      Arrays arrays(seed + static_cast<uint64_t>(rank));
      run(algorithm, ranks[rank], threads, arrays);
      ofRanks[static_cast<size_t>(rank)] = arrays.results();
      return std::string();
    });
  }
  for (int rank = 0; rank < count; ++rank) {
    const auto &between = results[0][static_cast<size_t>(rank)], &beside = results[1][static_cast<size_t>(rank)];
    for (size_t i = 0; i < between.size(); ++i) {
      CAPTURE(rank, i);
      REQUIRE(std::none_of(between[i].begin(), between[i].end(), [](float x) { return std::isnan(x); }));
      REQUIRE(between[i] == beside[i]);
    }
  }
}

}  // namespace
