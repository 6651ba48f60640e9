// checkArguments: compared values, and that it adds no wait to calls that do not wait otherwise.
#include <barrier>
#include <catch2/catch.hpp>
#include <string>
#include <vector>

#include "bootstrap/bootstrap.h"
#include "comm/ordered_control.h"
#include "common/ranks.h"
#include "common/timeouts.h"
#include "seqpar/exchange.h"

using namespace seqpar::test;

namespace {

/// body(comms, streams, rank) on two ranks as threads with two communicators that compare arguments and a stream each.
std::string onTwoCommunicators(int timeoutMs,
                               const std::function<void(seqparComm_t*, seqparStream_t*, int rank)>& body) {
  seqparUniqueId ids[2];
  for (auto& id : ids) REQUIRE(seqparGetUniqueId(&id) == seqparSuccess);
  return onThreads(2, [&](int rank) {
    seqparConfig_t config = SEQPAR_CONFIG_INITIALIZER;
    config.timeoutMs = timeoutMs;
    config.checkArguments = 1;
    seqparComm_t comms[2];
    seqparStream_t streams[2];
    for (int i = 0; i < 2; ++i) {
      expectSuccess(seqparCommInitRankConfig(&comms[i], 2, ids[i], rank, &config), "seqparCommInitRankConfig");
      expectSuccess(seqparStreamCreate(&streams[i]), "seqparStreamCreate");
    }
    try {
      body(comms, streams, rank);
    } catch (...) {
      for (const auto comm : comms) seqparCommAbort(comm);
      for (const auto stream : streams) seqparStreamDestroy(stream);
      throw;
    }
    for (const auto stream : streams) expectSuccess(seqparStreamDestroy(stream), "seqparStreamDestroy");
    for (const auto comm : comms) expectSuccess(seqparCommDestroy(comm), "seqparCommDestroy");
  });
}

/// A sum over the ranks of `dv` elements.
seqparResult_t sum(const float* state, float* total, int64_t dv, seqparComm_t comm, void* stream) {
  seqparAllScanParams_t params = SEQPAR_ALL_SCAN_PARAMS_INITIALIZER;
  params.op = seqparScanSum;
  params.heads = dv == 0 ? 0 : 1;
  params.dk = params.heads;
  params.dv = dv;
  return seqparAllScan(state, nullptr, nullptr, nullptr, total, &params, comm, stream);
}

seqparCompared_t number(const char* name, int64_t value) {
  return {name, seqparComparedNumber, value, 0, nullptr};
}
seqparCompared_t real(const char* name, double value) {
  return {name, seqparComparedReal, 0, value, nullptr};
}
seqparCompared_t array(const char* name, const std::vector<int64_t>& elements) {
  return {name, seqparComparedArray, static_cast<int64_t>(elements.size()), 0, elements.data()};
}

}  // namespace

TEST_CASE("ranks may call two communicators on two streams in opposite orders, and have their arguments compared") {
  const bool empty = GENERATE(false, true);  // calls without work are also compared
  CAPTURE(empty);
  const auto wrong = withGrowingTimeout(2000, [&](int timeoutMs) {
    return onTwoCommunicators(timeoutMs, [&](seqparComm_t* comms, seqparStream_t* streams, int rank) {
      const float state = 1;
      float totals[2] = {0, 0};
      for (int round = 0; round < 20; ++round) {
        for (const int i : {rank, 1 - rank}) {
          expectSuccess(sum(&state, &totals[i], empty ? 0 : 1, comms[i], streams[i]), "seqparAllScan", comms[i]);
        }
      }
      for (int i = 0; i < 2; ++i) {
        expectSuccess(seqparStreamSynchronize(streams[i]), "seqparStreamSynchronize");
        expect(empty || totals[i] == static_cast<float>(rank + 1), "total ", totals[i]);
      }
    });
  });
  CHECK(wrong == "");
}

