// attn_processes [ROUNDS], under mpirun: softmax attention by every algorithm, with ranks as processes. Each rank
// compares its tokens with the definition.
#include <cstdlib>

#include "attn/plan/registry.h"
#include "common/run_processes.h"
#include "unit/attn/softmax_features.h"
#include "unit/attn/softmax_run.h"

using namespace seqpar::attn::test;  // NOLINT(google-build-using-namespace)

namespace {

SoftmaxSpec drawSpec(std::mt19937_64& random, int ranks) {
  const auto draw = [&](int64_t least, int64_t most) {
    return least + static_cast<int64_t>(random() % static_cast<uint64_t>(most - least + 1));
  };
  SoftmaxSpec s;
  s.tokens = draw(0, 20 * ranks);
  s.batch = draw(1, 2);
  s.kvHeads = draw(1, 3);
  s.heads = s.kvHeads * draw(1, 2);
  s.headDim = s.valueDim = 8;
  s.mask = static_cast<int>(draw(0, 1));
  s.sinks = draw(0, 1) == 1;
  if (draw(0, 2) == 0) s.windowLeft = draw(0, s.tokens);
  if (draw(0, 2) == 0) s.type = seqparBfloat16;
  if (s.batch == 1 && draw(0, 1) == 0) {
    s.bounds = {0, draw(0, s.tokens), draw(0, s.tokens), s.tokens};
    std::sort(s.bounds.begin(), s.bounds.end());
  }
  return s;
}

void suite(seqparComm_t comm, uint64_t seed, int rounds) {
  int rank = 0, ranks = 0;
  seqparCommUserRank(comm, &rank);
  seqparCommCount(comm, &ranks);
  std::mt19937_64 random(seed);
  for (int round = 0; round < rounds; ++round) {
    for (const auto& row : seqpar::attn::algorithms()) {
      if (!row.softmax || (row.id == seqparAttnLocal && ranks > 1)) continue;
      auto spec = drawSpec(random, ranks);
      spec.algorithm = row.id;
      if (!refusalOf(row, spec, comm).empty()) continue;
      const SoftmaxCase c(spec, random());
      RunOptions options;
      options.onStream = random() % 2 == 0;
      SoftmaxResult result(c, kElsewhere);
      std::vector<float> dSinks;
      auto wrong = runRank(c, rank, ranks, comm, options, result, dSinks);
      if (wrong.empty()) wrong = differences(c, result, ranks);
      if (!wrong.empty()) throw std::runtime_error(std::string(row.name) + ", " + spec.text() + ": " + wrong);
    }
  }
}

}  // namespace

int main(int argc, char** argv) {
  const int rounds = argc > 1 ? std::atoi(argv[1]) : 3;
  return seqpar::test::runAsProcesses([&](seqparComm_t comm, uint64_t seed) { suite(comm, seed, rounds); });
}
