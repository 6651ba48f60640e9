// Bad input to the calls of seqpar/exchange.h: refused by name, before anything is sent.
#include <catch2/catch.hpp>
#include <limits>
#include <string>
#include <vector>

#include "common/ranks.h"
#include "seqpar/exchange.h"

using namespace seqpar::test;
using Catch::Matchers::Contains;

namespace {

constexpr int64_t kHuge = std::numeric_limits<int64_t>::max();

/// One rank, buffers that fit valid shapes, and a way to invalidate one argument at a time.
struct OneRank {
  OneRank() {
    REQUIRE(seqparCommInitAll(&comm, 1, nullptr) == seqparSuccess);
    heads.heads = 2;
    heads.headDim = 3;
    heads.tokens = 4;
    shards.outer = 2;
    shards.tokens = 4;
    shards.inner = 3;
    halo.left = halo.right = 2;
  }
  OneRank(const OneRank&) = delete;
  OneRank& operator=(const OneRank&) = delete;
  ~OneRank() { seqparCommDestroy(comm); }

  void refused(seqparResult_t result, const char* call, const std::vector<std::string>& words,
               seqparResult_t expected = seqparInvalidArgument) const {
    CHECK(result == expected);
    const std::string text = seqparGetLastError(comm);
    CHECK_THAT(text, Contains(call));
    for (const auto& word : words) CHECK_THAT(text, Contains(word));
    for (const float value : out) CHECK(value == -1.f);
  }
  /// Calls that share the checks of a shape.
  void refusedHeads(const std::vector<std::string>& words) {
    refused(seqparSequenceToHeads(in.data(), out.data(), &heads, comm, nullptr), "seqparSequenceToHeads", words);
    refused(seqparHeadsToSequence(in.data(), out.data(), &heads, comm, nullptr), "seqparHeadsToSequence", words);
  }
  void refusedShards(const std::vector<std::string>& words) {
    refused(seqparAllGather(in.data(), out.data(), &shards, comm, nullptr), "seqparAllGather", words);
    refused(seqparReduceScatter(in.data(), out.data(), &shards, comm, nullptr), "seqparReduceScatter", words);
    refused(merge(), "seqparReduceScatterLse", words);
    refused(fetch(), "seqparHaloExchange", words);
    refused(seqparHaloAdjoint(in.data(), in.data() + 40, out.data(), &halo, &shards, comm, nullptr),
            "seqparHaloAdjoint", words);
  }
  seqparResult_t merge(int64_t headCount = 3) {
    return seqparReduceScatterLse(in.data(), in.data() + 40, out.data(), out.data() + 40, headCount, &shards, comm,
                                  nullptr);
  }
  seqparResult_t fetch() {
    return seqparHaloExchange(in.data(), out.data(), out.data() + 40, &halo, &shards, comm, nullptr);
  }

  seqparComm_t comm = nullptr;
  seqparHeadShards_t heads = SEQPAR_HEAD_SHARDS_INITIALIZER;
  seqparShards_t shards = SEQPAR_SHARDS_INITIALIZER;
  seqparHalo_t halo = SEQPAR_HALO_INITIALIZER;
  std::vector<float> in = std::vector<float>(100, 1.f);
  std::vector<float> out = std::vector<float>(100, -1.f);
};

}  // namespace

TEST_CASE("the unspoiled exchanges run") {
  OneRank one;
  CHECK(seqparSequenceToHeads(one.in.data(), one.out.data(), &one.heads, one.comm, nullptr) == seqparSuccess);
  CHECK(seqparHeadsToSequence(one.in.data(), one.out.data(), &one.heads, one.comm, nullptr) == seqparSuccess);
  CHECK(seqparAllGather(one.in.data(), one.out.data(), &one.shards, one.comm, nullptr) == seqparSuccess);
  CHECK(seqparReduceScatter(one.in.data(), one.out.data(), &one.shards, one.comm, nullptr) == seqparSuccess);
  CHECK(one.out[23] == 1.f);
  CHECK(one.out[24] == -1.f);
  CHECK(one.merge() == seqparSuccess);
  CHECK(one.out[40] == 1.f);
  CHECK(one.fetch() == seqparSuccess);
  CHECK(one.out[0] == 0.f);
  CHECK(seqparHaloAdjoint(one.in.data(), one.in.data(), one.out.data(), &one.halo, &one.shards, one.comm, nullptr) ==
        seqparSuccess);
}

