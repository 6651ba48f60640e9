// seqparAllReduceLse and seqparReduceScatterLseByHeads against fp64, with all ranks as threads.
#include <catch2/catch.hpp>
#include <cmath>
#include <cstdlib>
#include <cstring>
#include <limits>
#include <random>
#include <vector>

#include "common/covering.h"
#include "lse_case.h"
#include "seqpar/exchange.h"
#include "seqpar/stream.h"
#include "unit/seed.h"

using namespace seqpar;
using namespace seqpar::test;
using Catch::Matchers::Contains;

namespace {

using Bytes = std::vector<std::byte>;

struct Merged {
  Bytes out;
  std::vector<float> lse;
};

/// One rank's all-reduce; `rowCount` may be null.
Merged reduceAll(const MergeCase& c, seqparComm_t comm, size_t rank, bool inPlace, const int32_t* rowCount,
                 void* stream) {
  auto params = paramsOf(c);
  params.rowCount = rowCount;
  Merged made;
  if (inPlace) made = {c.out[rank], c.lse[rank]};
  if (!inPlace) made = {Bytes(c.out[rank].size()), std::vector<float>(c.lse[rank].size())};
  const void* out = inPlace ? made.out.data() : c.out[rank].data();
  const float* lse = inPlace ? made.lse.data() : c.lse[rank].data();
  expectSuccess(seqparAllReduceLse(out, lse, made.out.data(), made.lse.data(), &params, comm, stream),
                "seqparAllReduceLse", comm);
  if (stream != nullptr) expectSuccess(seqparStreamSynchronize(static_cast<seqparStream_t>(stream)), "synchronize");
  return made;
}

void scatter(const MergeCase& c, seqparComm_t comm, int rank, int ranks, const Merged& all) {
  int64_t first = 0, count = 0;
  expectSuccess(seqparHeadsOfMember(static_cast<int64_t>(c.heads), 0, ranks, rank, &first, &count), "heads");
  const auto params = paramsOf(c);
  const auto own = static_cast<size_t>(count);
  Merged made{Bytes(c.rows * own * c.rowBytes()), std::vector<float>(c.rows * own)};
  const auto self = static_cast<size_t>(rank);
  expectSuccess(
      seqparReduceScatterLseByHeads(c.out[self].data(), c.lse[self].data(), own > 0 ? made.out.data() : nullptr,
                                    own > 0 ? made.lse.data() : nullptr, &params, comm, nullptr),
      "seqparReduceScatterLseByHeads", comm);
  compare(c, made.out, made.lse, static_cast<size_t>(first), own, c.rows);
  for (size_t i = 0; i < c.rows * own; ++i) {
    const size_t row = i / own * c.heads + static_cast<size_t>(first) + i % own;
    expect(std::memcmp(made.out.data() + i * c.rowBytes(), all.out.data() + row * c.rowBytes(), c.rowBytes()) == 0,
           "row ", row, " of the reduce-scatter differs from the all-reduce");
  }
}

void checkRanks(int ranks, std::uint64_t seed) {
  std::mt19937_64 random(seed);
  for (int round = 0; round < (kSanitized ? 6 : 12); ++round) {
    const MergeCase c = randomMerge(random, static_cast<size_t>(ranks), round % 3 == 2);
    const bool inPlace = random() % 2 == 0;
    std::vector<Merged> results(static_cast<size_t>(ranks));
    const auto errors = onCommunicator(ranks, [&](seqparComm_t comm, int rank) {
      const auto self = static_cast<size_t>(rank);
      results[self] = reduceAll(c, comm, self, inPlace, nullptr, nullptr);
      compare(c, results[self].out, results[self].lse, 0, c.heads, c.rows);
      scatter(c, comm, rank, ranks, results[self]);
    });
    INFO("round " << round << ", " << ranks << " ranks");
    REQUIRE(errors == "");
    for (const auto& other : results) {
      CHECK(other.out == results[0].out);
      CHECK(std::memcmp(other.lse.data(), results[0].lse.data(), other.lse.size() * sizeof(float)) == 0);
    }
  }
}

/// Sets an environment variable while it exists.
struct Environment {
  Environment(const char* variable, const char* value) : name(variable) { setenv(name, value, 1); }
  Environment(const Environment&) = delete;
  Environment& operator=(const Environment&) = delete;
  ~Environment() { unsetenv(name); }
  const char* name;
};

}  // namespace

TEST_CASE("merges of partial attention equal fp64, with equal bits on all ranks") {
  const seqpar::test::Seed seed;
  for (int ranks = 1; ranks <= 5; ++ranks) checkRanks(ranks, seed + static_cast<unsigned>(ranks));
}

TEST_CASE("merges of partial attention by messages, with compared arguments") {
  const Environment network("SEQPAR_TRANSPORT", "network");
  const Environment check("SEQPAR_CHECK", "1");
  const seqpar::test::Seed seed;
  checkRanks(3, seed);
}

