// Ranks in one process, and the caller's allgather.
#include <catch2/catch.hpp>

#include "base/error.h"
#include "bootstrap/bootstrap.h"
#include "common/ranks.h"
#include "gathering.h"

using namespace seqpar;
using namespace seqpar::test;
using Catch::Contains;
using std::chrono::milliseconds;

TEST_CASE("threads gather through memory") {
  const int nranks = GENERATE(1, 2, 3, 5, 8);
  CAPTURE(nranks);
  auto group = makeLocalGroup(nranks, kNoTimeout);
  CHECK(onThreads(nranks, [&](int rank) { checkGathers(*group[static_cast<size_t>(rank)], rank, nranks, 50); }) == "");
}

TEST_CASE("threads: a missing member is named, and the group fails") {
  const auto wrong = withGrowingTimeout(100, [](int timeoutMs) {
    auto group = makeLocalGroup(3, milliseconds(timeoutMs));
    const auto errors = onThreads(3, [&](int rank) {
      if (rank == 2) return;
      const auto text = gatherError(*group[static_cast<size_t>(rank)], 4);
      const auto expected = concat("gather: rank 2 did not take part within ", timeoutMs, " ms");
      expect(text == expected, text);
    });
    CHECK_THROWS_WITH(checkGathers(*group[2], 2, 3, 1), Contains("rank 2 did not take part"));
    return errors;
  });
  CHECK(wrong == "");
}

TEST_CASE("threads: a closed member ends the waits of the others") {
  auto group = makeLocalGroup(3, kNoTimeout);
  const auto errors = onThreads(3, [&](int rank) {
    if (rank == 1) return group[1].reset();
    checkGathers(*group[static_cast<size_t>(rank)], rank, 3, 1);
  });
  CHECK_THAT(errors, Contains("rank 0: gather: rank 1 is gone"));
  CHECK_THAT(errors, Contains("rank 2: gather: rank 1 is gone"));
}

TEST_CASE("threads: different sizes name the ranks, and the next gather works") {
  auto group = makeLocalGroup(2, kNoTimeout);
  const auto errors = onThreads(2, [&](int rank) {
    auto& mine = *group[static_cast<size_t>(rank)];
    expect(gatherError(mine, rank == 1 ? 5 : 4).find("rank 1 gave 5 bytes, rank 0 gave 4") != std::string::npos,
           "text");
    checkGathers(mine, rank, 2, 1);
  });
  CHECK(errors == "");
}

TEST_CASE("the caller's allgather is used, and its failure is a RemoteError") {
  struct Context {
    int calls = 0;
    int code = 0;
  } context;
  seqparOob_t oob = SEQPAR_OOB_INITIALIZER;
  oob.nranks = 2;
  oob.rank = 1;
  oob.context = &context;
  oob.allgather = [](const void* mine, void* all, size_t bytes, void* given) {
    auto* state = static_cast<Context*>(given);
    ++state->calls;
    std::memset(all, 7, bytes);
    std::memcpy(static_cast<char*>(all) + bytes, mine, bytes);
    return state->code;
  };
  const auto wrapped = wrapOob(oob);
  std::array<int, 2> all{};
  wrapped->gatherValues(42, std::span<int>(all));
  CHECK(all == std::array<int, 2>{0x07070707, 42});
  CHECK(context.calls == 1);
  context.code = 13;
  try {
    wrapped->gatherValues(42, std::span<int>(all));
    FAIL("did not fail");
  } catch (const Error& error) {
    CHECK(error.result() == seqparRemoteError);
    CHECK_THAT(error.what(), Contains("oob->allgather returned 13 on rank 1"));
  }
  oob.rank = 2;
  CHECK_THROWS_WITH(wrapOob(oob), Contains("oob->rank is 2, expected 0..1"));
  oob.allgather = nullptr;
  CHECK_THROWS_WITH(wrapOob(oob), Contains("oob->allgather is NULL"));
}
