// The C functions of seqpar/layout.h: their results and their refusals.
#include <catch2/catch.hpp>

#include <array>
#include <cstdlib>
#include <cstring>

#include "common/ranks.h"
#include "support/naive_layout.h"

using namespace seqpar::test;
using Catch::Matchers::Contains;

namespace {

seqparLayout_t contiguous(int ranks, int64_t tokens) {
  return LayoutCase{seqparContiguous, ranks, tokens, 1, 1, {}}.get();
}

void checkRefused(const seqparLayout_t& layout, const std::string& words) {
  int64_t length = -7;
  CHECK(seqparLayoutLocalLength(&layout, 0, &length) == seqparInvalidArgument);
  CHECK_THAT(seqparGetLastError(nullptr), Contains("seqparLayoutLocalLength: layout->") && Contains(words));
  CHECK(length == -7);
}

}  // namespace

TEST_CASE("Index maps agree with the layout") {
  const LayoutCase given{seqparZigzag, 3, 41, 1, 1, {0, 11, 11, 30, 41}};
  const auto layout = given.get();
  const auto lists = dealTokens(given);
  for (int rank = 0; rank < 3; ++rank) {
    const auto& tokens = lists[static_cast<size_t>(rank)];
    int64_t length = 0;
    REQUIRE(seqparLayoutLocalLength(&layout, rank, &length) == seqparSuccess);
    REQUIRE(length == static_cast<int64_t>(tokens.size()));
    std::vector<int64_t> globals(tokens.size());
    REQUIRE(seqparLayoutGlobals(&layout, rank, globals.data()) == seqparSuccess);
    CHECK(globals == tokens);
    for (int64_t i = 0; i < length; ++i) {
      int64_t global = -1;
      int64_t local = -1;
      int owner = -1;
      REQUIRE(seqparLayoutToGlobal(&layout, rank, i, &global) == seqparSuccess);
      REQUIRE(seqparLayoutToLocal(&layout, global, &owner, &local) == seqparSuccess);
      CHECK(global == tokens[static_cast<size_t>(i)]);
      CHECK(owner == rank);
      CHECK(local == i);
    }

    int64_t count = 0;
    REQUIRE(seqparLayoutRuns(&layout, rank, nullptr, 0, &count) == seqparSuccess);
    REQUIRE(count > 2);
    std::vector<seqparLayoutRun_t> runs(static_cast<size_t>(count) + 1);
    std::memset(runs.data(), 0x7f, sizeof(seqparLayoutRun_t) * runs.size());
    const auto untouched = runs.back().local;
    REQUIRE(seqparLayoutRuns(&layout, rank, runs.data(), count - 1, &count) == seqparSuccess);
    CHECK(runs[static_cast<size_t>(count) - 1].local == untouched);
    REQUIRE(seqparLayoutRuns(&layout, rank, runs.data(), count + 1, &count) == seqparSuccess);
    CHECK(runs[0].global == tokens[0]);
    CHECK(runs[static_cast<size_t>(count) - 1].local != untouched);
    CHECK(runs.back().local == untouched);

    std::vector<int64_t> bounds(given.bounds.size());
    REQUIRE(seqparLayoutLocalCuSeqlens(&layout, rank, given.bounds.data(), 4, bounds.data()) == seqparSuccess);
    for (size_t s = 0; s < bounds.size(); ++s) {
      CHECK(bounds[s] == std::lower_bound(tokens.begin(), tokens.end(), given.bounds[s]) - tokens.begin());
    }
  }
}

