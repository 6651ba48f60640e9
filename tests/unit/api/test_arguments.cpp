// Bad input to the collectives: refused by name, before anything is sent.
#include <catch2/catch.hpp>
#include <limits>
#include <string>
#include <vector>

#include "common/ranks.h"

using namespace seqpar::test;
using Catch::Matchers::Contains;

namespace {

/// One rank, a valid scan of 2 heads x 3 x 4, and a way to invalidate one argument at a time.
struct Scan {
  Scan() {
    REQUIRE(seqparCommInitAll(&comm, 1, nullptr) == seqparSuccess);
    params.heads = 2;
    params.dk = 3;
    params.dv = 4;
  }
  Scan(const Scan&) = delete;
  Scan& operator=(const Scan&) = delete;
  ~Scan() { seqparCommDestroy(comm); }

  seqparResult_t run() { return seqparAllScan(state, transition, initial, prefix, total, &params, comm, stream); }

  /// Runs and checks that it is refused with a text that has all of `words`.
  void refused(const std::vector<std::string>& words, seqparResult_t expected = seqparInvalidArgument) {
    CHECK(run() == expected);
    const std::string text = seqparGetLastError(comm);
    CHECK_THAT(text, Contains("seqparAllScan"));
    for (const auto& word : words) CHECK_THAT(text, Contains(word));
    for (const float value : outputs) CHECK(value == -1.f);
  }

  seqparComm_t comm = nullptr;
  seqparAllScanParams_t params = SEQPAR_ALL_SCAN_PARAMS_INITIALIZER;
  std::vector<float> inputs = std::vector<float>(24, 1.f);
  std::vector<float> factors = std::vector<float>(18, 1.f);
  std::vector<float> outputs = std::vector<float>(48, -1.f);
  const void* state = inputs.data();
  const void* transition = factors.data();
  const void* initial = nullptr;
  void* prefix = outputs.data();
  void* total = outputs.data() + 24;
  void* stream = nullptr;
};

constexpr int64_t kHuge = std::numeric_limits<int64_t>::max();

}  // namespace

TEST_CASE("the unspoiled scan runs") {
  Scan scan;
  CHECK(scan.run() == seqparSuccess);
  CHECK(scan.outputs[0] == 0.f);
  CHECK(scan.outputs[24] == 1.f);
}

TEST_CASE("pointers of an All-Scan") {
  Scan scan;
  SECTION("state") {
    scan.state = nullptr;
    scan.refused({"state is NULL"});
  }
  SECTION("transition") {
    scan.transition = nullptr;
    scan.refused({"transition is NULL", "params->op"});
  }
  SECTION("transition of a sum") {
    scan.params.op = seqparScanSum;
    scan.refused({"transition", "expected NULL"});
  }
  SECTION("no output") {
    scan.prefix = scan.total = nullptr;
    scan.refused({"prefix and total"});
  }
  SECTION("stream") {
    scan.stream = &scan;
    scan.refused({"stream", "host stream"});
  }
  SECTION("params") {
    CHECK(seqparAllScan(scan.state, scan.transition, nullptr, scan.prefix, scan.total, nullptr, scan.comm, nullptr) ==
          seqparInvalidArgument);
    CHECK_THAT(seqparGetLastError(scan.comm), Contains("params is NULL"));
  }
  SECTION("wrong magic") {
    scan.params.magic = 7;
    scan.refused({"params", "magic", "INITIALIZER"});
  }
}

TEST_CASE("overlap of an All-Scan's buffers") {
  Scan scan;
  SECTION("in-place is allowed") {
    scan.prefix = scan.inputs.data();
    CHECK(scan.run() == seqparSuccess);
  }
  SECTION("the two outputs") {
    scan.total = scan.prefix;
    scan.refused({"prefix", "total", "overlap"});
  }
  SECTION("state, shifted") {
    scan.prefix = scan.inputs.data() + 1;
    scan.refused({"state", "prefix", "overlap"});
  }
  SECTION("transition") {
    scan.factors.resize(24, 1.f);
    scan.transition = scan.factors.data();
    scan.total = scan.factors.data();
    scan.refused({"transition", "total", "overlap"});
  }
  SECTION("initial") {
    scan.initial = scan.prefix;
    scan.refused({"initial", "prefix", "overlap"});
  }
}

