// The plan object's contract: its queries, its choices, and exact results.
#include <map>

#include "attn/plan/plan.h"
#include "small_desc.h"
#include "softmax_ranks.h"
#include "unit/seed.h"

namespace {

using namespace seqpar::attn::test;  // NOLINT(google-build-using-namespace)

std::string explain(const seqparAttnDesc_t& desc, seqparComm_t comm) {
  seqparAttnPlan_t plan = nullptr;
  if (seqparAttnPlanCreate(&plan, &desc, comm) != seqparSuccess) return seqparAttnGetLastError();
  size_t bytes = 0;
  CHECK(seqparAttnPlanExplain(plan, nullptr, &bytes) == seqparSuccess);
  std::string text(bytes, '?');
  size_t less = bytes - 1;
  CHECK(seqparAttnPlanExplain(plan, text.data(), &less) == seqparInvalidArgument);
  CHECK(seqparAttnPlanExplain(plan, text.data(), &bytes) == seqparSuccess);
  text.pop_back();
  seqparAttnPlanDestroy(plan);
  return text;
}

TEST_CASE("AUTO selects the algorithm with the least estimate on all ranks and explains it") {
  auto desc = smallDesc();
  CHECK_THAT(explain(desc, nullptr), Catch::StartsWith("{\"algorithm\": \"local\"") && Catch::EndsWith("]}"));
  const RankThreads ranks(3);
  desc.tokens = 300;
  desc.mask = seqparAttnCausal;
  std::vector<std::string> chosen(3);
  ranks.each([&](int rank) {
    const auto text = explain(desc, ranks[rank]);
    chosen[static_cast<size_t>(rank)] = text.substr(0, text.find(','));
    return std::string();
  });
  CHECK_THAT(chosen[0], !Catch::Contains("local"));
  CHECK(chosen[0] == chosen[1]);
  CHECK(chosen[0] == chosen[2]);
}

TEST_CASE("every algorithm has one row for each attention kind that it supports") {
  std::map<int, int> rows;
  for (const auto& row : seqpar::attn::algorithms()) {
    CHECK(seqpar::attn::findAlgorithm(row.id, row.softmax) == &row);
    ++rows[row.id];
  }
  for (int id = 1; id < SEQPAR_ATTN_ALGORITHMS; ++id) CHECK(rows[id] == (id == seqparAttnLocal ? 2 : 1));
}

TEST_CASE("one rank exchanges nothing, so no algorithm reserves memory") {
  for (const auto& row : seqpar::attn::algorithms()) {
    if (!row.softmax) continue;
    CAPTURE(row.name);
    auto desc = seqpar::attn::test::smallDesc();
    desc.mask = seqparAttnCausal;
    desc.algorithm = row.id;
    desc.reserve = 1;
    seqparAttnPlan_t plan = nullptr;
    REQUIRE(seqparAttnPlanCreate(&plan, &desc, nullptr) == seqparSuccess);
    size_t bytes = 1;
    CHECK(seqparAttnPlanReserveSize(plan, &bytes) == seqparSuccess);
    CHECK(bytes == 0);
    CHECK(seqparAttnPlanDestroy(plan) == seqparSuccess);
  }
}

TEST_CASE("results are exact where each token attends only to itself") {
  const int ranks = GENERATE(1, 2, 3, 5);
  const RankThreads group(ranks);
  const seqpar::test::Seed seed;
  for (const auto& row : seqpar::attn::algorithms()) {
    if (!row.softmax) continue;
    SoftmaxSpec s;
    s.tokens = 37;
    s.heads = s.kvHeads = 3;
    s.headDim = s.valueDim = 4;
    s.mask = seqparAttnCausal;
    s.windowLeft = 0;
    s.algorithm = row.id;
    CAPTURE(ranks, row.name);
    const SoftmaxCase c(s, seed);
    SoftmaxResult result(c, NAN);
    REQUIRE(runOn(c, &group, {}, result) == "");
    CHECK(result.out == c.v);
    CHECK(result.dv == c.dOut);
  }
}

TEST_CASE("the same call gives the same bits, whatever the timing") {
  const RankThreads group(4);
  const seqpar::test::Seed seed;
  for (const auto& row : seqpar::attn::algorithms()) {
    if (!row.softmax) continue;
    SoftmaxSpec s;
    s.tokens = 90;
    s.heads = 4;
    s.kvHeads = 2;
    s.headDim = s.valueDim = 8;
    s.mask = seqparAttnCausal;
    s.algorithm = row.id;
    CAPTURE(row.name);
    const SoftmaxCase c(s, seed);
    SoftmaxResult first(c, NAN), second(c, NAN);
    REQUIRE(runOn(c, &group, {}, first) == "");
    RunOptions onStream;
    onStream.onStream = true;
    REQUIRE(runOn(c, &group, onStream, second) == "");
    CHECK(first.out == second.out);
    CHECK(first.lse == second.lse);
    CHECK(first.dq == second.dq);
    CHECK(first.dk == second.dk);
    CHECK(first.dv == second.dv);
  }
}

/// The loss sum(out * dOut), by the definition.
double loss(const SoftmaxCase& c) {
  const SoftmaxAnswer answer(c);
  double sum = 0;
  for (size_t i = 0; i < c.dOut.size(); ++i) sum += answer.out.value[i] * c.dOut[i];
  return sum;
}

TEST_CASE("gradients of the definition agree with finite differences") {
  const seqpar::test::Seed seed;
  SoftmaxSpec s;
  s.tokens = 5;
  s.heads = 2;
  s.kvHeads = 1;
  s.headDim = 3;
  s.valueDim = 2;
  s.mask = seqparAttnCausal;
  s.softcap = 1.5f;
  s.sinks = true;
  const SoftmaxCase c(s, seed);
  const SoftmaxAnswer answer(c);
  const auto compare = [&](std::vector<double> SoftmaxCase::*input, const Numbers& gradient) {
    constexpr double kStep = 1e-5;
    for (size_t i = 0; i < gradient.value.size(); ++i) {
      SoftmaxCase up = c, down = c;
      (up.*input)[i] += kStep;
      (down.*input)[i] -= kStep;
      CHECK((loss(up) - loss(down)) / (2 * kStep) == Approx(gradient.value[i]).margin(1e-6).epsilon(1e-6));
    }
  };
  compare(&SoftmaxCase::q, answer.dq);
  compare(&SoftmaxCase::k, answer.dk);
  compare(&SoftmaxCase::v, answer.dv);
  compare(&SoftmaxCase::sinks, answer.dSinks);
}

TEST_CASE("between nodes the algorithm with the least traffic wins among similar estimates") {
  auto desc = smallDesc();
  desc.algorithm = seqparAttnAuto;
  auto problem = seqpar::attn::readProblem("test", &desc, nullptr);
  auto candidates = seqpar::attn::candidatesFor(problem, false);
  for (auto& candidate : candidates) {
    const bool ring = candidate.row->id == seqparAttnRing, zigzag = candidate.row->id == seqparAttnZigzag;
    candidate.estimate = ring     ? seqpar::attn::Estimate{40, 60, 100}
                         : zigzag ? seqpar::attn::Estimate{42, 62, 90}
                                  : seqpar::attn::Estimate{50, 62, 10};
  }
  CHECK(seqpar::attn::chooseAlgorithm("test", problem, candidates).id == seqparAttnRing);
  problem.info.nodes = 2;
  CHECK(seqpar::attn::chooseAlgorithm("test", problem, candidates).id == seqparAttnZigzag);
}

TEST_CASE("a pass is refused while another thread is inside one of the plan") {
  const RankThreads ranks(2);
  auto desc = smallDesc();
  desc.algorithm = seqparAttnRing;
  seqparAttnPlan_t plans[2] = {};
  const auto call = [&](int rank, std::vector<float>& out) {
    const std::vector<float> x(32, 1.0f);
    std::vector<float> lse(8);
    seqparAttnForwardArgs_t args = SEQPAR_ATTN_FORWARD_INITIALIZER;
    args.q.data = args.k.data = args.v.data = const_cast<float*>(x.data());
    args.out.data = out.data();
    args.lse = lse.data();
    const auto result = seqparAttnForward(plans[rank], &args, nullptr);
    return result == seqparInvalidUsage ? std::string(seqparAttnGetLastError())
                                        : std::string(seqparGetErrorString(result));
  };
  for (const auto& text : ranks.each([&](int rank) {
         seqparAttnPlanCreate(&plans[rank], &desc, ranks[rank]);
         return std::string(seqparGetErrorString(seqparAttnPlanPrepare(plans[rank], nullptr, 0)));
       })) {
    CHECK(text == seqparGetErrorString(seqparSuccess));
  }
  // Rank 1 calls after one of rank 0's threads was refused: until then the other one waits for it.
  std::promise<void> refused;
  std::vector<float> outs[3];
  for (auto& out : outs) out.assign(32, 0.0f);
  const auto first = [&](int i) {
    auto text = call(0, outs[i]);
    if (text != seqparGetErrorString(seqparSuccess)) refused.set_value();
    return text;
  };
  auto one = std::async(std::launch::async, first, 0), two = std::async(std::launch::async, first, 1);
  refused.get_future().wait();
  CHECK(call(1, outs[2]) == seqparGetErrorString(seqparSuccess));
  const std::string said[] = {one.get(), two.get()};
  const int second = said[0] == seqparGetErrorString(seqparSuccess) ? 1 : 0;
  CHECK(said[1 - second] == seqparGetErrorString(seqparSuccess));
  CHECK_THAT(said[second], Catch::Contains("seqparAttnForward: another thread is inside a call of this plan"));
  CHECK(outs[second] == std::vector<float>(32, 0.0f));
  CHECK(outs[1 - second] == std::vector<float>(32, 1.0f));
  ranks.each([&](int rank) { return std::string(seqparGetErrorString(seqparAttnPlanDestroy(plans[rank]))); });
}

TEST_CASE("after a lost rank, outputs on streams are not presented as results") {
  seqparComm_t comms[2] = {};
  REQUIRE(seqparCommInitAll(comms, 2, nullptr) == seqparSuccess);
  auto desc = smallDesc();
  desc.algorithm = seqparAttnRing;
  seqparAttnPlan_t plans[2] = {};
  const auto prepare = [&](int rank) {
    if (seqparAttnPlanCreate(&plans[rank], &desc, comms[rank]) == seqparSuccess) {
      seqparAttnPlanPrepare(plans[rank], nullptr, 0);
    }
  };
  auto other = std::async(std::launch::async, prepare, 1);
  prepare(0);
  other.get();
  std::vector<float> q(32, 1.0f), out(32, 1.0f), lse(8);
  seqparAttnForwardArgs_t args = SEQPAR_ATTN_FORWARD_INITIALIZER;
  args.q.data = args.k.data = args.v.data = q.data();
  args.out.data = out.data();
  args.lse = lse.data();
  seqparStream_t stream = nullptr;
  REQUIRE(seqparStreamCreate(&stream) == seqparSuccess);
  CHECK(seqparAttnForward(plans[0], &args, stream) == seqparSuccess);
  CHECK(seqparCommAbort(comms[1]) == seqparSuccess);
  CHECK(seqparStreamSynchronize(stream) == seqparRemoteError);
  CHECK(std::all_of(out.begin(), out.end(), [](float x) { return std::isnan(x); }));
  CHECK(seqparAttnForward(plans[0], &args, nullptr) == seqparRemoteError);
  CHECK(seqparAttnPlanDestroy(plans[0]) == seqparSuccess);
  CHECK(seqparAttnPlanDestroy(plans[1]) == seqparSuccess);
  seqparStreamDestroy(stream);
  seqparCommDestroy(comms[0]);
}

}  // namespace