TEST_CASE("a difference on a stream is reported at its synchronization, and the communicator stays usable") {
  const auto errors = onTwoCommunicators(kNoTimeoutMs, [](seqparComm_t* comms, seqparStream_t* streams, int rank) {
    const float state[2] = {1, 1};
    float total[2] = {0, 0};
    expectSuccess(sum(state, total, 1 + rank, comms[0], streams[0]), "seqparAllScan", comms[0]);
    expectSuccess(sum(state, total, 2, comms[0], streams[0]), "seqparAllScan", comms[0]);
    const auto result = seqparStreamSynchronize(streams[0]);
    const std::string text = seqparGetLastError(nullptr);
    expect(result == seqparInvalidUsage, "result ", result, ": ", text);
    expect(text.find("seqparAllScan: the ranks disagree: rank 1 has dv 2, rank 0 has 1") != std::string::npos, text);
    expect(total[0] == static_cast<float>(rank + 1), "the call after it: total ", total[0]);
    expectSuccess(seqparStreamSynchronize(streams[0]), "the error is told once");
  });
  CHECK(errors == "");
}

TEST_CASE("a refused call leaves no pending comparison") {
  const auto errors = onTwoCommunicators(kNoTimeoutMs, [](seqparComm_t* comms, seqparStream_t*, int rank) {
    float whole[2] = {0, 0};
    seqparShards_t shards = SEQPAR_SHARDS_INITIALIZER;
    shards.outer = shards.tokens = shards.inner = 1;
    // The arguments are compared before the buffers are checked.
    expect(seqparAllGather(nullptr, whole, &shards, comms[0], nullptr) == seqparInvalidArgument, "was not refused");
    const float mine = static_cast<float>(rank);
    float other = -1;
    expectSuccess(seqparSendRecv(&mine, 4, 1 - rank, &other, 4, 1 - rank, comms[0], nullptr), "seqparSendRecv");
    expect(other == static_cast<float>(1 - rank), "received ", other);
    expectSuccess(seqparAllGather(&mine, whole, &shards, comms[0], nullptr), "seqparAllGather", comms[0]);
    expect(whole[1] == 1, "gathered ", whole[1]);
  });
  CHECK(errors == "");
}

TEST_CASE("the comparison of a caller's own operation uses its name") {
  const auto errors = onTwoCommunicators(kNoTimeoutMs, [](seqparComm_t* comms, seqparStream_t*, int rank) {
    const seqparCompared_t same[] = {number("rounds", 3), number("size", -4)};
    const seqparCompared_t differs[] = {number("rounds", 3), number("size", rank)};
    expectSuccess(seqparCommCompare("ownCall", same, 2, comms[0]), "seqparCommCompare", comms[0]);
    expect(seqparCommCompare("ownCall", differs, 2, comms[0]) == seqparInvalidUsage, "no difference was found");
    const std::string text = seqparGetLastError(comms[0]);
    expect(text == "ownCall: the ranks disagree: rank 1 has size 1, rank 0 has 0", text);
    expectSuccess(seqparCommCompare("ownCall", nullptr, 0, comms[0]), "the communicator stays", comms[0]);
    const auto refused = [&](const char* what, const char* call, const seqparCompared_t* arguments, int count) {
      expect(seqparCommCompare(call, arguments, count, comms[0]) == seqparInvalidArgument, what);
    };
    refused("a count below 0", "ownCall", same, -1);
    refused("too many", "ownCall", same, SEQPAR_MOST_COMPARED + 1);
    refused("call NULL", nullptr, same, 2);
    refused("arguments NULL", "ownCall", nullptr, 2);
    refused("a long name", "a name of forty bytes, which is too long.", same, 2);
    const seqparCompared_t unnamed = number(nullptr, 1), kind{"a", 3, 1, 0, nullptr},
                           fewer{"a", seqparComparedArray, -1, 0, nullptr},
                           none{"a", seqparComparedArray, 1, 0, nullptr};
    for (const auto* one : {&unnamed, &kind, &fewer, &none}) refused("an argument", "ownCall", one, 1);
  });
  CHECK(errors == "");
  seqparComm_t alone = nullptr;  // which compares nothing
  REQUIRE(seqparCommInitAll(&alone, 1, nullptr) == seqparSuccess);
  const seqparCompared_t values[] = {number("rounds", 1), real("scale", 2)};
  CHECK(seqparCommCompare("ownCall", values, 2, alone) == seqparSuccess);
  CHECK(seqparCommDestroy(alone) == seqparSuccess);
}