TEST_CASE("shapes and enumerators of an All-Scan") {
  Scan scan;
  auto& p = scan.params;
  SECTION("op") {
    p.op = 4, scan.refused({"op is 4", "0 to 3"});
  }
  SECTION("direction") {
    p.direction = -1, scan.refused({"direction is -1"});
  }
  SECTION("negative heads") {
    p.heads = -2, scan.refused({"heads is -2"});
  }
  SECTION("dk of 0") {
    p.dk = 0, scan.refused({"dk is 0"});
  }
  SECTION("negative dv") {
    p.dv = -1, scan.refused({"dv is -1"});
  }
  SECTION("overflow") {
    p.heads = kHuge, scan.refused({"overflow"});
  }
  SECTION("overflow of the product") {
    p.dk = p.dv = int64_t{1} << 31, scan.refused({"overflow"});
  }
  SECTION("overflow of the transition") {
    p.op = seqparScanMatrix, p.dk = int64_t{1} << 33, p.dv = 1, scan.refused({"overflow"});
  }
  SECTION("state type") {
    p.stateType = 3, scan.refused({"stateType is 3"});
  }
  SECTION("wire type") {
    p.wireType = -1, scan.refused({"wireType is -1"});
  }
  SECTION("decay form") {
    p.decayForm = 3, scan.refused({"decayForm is 3"});
  }
  SECTION("logarithm of a matrix") {
    p.op = seqparScanMatrix, p.decayForm = seqparDecayLog, scan.refused({"decayForm", "MATRIX"});
  }
  SECTION("algorithm") {
    p.algorithm = 8, scan.refused({"algorithm is 8"});
  }
  SECTION("blocks") {
    p.blocks = -1, scan.refused({"blocks is -1"});
  }
  SECTION("sequences of 0") {
    p.sequences = 0, scan.refused({"sequences is 0"});
  }
  SECTION("sequences that do not divide") {
    p.sequences = 3, scan.refused({"sequences is 3", "heads = 2"});
  }
  SECTION("unknown flags") {
    const uint8_t flags[2] = {1, 4};
    p.sequences = 2, p.flags = flags, scan.refused({"flags[1] is 4"});
  }
}

TEST_CASE("zero heads are a no-op") {
  Scan scan;
  scan.params.heads = scan.params.dk = scan.params.dv = 0;
  scan.state = scan.transition = nullptr;
  CHECK(scan.run() == seqparSuccess);
  CHECK(scan.outputs[0] == -1.f);
}

TEST_CASE("zero heads are a no-op also for an unsupported shape") {
  // Ranks of a node that are not neighbors, which HIER needs.
  seqparUniqueId id;
  REQUIRE(seqparGetUniqueId(&id) == seqparSuccess);
  const auto errors = onThreads(3, [&](int rank) {
    seqparConfig_t config = SEQPAR_CONFIG_INITIALIZER;
    config.hostId = rank == 1 ? "other" : "node";
    seqparComm_t comm = nullptr;
    expectSuccess(seqparCommInitRankConfig(&comm, 3, id, rank, &config), "seqparCommInitRankConfig");
    std::vector<float> state(4, 1.f), prefix(4);
    seqparAllScanParams_t params = SEQPAR_ALL_SCAN_PARAMS_INITIALIZER;
    params.op = seqparScanSum;
    params.algorithm = seqparScanHier;
    const auto run = [&] {
      return seqparAllScan(state.data(), nullptr, nullptr, prefix.data(), nullptr, &params, comm, nullptr);
    };
    params.dk = params.dv = 1;
    expectSuccess(run(), "seqparAllScan", comm);
    params.heads = 4;
    expect(run() == seqparInvalidUsage, "HIER was done");
    expectSuccess(seqparCommDestroy(comm), "seqparCommDestroy");
  });
  INFO(errors);
  CHECK(errors.empty());
}

TEST_CASE("an output on `initial` is refused on every rank, though one reads it") {
  const auto errors = onCommunicator(3, [](seqparComm_t comm, int) {
    std::vector<float> state(4, 1.f), memory(8);
    seqparAllScanParams_t params = SEQPAR_ALL_SCAN_PARAMS_INITIALIZER;
    params.op = seqparScanSum;
    params.heads = params.dk = 2;
    params.dv = 1;
    for (const int direction : {seqparForward, seqparReverse}) {
      params.direction = direction;
      const auto result =
          seqparAllScan(state.data(), nullptr, memory.data() + 2, memory.data(), nullptr, &params, comm, nullptr);
      const std::string text = seqparGetLastError(comm);
      expect(result == seqparInvalidArgument && text.find("initial") != std::string::npos, result, ": ", text);
    }
    expectSuccess(
        seqparAllScan(state.data(), nullptr, memory.data() + 4, memory.data(), nullptr, &params, comm, nullptr),
        "seqparAllScan", comm);
  });
  INFO(errors);
  CHECK(errors.empty());
}

