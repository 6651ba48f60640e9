// A forward and a backward pass of one rank by its operator, on a given number of threads.
#pragma once

#include <cmath>
#include <random>
#include <vector>

#include "attn/exec/host.h"
#include "attn/linear/families/family.h"
#include "attn/plan/plan.h"
#include "attn/plan/registry.h"
#include "rank_threads.h"

namespace seqpar::attn::test {

using Numbers = std::vector<float>;

struct RankSizes {
  int family = seqparAttnGla;
  int64_t tokens = 100, heads = 2, dim = 8;  ///< tokens of a rank
};

/// One rank's tensors: inputs by `seed`, results NaN. Gates are negative log-decays and positive betas.
struct RankArrays {
  RankArrays(const RankSizes& of, uint64_t seed) : sizes(of) {
    std::mt19937_64 random(seed);
    std::uniform_real_distribution<float> uniform(-1, 1);
    for (Numbers* const numbers : {&q, &k, &v, &gates[0], &gates[1], &dOut}) {
      for (float& x : *numbers) x = uniform(random);
    }
    const linear::Family& family = *linear::findFamily(sizes.family);
    for (size_t i = 0; i < 2; ++i) {
      const bool decays = i == family.find(linear::kLogDecay);
      for (float& x : gates[i]) x = decays ? -std::abs(x) : std::abs(x);
    }
  }
  bool gateIsPerHead(size_t gate) const { return linear::findFamily(sizes.family)->perHead(gate); }
  /// Elements of a gate per token.
  size_t gateValues(size_t gate) const {
    const bool channels = gate == linear::findFamily(sizes.family)->find(linear::kLogDecay) &&
                          linear::decayWidth(*linear::findFamily(sizes.family), sizes.dim) > 1;
    return static_cast<size_t>(sizes.tokens * sizes.heads * (channels ? sizes.dim : 1));
  }
  std::vector<Numbers> results() const { return {out, final, saved, dq, dk, dv, dGates[0]}; }

  RankSizes sizes;
  size_t elements = static_cast<size_t>(sizes.tokens * sizes.heads * sizes.dim);
  size_t states = static_cast<size_t>(sizes.heads * sizes.dim * sizes.dim);
  Numbers q = Numbers(elements), k = q, v = q, dOut = q, gates[2] = {q, q};
  Numbers out = Numbers(elements, NAN), dq = out, dk = out, dv = out, dGates[2] = {out, out};
  Numbers saved = Numbers(states, NAN), final = saved;
};

inline seqparAttnTensor_t view(Numbers& numbers) {
  return {numbers.data(), 0, 0, 0};
}

/// A forward and a backward pass. `comm` may be null: one rank.
inline void runRank(int algorithm, seqparComm_t comm, int threads, RankArrays& a) {
  seqparAttnDesc_t desc = SEQPAR_ATTN_DESC_INITIALIZER;
  desc.family = a.sizes.family;
  desc.algorithm = algorithm;
  int ranks = 1;
  if (comm != nullptr) seqparCommCount(comm, &ranks);
  desc.tokens = ranks * a.sizes.tokens;
  desc.heads = a.sizes.heads;
  desc.headDim = a.sizes.dim;
  const AlgorithmRow& row = *findAlgorithm(algorithm, false);
  Problem problem = shardedFor(readProblem("test", &desc, comm), row);
  problem.info.mostThreads = threads;
  HostExec exec(threads, comm);
  const auto made = row.make(problem, exec);
  Arena counting;
  made->carve(counting);
  const auto memory = exec.allocate(counting.used(), "a test");
  Arena arena(memory.get());
  made->carve(arena);
  made->open();

  seqparAttnForwardArgs_t forward = SEQPAR_ATTN_FORWARD_INITIALIZER;
  forward.q = view(a.q), forward.k = view(a.k), forward.v = view(a.v);
  forward.out = view(a.out), forward.saved = a.saved.data(), forward.final = a.final.data();
  seqparAttnBackwardArgs_t backward = SEQPAR_ATTN_BACKWARD_INITIALIZER;
  for (size_t i = 0; i < linear::findFamily(a.sizes.family)->gateCount; ++i) {
    forward.gates[i] = backward.gates[i] = view(a.gates[i]);
    backward.dGates[i] = view(a.dGates[i]);
  }
  backward.q = forward.q, backward.k = forward.k, backward.v = forward.v;
  backward.saved = a.saved.data(), backward.dOut = view(a.dOut);
  backward.dq = view(a.dq), backward.dk = view(a.dk), backward.dv = view(a.dv);
  exec.begin(nullptr);
  made->forward(forward);
  made->backward(backward);
  exec.finish();
  exec.drain();
}

}  // namespace seqpar::attn::test