TEST_CASE("ranges that are not valid, and misuse of their plan, are refused") {
  OneRank one;
  seqparRangesPlan_t plan = nullptr;
  const auto create = [&](std::vector<seqparRange_t> ranges) {
    const auto count = static_cast<int64_t>(ranges.size());
    return seqparRangesPlanCreate(&plan, &one.shards, &count, ranges.data(), one.comm);
  };
  const char* const call = "seqparRangesPlanCreate";
  one.refused(create({{0, 1}, {-1, 2}}), call, {"ranges[1].first is -1, expected 0 to 4"});
  one.refused(create({{5, 0}}), call, {"ranges[0].first is 5, expected 0 to 4"});
  one.refused(create({{3, 2}}), call, {"ranges[0].count is 2, expected 0 to 1"});
  one.refused(create({{3, kHuge}}), call, {"ranges[0].count is"});
  one.refused(create({{2, 2}, {3, 0}, {0, 3}}), call, {"two ranges of rank 0 contain token 2"});
  const int64_t negative = -1, count = 1;
  one.refused(seqparRangesPlanCreate(&plan, &one.shards, &negative, nullptr, one.comm), call,
              {"rangesOfRanks[0] is -1"});
  one.refused(seqparRangesPlanCreate(&plan, &one.shards, nullptr, nullptr, one.comm), call, {"rangesOfRanks is NULL"});
  one.refused(seqparRangesPlanCreate(&plan, &one.shards, &count, nullptr, one.comm), call, {"ranges is NULL"});
  one.refused(seqparRangesPlanCreate(nullptr, &one.shards, &count, nullptr, one.comm), call, {"plan is NULL"});
  one.refused(seqparRangesPlanCreate(&plan, nullptr, &count, nullptr, one.comm), call, {"shards is NULL"});
  const int self = 0;
  one.shards.group = &self;
  one.shards.groupSize = 1;
  one.refused(create({{0, 1}}), call, {"shards->group is an array, expected NULL"});
  one.shards.group = nullptr;
  one.shards.groupSize = 0;
  CHECK(plan == nullptr);

  CHECK(create({{3, 1}, {0, 2}}) == seqparSuccess);
  one.refused(seqparGatherRanges(plan, nullptr, one.out.data(), nullptr), "seqparGatherRanges", {"shard is NULL"});
  one.refused(seqparGatherRanges(plan, one.in.data(), nullptr, nullptr), "seqparGatherRanges", {"part is NULL"});
  one.refused(seqparGatherRanges(plan, one.out.data(), one.out.data() + 20, nullptr), "seqparGatherRanges",
              {"overlaps"});
  one.refused(seqparScatterRanges(plan, one.out.data(), one.out.data() + 5, nullptr), "seqparScatterRanges",
              {"overlaps"});
  for (size_t i = 0; i < 24; ++i) one.in[i] = static_cast<float>(i);
  CHECK(seqparGatherRanges(plan, one.in.data(), one.out.data(), nullptr) == seqparSuccess);
  CHECK(std::vector<float>(one.out.begin(), one.out.begin() + 9) ==
        std::vector<float>{9, 10, 11, 0, 1, 2, 3, 4, 5});  // then the second array
  CHECK(one.out[9] == 21);
  std::vector<float> sums(24, -2.f);
  CHECK(seqparScatterRanges(plan, one.out.data(), sums.data(), nullptr) == seqparSuccess);
  for (size_t i = 0; i < 24; ++i) CHECK(sums[i] == (i % 12 >= 6 && i % 12 < 9 ? -2.f : static_cast<float>(i)));
  CHECK(seqparRangesPlanDestroy(plan) == seqparSuccess);
  CHECK(seqparRangesPlanDestroy(plan) == seqparInvalidArgument);
  CHECK(seqparGatherRanges(plan, one.in.data(), one.out.data(), nullptr) == seqparInvalidArgument);
  CHECK(seqparRangesPlanDestroy(nullptr) == seqparSuccess);
}