TEST_CASE("the environment's algorithm replaces auto, and an unknown name lists the valid ones") {
  Scan scan;
  setenv("SEQPAR_ALGO", "doubling", 1);
  seqparScanEstimate_t estimates[SEQPAR_SCAN_ALGORITHMS + 1];
  CHECK(seqparAllScanPlan(&scan.params, scan.comm, estimates) == seqparSuccess);
  CHECK(estimates[0].algorithm == seqparScanDoubling);
  setenv("SEQPAR_ALGO", "fastest", 1);
  scan.refused({"SEQPAR_ALGO", "fastest", "chain, oneshot, transposed"}, seqparInvalidUsage);
  unsetenv("SEQPAR_ALGO");
}

TEST_CASE("an unknown algorithm is refused with the list of valid ones") {
  Scan scan;
  for (const int algorithm : {-1, SEQPAR_SCAN_ALGORITHMS + 1}) {
    scan.params.algorithm = algorithm;
    scan.refused({"seqparAllScan", "params->algorithm is", "0 (auto), 1 (chain)"}, seqparInvalidArgument);
    seqparScanEstimate_t estimates[SEQPAR_SCAN_ALGORITHMS + 1];
    CHECK(seqparAllScanPlan(&scan.params, scan.comm, estimates) == seqparInvalidArgument);
    CHECK_THAT(seqparGetLastError(scan.comm), Catch::Contains("seqparAllScanPlan: params->algorithm is"));
  }
}

TEST_CASE("the plan lists every algorithm once, fastest first") {
  Scan scan;
  seqparScanEstimate_t estimates[SEQPAR_SCAN_ALGORITHMS + 1];
  REQUIRE(seqparAllScanPlan(&scan.params, scan.comm, estimates) == seqparSuccess);
  std::vector<int> seen;
  for (int i = 1; i <= SEQPAR_SCAN_ALGORITHMS; ++i) {
    seen.push_back(estimates[i].algorithm);
    if (i > 1) CHECK(estimates[i - 1].modelUs <= estimates[i].modelUs);
    CHECK(seqparScanAlgorithmName(estimates[i].algorithm) != nullptr);
  }
  std::sort(seen.begin(), seen.end());
  for (int i = 0; i < SEQPAR_SCAN_ALGORITHMS; ++i) CHECK(seen[static_cast<size_t>(i)] == i + 1);
  CHECK(seqparScanAlgorithmName(SEQPAR_SCAN_ALGORITHMS + 1) == nullptr);
  CHECK(seqparScanAlgorithmName(-1) == nullptr);
  CHECK(seqparAllScanPlan(&scan.params, scan.comm, nullptr) == seqparInvalidArgument);
}

TEST_CASE("arguments of seqparSendRecv") {
  const auto errors = onCommunicator(2, [](seqparComm_t comm, int rank) {
    std::vector<char> a(64), b(64);
    const auto refused = [&](seqparResult_t result, const char* word) {
      expect(result == seqparInvalidArgument, "result ", result);
      const std::string text = seqparGetLastError(comm);
      expect(text.find(word) != std::string::npos, "no '", word, "' in: ", text);
    };
    const int other = 1 - rank;
    refused(seqparSendRecv(a.data(), 8, 2, b.data(), 8, other, comm, nullptr), "sendPeer is 2");
    refused(seqparSendRecv(a.data(), 8, other, b.data(), 8, -2, comm, nullptr), "receivePeer is -2");
    refused(seqparSendRecv(nullptr, 8, other, b.data(), 8, other, comm, nullptr), "sendBuffer is NULL");
    refused(seqparSendRecv(a.data(), 8, other, nullptr, 8, other, comm, nullptr), "receiveBuffer is NULL");
    refused(seqparSendRecv(a.data(), 8, other, a.data() + 4, 8, other, comm, nullptr), "overlaps");
    refused(seqparSendRecv(a.data(), 8, rank, b.data(), 8, other, comm, nullptr), "this rank");
    refused(seqparSendRecv(a.data(), 8, rank, b.data(), 9, rank, comm, nullptr), "equal");
    // Nothing was sent by any of these: the lanes still agree.
    a[0] = static_cast<char>('A' + rank);
    expectSuccess(seqparSendRecv(a.data(), 64, other, b.data(), 64, other, comm, nullptr), "seqparSendRecv", comm);
    expect(b[0] == 'A' + other, "received ", b[0]);
    expectSuccess(seqparSendRecv(a.data(), 64, rank, b.data(), 64, rank, comm, nullptr), "seqparSendRecv", comm);
    expect(b[0] == 'A' + rank, "received ", b[0]);
    expectSuccess(seqparSendRecv(nullptr, 0, SEQPAR_NO_PEER, nullptr, 0, SEQPAR_NO_PEER, comm, nullptr), "none", comm);
    expectSuccess(seqparSendRecv(nullptr, 0, other, nullptr, 0, other, comm, nullptr), "empty", comm);
  });
  CHECK(errors == "");
}