TEST_CASE("reals are printed as reals, and arrays by length or first different element") {
  const auto errors = onTwoCommunicators(kNoTimeoutMs, [](seqparComm_t* comms, seqparStream_t*, int rank) {
    std::vector<int64_t> many(1000, 7), few(static_cast<size_t>(3 + rank), 1);
    many[500] += 2 * rank;
    many[900] += rank;
    const std::vector<int64_t> none;
    const auto reported = [&](const std::vector<seqparCompared_t>& arguments) -> std::string {
      const int count = static_cast<int>(arguments.size());
      return seqparCommCompare("ownCall", arguments.data(), count, comms[0]) == seqparInvalidUsage
                 ? seqparGetLastError(comms[0])
                 : "";
    };
    const auto expectText = [](const std::string& text, const std::string& expected) {
      expect(text == (expected.empty() ? "" : "ownCall: the ranks disagree: " + expected), text);
    };
    expectText(reported({real("scale", 0.5), array("lengths", none), array("sizes", {3, 4, 5})}), "");
    expectText(reported({real("scale", static_cast<double>(rank == 0 ? 0.1f : 30.5f))}),
               "rank 1 has scale 30.5, rank 0 has 0.1");
    expectText(reported({real("scale", rank == 0 ? 0.1 : 0.25)}), "rank 1 has scale 0.25, rank 0 has 0.1");
    expectText(reported({array("sizes", many), number("count", rank), array("lengths", few)}),
               "rank 1 has sizes[500] 9, rank 0 has 7; rank 1 has count 1, rank 0 has 0; "
               "rank 1 has a length of lengths 4, rank 0 has 3");
    expectText(reported({array("lengths", rank == 0 ? none : many)}),
               "rank 1 has a length of lengths 1000, rank 0 has 0");
    // A value that is an array on one rank only cannot be gathered.
    expectText(reported({rank == 0 ? number("sizes", 1) : array("sizes", many)}),
               "rank 1 has another kind of sizes than rank 0");
  });
  CHECK(errors == "");
}

TEST_CASE("comparisons on two control planes in opposite orders do not block, and a difference names the argument") {
  using namespace seqpar;
  std::vector<std::unique_ptr<Allgather>> groups[2] = {makeLocalGroup(2, kNoTimeout), makeLocalGroup(2, kNoTimeout)};
  std::barrier bothReported(2);
  const auto errors = onThreads(2, [&](int rank) {
    const auto own = static_cast<size_t>(rank);
    Health health[2];
    std::unique_ptr<OrderedControl> controls[2];
    for (size_t i = 0; i < 2; ++i) {
      const ControlOptions options{kNoTimeout, ""};
      controls[i] = std::make_unique<OrderedControl>(Control::connect(*groups[i][own], options, health[i]), health[i]);
    }
    for (int round = 0; round < 20; ++round) {
      const NamedValue same{"round", round};
      for (const size_t i : {own, 1 - own}) controls[i]->compareLater(Comparison("seqparAllScan", {&same, 1}));
    }
    for (auto& control : controls) {
      std::vector<int> ranks(2);
      control->gatherValues(rank, std::span(ranks));  // after all comparisons
      expect(ranks[1] == 1, "gathered ", ranks[1]);
    }
    expect(health[0].ok() && health[1].ok(), health[0].text(), health[1].text());
    const NamedValue differs{"dv", rank};
    controls[0]->compareLater(Comparison("seqparAllScan", {&differs, 1}));
    while (health[0].ok()) std::this_thread::yield();
    bothReported.arrive_and_wait();  // the rank that ends first reports its failure to the other
    expect(health[0].result() == seqparInvalidUsage, "result ", health[0].result());
    expect(health[0].text() == "seqparAllScan: the ranks disagree: rank 1 has dv 1, rank 0 has 0", health[0].text());
    for (auto& control : controls) control->leave();
  });
  CHECK(errors == "");
}