TEST_CASE("empty arrays need no memory") {
  OneRank one;
  one.heads.tokens = one.shards.tokens = one.halo.left = one.halo.right = 0;
  CHECK(seqparSequenceToHeads(nullptr, nullptr, &one.heads, one.comm, nullptr) == seqparSuccess);
  CHECK(seqparHeadsToSequence(nullptr, nullptr, &one.heads, one.comm, nullptr) == seqparSuccess);
  CHECK(seqparAllGather(nullptr, nullptr, &one.shards, one.comm, nullptr) == seqparSuccess);
  CHECK(seqparReduceScatter(nullptr, nullptr, &one.shards, one.comm, nullptr) == seqparSuccess);
  CHECK(seqparReduceScatterLse(nullptr, nullptr, nullptr, nullptr, 3, &one.shards, one.comm, nullptr) == seqparSuccess);
  CHECK(seqparHaloExchange(nullptr, nullptr, nullptr, &one.halo, &one.shards, one.comm, nullptr) == seqparSuccess);
  CHECK(seqparHaloAdjoint(nullptr, nullptr, nullptr, &one.halo, &one.shards, one.comm, nullptr) == seqparSuccess);
}

TEST_CASE("invalid shapes are refused") {
  OneRank one;
  SECTION("magic") {
    one.heads.magic = one.shards.magic = 5;
    one.refusedHeads({"shards->magic", "5"});
    one.refusedShards({"shards->magic", "5"});
  }
  SECTION("type") {
    one.heads.dataType = one.shards.dataType = 3;
    one.refusedHeads({"shards->dataType", "3", "0 to 2"});
    one.refusedShards({"shards->dataType", "3", "0 to 2"});
  }
  SECTION("negative tokens") {
    one.heads.tokens = one.shards.tokens = -1;
    one.refusedHeads({"shards->tokens", "-1"});
    one.refusedShards({"shards->tokens", "-1"});
  }
  SECTION("negative tokens of a member") {
    const int64_t tokens = -2;
    one.heads.tokensOfMembers = one.shards.tokensOfMembers = &tokens;
    one.refusedHeads({"shards->tokensOfMembers[0]", "-2"});
    one.refusedShards({"shards->tokensOfMembers[0]", "-2"});
  }
  SECTION("negative CTAs") {
    one.shards.ctas = -1;
    one.refusedShards({"shards->ctas", "-1", "0 or more"});
  }
  SECTION("too large") {
    one.heads.headDim = one.shards.inner = kHuge;
    one.refusedHeads({"overflows"});
    one.refusedShards({"overflows"});
  }
  SECTION("a group's size without a group") {
    one.heads.groupSize = one.shards.groupSize = 1;
    one.refusedHeads({"shards->groupSize", "1", "0"});
    one.refusedShards({"shards->groupSize", "1", "0"});
  }
  SECTION("a rank beyond the last") {
    const int group = 1;
    one.heads.group = one.shards.group = &group;
    one.heads.groupSize = one.shards.groupSize = 1;
    one.refusedHeads({"shards->group[0]", "1", "0 to 0"});
    one.refusedShards({"shards->group[0]", "1", "0 to 0"});
  }
  SECTION("heads") {
    one.heads.heads = 0;
    one.refusedHeads({"heads", "0", "1 or more"});
  }
  SECTION("query heads") {
    one.heads.queryHeads = 3;
    one.refusedHeads({"queryHeads", "3", "multiple of heads = 2"});
  }
  SECTION("heads of a merge") {
    one.refused(one.merge(2), "seqparReduceScatterLse", {"heads is 2", "divisor of shards->inner = 3"});
    one.refused(one.merge(0), "seqparReduceScatterLse", {"heads is 0"});
  }
  SECTION("halo") {
    one.halo.left = -1;
    one.refused(one.fetch(), "seqparHaloExchange", {"halo->left", "-1"});
    one.halo.left = int64_t{1} << 48;
    one.shards.inner = int64_t{1} << 20;
    one.refused(one.fetch(), "seqparHaloExchange", {"halo->left", "overflows"});
    one.halo.magic = 0;
    one.refused(one.fetch(), "seqparHaloExchange", {"halo->magic"});
  }
}

