// A caller's block kernel in seqparAttnDesc_t::kernel.
#include "attn/plan/plan.h"
#include "naive_kernel.h"
#include "softmax_ranks.h"
#include "unit/seed.h"

namespace {

using namespace seqpar::attn::test;  // NOLINT(google-build-using-namespace)

TEST_CASE("a block kernel of the caller computes in the library's place") {
  const RankThreads group(3);
  const seqpar::test::Seed seed;
  for (const auto& row : seqpar::attn::algorithms()) {
    if (!row.softmax || row.id == seqparAttnLocal) continue;
    SoftmaxSpec s;
    s.tokens = 41;
    s.heads = 4;
    s.kvHeads = 2;
    s.headDim = s.valueDim = 4;
    s.mask = seqparAttnCausal;
    s.algorithm = row.id;
    CAPTURE(row.name);
    NaiveKernel::Calls calls;
    seqparAttnKernel_t kernel = SEQPAR_ATTN_KERNEL_INITIALIZER;
    kernel.forward = NaiveKernel::forward;
    kernel.backward = NaiveKernel::backward;
    kernel.self = &calls;
    RunOptions options;
    options.kernel = &kernel;
    options.onStream = row.id % 2 == 0;
    CHECK(runCase(SoftmaxCase(s, seed), &group, options) == "");
    CHECK(calls.count > 0);
  }
}

}  // namespace
