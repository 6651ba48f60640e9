// Without argument checks: ranks with different calls, or different arguments, whose messages have equal sizes.
#include <array>
#include <catch2/catch.hpp>
#include <cstdlib>
#include <functional>
#include <string>
#include <vector>

#include "common/covering.h"
#include "common/ranks.h"
#include "seqpar/exchange.h"

using Catch::Matchers::Contains;
using namespace seqpar::test;

namespace {

constexpr int kRanks = 2;

/// A call by one rank; `size` scales its messages.
using Call = std::function<seqparResult_t(seqparComm_t comm, int64_t size)>;

struct Buffers {
  explicit Buffers(int64_t floats) : from(static_cast<size_t>(floats), 0), into(from), decay(from.size(), 0.5F) {}
  std::vector<float> from, into, decay;
};

Call gather(seqparDataType_t type, int64_t outer) {
  return [=](seqparComm_t comm, int64_t size) {
    Buffers data(kRanks * size);
    seqparShards_t shards = SEQPAR_SHARDS_INITIALIZER;
    shards.dataType = type;
    shards.outer = outer;
    shards.tokens = size / outer;
    return seqparAllGather(data.from.data(), data.into.data(), &shards, comm, nullptr);
  };
}

Call transpose(bool toHeads) {
  return [=](seqparComm_t comm, int64_t size) {
    Buffers data(kRanks * size);
    seqparHeadShards_t shards = SEQPAR_HEAD_SHARDS_INITIALIZER;
    shards.tokens = size / kRanks;
    shards.heads = kRanks;
    shards.headDim = 1;
    return (toHeads ? seqparSequenceToHeads : seqparHeadsToSequence)(data.from.data(), data.into.data(), &shards, comm,
                                                                     nullptr);
  };
}

Call scan(seqparDecayForm_t form) {
  return [=](seqparComm_t comm, int64_t size) {
    Buffers data(size);
    seqparAllScanParams_t params = SEQPAR_ALL_SCAN_PARAMS_INITIALIZER;
    params.heads = 1;
    params.dk = 2;
    params.dv = size / params.dk;
    params.decayForm = form;
    return seqparAllScan(data.from.data(), data.decay.data(), nullptr, nullptr, data.into.data(), &params, comm,
                         nullptr);
  };
}

/// A message to the other rank, which is not a collective, as a part of a call of the program.
Call part(const char* name, int64_t argument) {
  return [=](seqparComm_t comm, int64_t size) {
    Buffers data(size);
    int rank = -1;
    seqparCommUserRank(comm, &rank);
    const seqparCompared_t compared{"argument", seqparComparedNumber, argument, 0, nullptr};
    expectSuccess(seqparCommCallBegin(name, &compared, 1, comm, nullptr), "seqparCommCallBegin", comm);
    const auto bytes = static_cast<size_t>(size) * sizeof(float);
    const auto result =
        seqparSendRecv(data.from.data(), bytes, 1 - rank, data.into.data(), bytes, 1 - rank, comm, nullptr);
    seqparCommCallEnd();
    return result;
  };
}

struct Pair {
  const char* what;
  Call one, other;
};

const std::vector<Pair>& pairs() {
  static const std::vector<Pair> all{
      {"types of one size", gather(seqparFloat16, 1), gather(seqparBfloat16, 1)},
      {"shapes of one size", gather(seqparFloat32, 1), gather(seqparFloat32, 2)},
      {"inverse calls", transpose(true), transpose(false)},
      {"forms of decays", scan(seqparDecayLinear), scan(seqparDecayLog2)},
      {"arguments of a program's call", part("step", 1), part("step", 2)},
      {"names of a program's call", part("step", 1), part("stop", 1)},
  };
  return all;
}

}  // namespace

TEST_CASE("Without argument checks, messages of other calls are an error") {
  const size_t number = GENERATE(range(size_t{0}, pairs().size())), sizeNumber = GENERATE(range(size_t{0}, size_t{3}));
  const bool network = GENERATE(false, true);
  if (!seqpar::test::covers(number, sizeNumber, network, 2)) return;
  const auto& pair = pairs().at(number);
  const int64_t size = std::array{8, 4096, 1 << 18}.at(sizeNumber);
  const std::string transport = network ? "network" : "auto";
  CAPTURE(pair.what, size, transport);
  setenv("SEQPAR_TRANSPORT", transport.c_str(), 1);
  std::array<seqparComm_t, kRanks> comms{};
  REQUIRE(seqparCommInitAll(comms.data(), kRanks, nullptr) == seqparSuccess);
  unsetenv("SEQPAR_TRANSPORT");
  std::array<std::string, kRanks> texts;
  const auto errors = onThreads(kRanks, [&](int rank) {
    auto* const comm = comms.at(static_cast<size_t>(rank));
    for (int round = 0; round < 3; ++round) {  // later rounds run calls that are known
      expectSuccess(pair.one(comm, size), "one", comm);
      expectSuccess(pair.other(comm, size), "other", comm);
    }
    auto result = (rank == 0 ? pair.one : pair.other)(comm, size);
    if (rank == 0 && result == seqparSuccess) result = seqparCommBarrier(comm);  // a scan's first rank receives nothing
    // The rank that reads the other's data first tells it.
    expect(result == seqparInternalError || result == seqparRemoteError, "got ", seqparGetErrorString(result));
    texts.at(static_cast<size_t>(rank)) = seqparGetLastError(comm);
  });
  for (auto* const comm : comms) seqparCommAbort(comm);
  CHECK(errors == "");
  for (const auto& text : texts) CHECK_THAT(text, Contains("the ranks disagree about the operation"));
}