TEST_CASE("the number of rows is read when the work runs") {
  const seqpar::test::Seed seed;
  std::mt19937_64 random(seed);
  for (const bool large : {false, true}) {
    const MergeCase c = randomMerge(random, 3, large);
    const auto errors = onCommunicator(3, [&](seqparComm_t comm, int rank) {
      seqparStream_t stream = nullptr;
      expectSuccess(seqparStreamCreate(&stream), "seqparStreamCreate");
      for (size_t rows = 0; rows <= c.rows; rows += 1 + c.rows / 3) {
        const auto count = static_cast<int32_t>(rows);
        const auto made = reduceAll(c, comm, static_cast<size_t>(rank), false, &count, stream);
        compare(c, made.out, made.lse, 0, c.heads, rows);
        for (size_t i = rows * c.heads * c.rowBytes(); i < made.out.size(); ++i) {
          expect(made.out[i] == std::byte{0}, "a row beyond *rowCount was written");
        }
      }
      expectSuccess(seqparStreamDestroy(stream), "seqparStreamDestroy");
    });
    CHECK(errors == "");
  }
}

TEST_CASE("numbers of rows that differ or exceed the buffers are errors on all ranks") {
  for (const int32_t bad : {5, -1}) {
    for (const bool everywhere : {true, false}) {
      std::vector<seqparComm_t> comms(2);
      REQUIRE(seqparCommInitAll(comms.data(), 2, nullptr) == seqparSuccess);
      const auto errors = onThreads(2, [&](int rank) {
        const int32_t count = everywhere || rank == 1 ? bad : 2;
        seqparLseParams_t params = SEQPAR_LSE_PARAMS_INITIALIZER;
        params.rows = 4;
        params.rowCount = &count;
        const std::vector<float> out(4, 1.f), lse(4, 0.f);
        std::vector<float> outAll(4, -1.f), lseAll(4, -1.f);
        seqparComm_t comm = comms[static_cast<size_t>(rank)];
        const auto result =
            seqparAllReduceLse(out.data(), lse.data(), outAll.data(), lseAll.data(), &params, comm, nullptr);
        expect(result == (everywhere ? seqparInvalidArgument : seqparInvalidUsage), "result ", result);
        const std::string text = seqparGetLastError(comm);
        expect(text.find("*params->rowCount is " + std::to_string(bad)) != std::string::npos, text);
        expect(outAll[0] == -1.f, "a result after an error");
        seqparCommDestroy(comm);
      });
      CHECK(errors == "");
    }
  }
}

TEST_CASE("bad arguments of merges are refused by name") {
  seqparComm_t comm = nullptr;
  REQUIRE(seqparCommInitAll(&comm, 1, nullptr) == seqparSuccess);
  const std::vector<float> out(24, 1.f), lse(6, 0.f);
  std::vector<float> outAll(24, -1.f), lseAll(6, -1.f);
  seqparLseParams_t params = SEQPAR_LSE_PARAMS_INITIALIZER;
  params.rows = 3;
  params.heads = 2;
  params.headDim = 4;
  const auto refused = [&](seqparResult_t result, const char* text) {
    CHECK(result == seqparInvalidArgument);
    CHECK_THAT(seqparGetLastError(comm), Contains(text));
    CHECK(outAll[0] == -1.f);
  };
  const auto all = [&](const void* from, float* into, const seqparLseParams_t* shape) {
    return seqparAllReduceLse(from, lse.data(), into, lseAll.data(), shape, comm, nullptr);
  };
  const auto with = [&](auto change, const char* text) {
    seqparLseParams_t other = params;
    change(other);
    refused(all(out.data(), outAll.data(), &other), text);
    refused(seqparReduceScatterLseByHeads(out.data(), lse.data(), outAll.data(), lseAll.data(), &other, comm, nullptr),
            text);
  };
  with([](auto& p) { p.magic = 1; }, "magic");
  with([](auto& p) { p.dataType = 7; }, "params->dataType is 7");
  with([](auto& p) { p.rows = -1; }, "params->rows is -1");
  with([](auto& p) { p.heads = 0; }, "params->heads is 0");
  with([](auto& p) { p.headDim = 0; }, "params->headDim is 0");
  with([](auto& p) { p.rows = p.heads = p.headDim = int64_t{1} << 40; }, "overflows");
  refused(all(nullptr, outAll.data(), &params), "out is NULL");
  refused(all(out.data(), nullptr, &params), "outAll is NULL");
  refused(all(out.data(), outAll.data(), nullptr), "params is NULL");
  refused(seqparAllReduceLse(outAll.data() + 1, lse.data(), outAll.data(), lseAll.data(), &params, comm, nullptr),
          "overlaps");
  refused(
      seqparReduceScatterLseByHeads(outAll.data(), lse.data(), outAll.data(), lseAll.data(), &params, comm, nullptr),
      "overlaps");
  CHECK(all(out.data(), outAll.data(), &params) == seqparSuccess);
  CHECK(outAll == out);
  CHECK(lseAll == lse);
  CHECK(seqparCommDestroy(comm) == seqparSuccess);
}

TEST_CASE("the check mode names the argument of a merge that differs") {
  const Environment check("SEQPAR_CHECK", "1");
  const auto errors = onCommunicator(3, [](seqparComm_t comm, int rank) {
    seqparLseParams_t params = SEQPAR_LSE_PARAMS_INITIALIZER;
    params.rows = 2;
    params.heads = rank == 2 ? 3 : 4;
    const std::vector<float> out(8, 1.f), lse(8, 0.f);
    std::vector<float> outAll(8), lseAll(8);
    const auto result =
        seqparAllReduceLse(out.data(), lse.data(), outAll.data(), lseAll.data(), &params, comm, nullptr);
    expect(result == seqparInvalidUsage, "result ", result);
    const std::string text = seqparGetLastError(comm);
    expect(text.find("rank 2 has params->heads 3, rank 0 has 4") != std::string::npos, text);
  });
  CHECK(errors == "");
}