TEST_CASE("the check mode names the argument and the ranks that differ") {
  setenv("SEQPAR_CHECK", "1", 1);
  const auto errors = onCommunicator(3, [](seqparComm_t comm, int rank) {
    std::vector<float> state(64, 1.f), prefix(64);
    seqparAllScanParams_t params = SEQPAR_ALL_SCAN_PARAMS_INITIALIZER;
    params.op = seqparScanSum;
    params.heads = 1;
    params.dk = 4;
    params.dv = rank == 2 ? 8 : 4;
    const auto result = seqparAllScan(state.data(), nullptr, nullptr, prefix.data(), nullptr, &params, comm, nullptr);
    expect(result == seqparInvalidUsage, "result ", result);
    const std::string text = seqparGetLastError(comm);
    expect(text.find("rank 2 has dv 8, rank 0 has 4") != std::string::npos, text);
    expect(text.find("rank 1 ") == std::string::npos, text);
    params.dv = 4;
    expectSuccess(seqparAllScan(state.data(), nullptr, nullptr, prefix.data(), nullptr, &params, comm, nullptr),
                  "seqparAllScan", comm);
    expect(prefix[0] == static_cast<float>(rank), "prefix ", prefix[0]);
  });
  unsetenv("SEQPAR_CHECK");
  CHECK(errors == "");
}

TEST_CASE("arguments of the init functions") {
  seqparUniqueId id{};
  seqparComm_t comm = nullptr;
  CHECK(seqparGetUniqueId(nullptr) == seqparInvalidArgument);
  CHECK(seqparCommInitRank(nullptr, 1, id, 0) == seqparInvalidArgument);
  CHECK(seqparCommInitRank(&comm, 0, id, 0) == seqparInvalidArgument);
  CHECK_THAT(seqparGetLastError(nullptr), Contains("nranks is 0"));
  CHECK(seqparCommInitRank(&comm, 2, id, 2) == seqparInvalidArgument);
  CHECK_THAT(seqparGetLastError(nullptr), Contains("rank is 2"));
  CHECK(seqparCommInitRank(&comm, 1, id, 0) == seqparInvalidArgument);
  CHECK_THAT(seqparGetLastError(nullptr), Contains("id"));
  CHECK(comm == nullptr);
  CHECK(seqparCommInitAll(nullptr, 1, nullptr) == seqparInvalidArgument);
  CHECK(seqparCommInitAll(&comm, -1, nullptr) == seqparInvalidArgument);
  const int device = 0;
  CHECK(seqparCommInitAll(&comm, 1, &device) == seqparInvalidUsage);
  CHECK_THAT(seqparGetLastError(nullptr), Contains("device 0"));

  seqparOob_t oob = SEQPAR_OOB_INITIALIZER;
  CHECK(seqparCommInitOob(&comm, &oob, nullptr) == seqparInvalidArgument);
  CHECK_THAT(seqparGetLastError(nullptr), Contains("allgather is NULL"));
  oob.allgather = [](const void*, void*, size_t, void*) { return 0; };
  oob.rank = 5;
  CHECK(seqparCommInitOob(&comm, &oob, nullptr) == seqparInvalidArgument);
  oob.rank = 0;
  seqparConfig_t config = SEQPAR_CONFIG_INITIALIZER;
  config.timeoutMs = -5;
  CHECK(seqparCommInitOob(&comm, &oob, &config) == seqparInvalidArgument);
  CHECK_THAT(seqparGetLastError(nullptr), Contains("timeoutMs is -5"));
  config.timeoutMs = 1000;
  config.transport = 9;
  CHECK(seqparCommInitOob(&comm, &oob, &config) == seqparInvalidArgument);
  CHECK_THAT(seqparGetLastError(nullptr), Contains("transport is 9"));
}