TEST_CASE("Invalid layouts are refused with an error text") {
  auto layout = contiguous(4, 100);
  layout.kind = 4;
  checkRefused(layout, "kind is 4, expected 0 to 3");
  layout = contiguous(0, 100);
  checkRefused(layout, "ranks is 0, expected 1 to");
  layout = contiguous(4, -1);
  checkRefused(layout, "tokens is -1, expected 0 to");
  layout = contiguous(4, 100);
  layout.kind = seqparStriped;
  layout.stripe = 0;
  checkRefused(layout, "stripe is 0, expected 1 to");
  layout = contiguous(4, 100);
  layout.slices = 3;
  checkRefused(layout, "slices is 3, expected a divisor of ranks = 4");
  layout = contiguous(4, 100);
  layout.sequences = 2;
  checkRefused(layout, "expected NULL and 0, or sequences + 1 numbers");
  std::vector<int64_t> bounds{0, 60, 40, 100};
  layout.sequences = 3;
  layout.cuSeqlens = bounds.data();
  checkRefused(layout, "cuSeqlens[2] is 40, expected 60 to 100");
  bounds = {1, 40, 60, 100};
  checkRefused(layout, "cuSeqlens[0] is 1, expected 0 to 0");
  bounds = {0, 40, 60, 99};
  checkRefused(layout, "cuSeqlens[3] is 99, expected 100 to 100");
  layout.sequences = -1;
  checkRefused(layout, "sequences is -1");
  layout = contiguous(4, 100);
  layout.kind = seqparPieces;
  checkRefused(layout, "pieces is 0, expected 1 to");
  layout.pieces = 3;
  checkRefused(layout, "pieceBounds is NULL");
  bounds = {0, 60, 40, 100};
  layout.pieceBounds = bounds.data();
  checkRefused(layout, "pieceBounds[2] is 40, expected 60 to 100");
  bounds = {0, 40, 60, 100};
  checkRefused(layout, "pieceOwners is NULL");
  std::vector<int> owners{0, 4, 1};
  layout.pieceOwners = owners.data();
  checkRefused(layout, "pieceOwners[1] is 4, expected 0 to 3");
  owners[1] = -1;
  checkRefused(layout, "pieceOwners[1] is -1, expected 0 to 3");
  owners[1] = 3;
  layout.sequences = 3;
  layout.cuSeqlens = bounds.data();
  checkRefused(layout, "sequences is 3, expected 0 to 0");
  layout.magic = 1;
  checkRefused(layout, "magic");
}

TEST_CASE("Indices out of range and missing outputs are refused with an error text") {
  const auto layout = contiguous(4, 10);
  int64_t number = -7;
  int rank = -7;
  const auto refused = [](seqparResult_t result, const std::string& words) {
    CHECK(result == seqparInvalidArgument);
    CHECK_THAT(seqparGetLastError(nullptr), Contains(words));
  };
  refused(seqparLayoutLocalLength(&layout, 4, &number), "rank is 4, expected 0 or more and less than 4");
  refused(seqparLayoutLocalLength(nullptr, 0, &number), "layout is NULL");
  refused(seqparLayoutLocalLength(&layout, 0, nullptr), "length is NULL");
  refused(seqparLayoutToGlobal(&layout, 3, 2, &number), "local is 2, expected 0 or more and less than 2");
  refused(seqparLayoutToLocal(&layout, 10, &rank, &number), "global is 10, expected 0 or more and less than 10");
  refused(seqparLayoutToLocal(&layout, 3, &rank, nullptr), "local is NULL");
  refused(seqparLayoutGlobals(&layout, 0, nullptr), "globals is NULL");
  refused(seqparLayoutRuns(&layout, 0, nullptr, 1, &number), "runs is NULL");
  const int64_t bounds[] = {0, 4, 9};
  refused(seqparLayoutLocalCuSeqlens(&layout, 0, bounds, 2, &number), "cuSeqlens[2] is 9, expected 10 to 10");
  CHECK(number == -7);
  CHECK(rank == -7);
}