TEST_CASE("missing and overlapping buffers are refused") {
  OneRank one;
  one.refused(seqparSequenceToHeads(nullptr, one.out.data(), &one.heads, one.comm, nullptr), "seqparSequenceToHeads",
              {"sequence is NULL"});
  one.refused(seqparHeadsToSequence(one.in.data(), nullptr, &one.heads, one.comm, nullptr), "seqparHeadsToSequence",
              {"sequence is NULL"});
  one.refused(seqparHaloExchange(one.in.data(), nullptr, one.out.data(), &one.halo, &one.shards, one.comm, nullptr),
              "seqparHaloExchange", {"leftHalo is NULL"});
  one.refused(seqparSequenceToHeads(one.in.data(), one.in.data() + 1, &one.heads, one.comm, nullptr),
              "seqparSequenceToHeads", {"overlaps"});
  one.refused(seqparAllGather(one.in.data(), one.in.data(), &one.shards, one.comm, nullptr), "seqparAllGather",
              {"overlaps"});
  one.refused(seqparReduceScatterLse(one.in.data(), one.in.data(), one.out.data(), one.out.data() + 20, 3, &one.shards,
                                     one.comm, nullptr),
              "seqparReduceScatterLse", {"outShard", "overlaps lseShard"});
  one.refused(
      seqparHaloExchange(one.in.data(), one.out.data(), one.out.data() + 11, &one.halo, &one.shards, one.comm, nullptr),
      "seqparHaloExchange", {"leftHalo", "overlaps rightHalo"});
  one.shards.outer = 1;
  CHECK(seqparAllGather(one.in.data(), one.in.data(), &one.shards, one.comm, nullptr) == seqparSuccess);
}

TEST_CASE("invalid head counts of members are refused") {
  int64_t first = 0, count = 0;
  CHECK(seqparHeadsOfMember(4, 0, 3, 3, &first, &count) == seqparInvalidArgument);
  CHECK_THAT(seqparGetLastError(nullptr), Contains("member is 3") && Contains("0 to 2"));
  CHECK(seqparHeadsOfMember(4, 6, 3, 0, &first, &count) == seqparInvalidArgument);
  CHECK(seqparHeadsOfMember(0, 0, 3, 0, &first, &count) == seqparInvalidArgument);
  CHECK(seqparHeadsOfMember(4, 0, 0, 0, &first, &count) == seqparInvalidArgument);
  CHECK(seqparHeadsOfMember(4, 0, 3, 0, nullptr, &count) == seqparInvalidArgument);
  CHECK(seqparHeadsOfMember(2, 8, 4, 3, &first, &count) == seqparSuccess);
  CHECK(first == 1);
  CHECK(count == 1);
}

TEST_CASE("a group contains each member once and the caller") {
  const auto errors = onCommunicator(3, [](seqparComm_t comm, int rank) {
    seqparShards_t shards = SEQPAR_SHARDS_INITIALIZER;
    shards.tokens = 1;
    const float mine = static_cast<float>(rank);
    float whole[3] = {-1, -1, -1};
    const int twice[] = {0, 0};
    shards.group = twice;
    shards.groupSize = 2;
    expect(seqparAllGather(&mine, whole, &shards, comm, nullptr) == seqparInvalidArgument, "a rank twice");
    const int without[] = {(rank + 1) % 3, (rank + 2) % 3};
    shards.group = without;
    expect(seqparAllGather(&mine, whole, &shards, comm, nullptr) == seqparInvalidArgument, "without the caller");
    shards.groupSize = 4;
    expect(seqparAllGather(&mine, whole, &shards, comm, nullptr) == seqparInvalidArgument, "too many");
    const int all[] = {2, 0, 1};
    shards.group = all;
    shards.groupSize = 3;
    expectSuccess(seqparAllGather(&mine, whole, &shards, comm, nullptr), "seqparAllGather", comm);
    expect(whole[0] == 2 && whole[1] == 0 && whole[2] == 1, "the shards are not in the order of the group");
  });
  INFO(errors);
  CHECK(errors.empty());
}

TEST_CASE("a member without heads refuses the same arguments as the others") {
  const auto errors = onCommunicator(3, [](seqparComm_t comm, int rank) {
    seqparHeadShards_t shards = SEQPAR_HEAD_SHARDS_INITIALIZER;
    shards.heads = 2;  // none on rank 2
    shards.headDim = 4;
    shards.tokens = 2;
    std::vector<float> array(64, 1.0F);
    for (const auto call : {seqparSequenceToHeads, seqparHeadsToSequence}) {
      const auto result = call(array.data(), array.data(), &shards, comm, nullptr);
      const std::string text = seqparGetLastError(comm);
      expect(result == seqparInvalidArgument && text.find("overlaps") != std::string::npos, result, ": ", text);
    }
    float* const head = rank == 2 ? nullptr : array.data() + 16;
    expectSuccess(seqparSequenceToHeads(array.data(), head, &shards, comm, nullptr), "seqparSequenceToHeads", comm);
  });
  INFO(errors);
  CHECK(errors.empty());
}