TEST_CASE("Invalid plans and misuse of a plan are refused with an error text") {
  const auto errors = onCommunicator(2, [](seqparComm_t comm, int rank) {
    const auto refused = [&](seqparResult_t result, const std::string& words) {
      expect(result == seqparInvalidArgument, words, ": got ", seqparGetErrorString(result));
      const std::string text = seqparGetLastError(nullptr);
      expect(text.find(words) != std::string::npos, "expected '", words, "' in '", text, "'");
    };
    const auto two = contiguous(2, 10);
    const auto three = contiguous(3, 10);
    const auto other = contiguous(2, 11);
    const int64_t row = 4;
    const int64_t negative = -1;
    const int64_t huge = INT64_MAX / 4;
    seqparRedistributePlan_t plan = nullptr;
    const auto create = [&](const seqparLayout_t& from, const seqparLayout_t& to, int tensors, const int64_t* outer,
                            const int64_t* rowBytes) {
      return seqparRedistributePlanCreate(&plan, &from, &to, tensors, outer, rowBytes, comm);
    };
    refused(create(three, two, 1, nullptr, &row), "from->ranks is 3, expected the 2 of comm");
    refused(create(two, three, 1, nullptr, &row), "to->ranks is 3, expected the 2 of comm");
    refused(create(two, other, 1, nullptr, &row), "to->tokens is 11, expected from->tokens = 10");
    refused(create(two, two, -1, nullptr, &row), "tensors is -1");
    refused(create(two, two, 1, nullptr, nullptr), "rowBytes is NULL");
    refused(create(two, two, 1, &negative, &row), "outer[0] is -1");
    refused(create(two, two, 1, nullptr, &negative), "rowBytes[0] is -1");
    refused(create(two, two, 1, nullptr, &huge), "overflows");
    refused(seqparRedistributePlanCreate(nullptr, &two, &two, 1, nullptr, &row, comm), "plan is NULL");
    expect(plan == nullptr, "a refused plan was made");

    expectSuccess(create(two, two, 1, nullptr, &row), "seqparRedistributePlanCreate", comm);
    std::vector<float> memory(16, static_cast<float>(rank));
    const void* send = memory.data();
    void* receive = memory.data() + 4;
    void* nothing = nullptr;
    refused(seqparRedistribute(plan, &send, &nothing, nullptr), "receive[0] is NULL");
    refused(seqparRedistribute(plan, nullptr, &receive, nullptr), "send is NULL");
    refused(seqparRedistribute(plan, &send, &receive, nullptr), "overlaps");
    receive = memory.data() + 8;
    refused(seqparRedistribute(plan, &send, &receive, &memory), "stream is ");
    refused(seqparRedistribute(nullptr, &send, &receive, nullptr), "plan is ");
    expectSuccess(seqparRedistributePlanDestroy(plan), "seqparRedistributePlanDestroy");
    refused(seqparRedistributePlanDestroy(plan), "plan is ");
    refused(seqparRedistribute(plan, &send, &receive, nullptr), "plan is ");
    expectSuccess(seqparRedistributePlanDestroy(nullptr), "seqparRedistributePlanDestroy");
  });
  CHECK(errors == "");
}

TEST_CASE("With argument checks, ranks that disagree about a plan get an error") {
  setenv("SEQPAR_CHECK", "1", 1);
  const auto errors = onCommunicator(2, [](seqparComm_t comm, int rank) {
    const auto disagree = [&](seqparResult_t result, const std::string& words) {
      expect(result == seqparInvalidUsage, words, ": got ", seqparGetErrorString(result));
      const std::string text = seqparGetLastError(comm);
      expect(text.find(words) != std::string::npos, "expected '", words, "' in '", text, "'");
    };
    seqparRedistributePlan_t plan = nullptr;
    const auto create = [&](const LayoutCase& from, int64_t row) {
      const auto had = from.get();
      const auto expected = contiguous(2, 10);
      return seqparRedistributePlanCreate(&plan, &had, &expected, 1, nullptr, &row, comm);
    };
    const LayoutCase zigzag{seqparZigzag, 2, 10, 1, 1, {0, 4, 10}};
    auto other = zigzag;
    other.bounds[1] += rank;
    disagree(create(other, 4), "rank 1 has from->cuSeqlens[1] 5, rank 0 has 4");
    disagree(create(zigzag, 4 + rank), "rank 1 has rowBytes[0] 5, rank 0 has 4");
    other.bounds = zigzag.bounds;
    other.kind = rank == 0 ? seqparZigzag : seqparStriped;
    disagree(create(other, 4), "rank 1 has from->kind 2, rank 0 has 1");
    expect(plan == nullptr, "a plan was made");

    expectSuccess(create(zigzag, 4), "seqparRedistributePlanCreate", comm);
    auto* const first = plan;
    expectSuccess(create(zigzag, 8), "seqparRedistributePlanCreate", comm);
    std::vector<std::byte> send(80);
    std::vector<std::byte> receive(80);
    const void* from = send.data();
    void* into = receive.data();
    disagree(seqparRedistribute(rank == 0 ? first : plan, &from, &into, nullptr), "rank 1 has the fingerprint of plan");
    expectSuccess(seqparRedistribute(first, &from, &into, nullptr), "seqparRedistribute", comm);
    expectSuccess(seqparRedistributePlanDestroy(first), "seqparRedistributePlanDestroy");
    expectSuccess(seqparRedistributePlanDestroy(plan), "seqparRedistributePlanDestroy");
  });
  unsetenv("SEQPAR_CHECK");
  CHECK(errors == "");
}

TEST_CASE("Without argument checks, data of another plan is an error") {
  // Both layouts move as many bytes between the ranks. The sizes are those of short messages, messages in a ring, and
  // data that is read in place.
  const int64_t tokens = GENERATE(8, 4096, 1 << 18);
  const std::string transport = GENERATE("auto", "network");
  CAPTURE(tokens, transport);
  setenv("SEQPAR_TRANSPORT", transport.c_str(), 1);
  std::array<std::string, 2> texts;
  std::array<seqparComm_t, 2> comms{};
  REQUIRE(seqparCommInitAll(comms.data(), 2, nullptr) == seqparSuccess);
  const auto errors = onThreads(2, [&](int rank) {
    auto* const comm = comms.at(static_cast<size_t>(rank));
    const auto move = [&](const LayoutCase& from) {
      const auto had = from.get();
      const auto expected = contiguous(2, tokens);
      const int64_t row = 4;
      seqparRedistributePlan_t plan = nullptr;
      expectSuccess(seqparRedistributePlanCreate(&plan, &had, &expected, 1, nullptr, &row, comm), "create", comm);
      const std::vector<std::byte> send(static_cast<size_t>(2 * tokens));
      std::vector<std::byte> receive(send.size());
      const void* source = send.data();
      void* target = receive.data();
      const auto result = seqparRedistribute(plan, &source, &target, nullptr);
      if (result != seqparSuccess) texts.at(static_cast<size_t>(rank)) = seqparGetLastError(comm);
      expectSuccess(seqparRedistributePlanDestroy(plan), "seqparRedistributePlanDestroy");
      return result;
    };
    const LayoutCase zigzag{seqparZigzag, 2, tokens, 1, 1, {}};
    const LayoutCase striped{seqparStriped, 2, tokens, 1, 1, {}};
    for (const auto& same : {zigzag, striped}) expectSuccess(move(same), "seqparRedistribute", comm);
    const auto result = move(rank == 0 ? zigzag : striped);
    // The rank that reads the other's data first tells it.
    expect(result == seqparInternalError || result == seqparRemoteError, "got ", seqparGetErrorString(result));
  });
  for (auto* const comm : comms) seqparCommAbort(comm);
  unsetenv("SEQPAR_TRANSPORT");
  CHECK(errors == "");
  for (const auto& text : texts) CHECK_THAT(text, Contains("the ranks disagree about the operation"));
}

TEST_CASE("A plan outlives its communicator but refuses to run") {
  seqparRedistributePlan_t plan = nullptr;
  const auto layout = contiguous(1, 4);
  const int64_t row = 4;
  REQUIRE(onCommunicator(1, [&](seqparComm_t comm, int) {
            expectSuccess(seqparRedistributePlanCreate(&plan, &layout, &layout, 1, nullptr, &row, comm), "create");
          }) == "");
  const float values[4] = {};
  float out[4] = {1, 1, 1, 1};
  const void* send = values;
  void* receive = out;
  CHECK(seqparRedistribute(plan, &send, &receive, nullptr) == seqparInvalidArgument);
  CHECK(out[0] == 1);
  CHECK(seqparRedistributePlanDestroy(plan) == seqparSuccess);
}
