// Repeated exchanges, which use cached checks and routes.
#include <algorithm>
#include <array>
#include <catch2/catch.hpp>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "common/ranks.h"
#include "seqpar/exchange.h"
#include "unit/seed.h"

using namespace seqpar::test;

namespace {

/// The value of an element of the whole array [tokens][inner] in a step; differs between neighbors and steps.
float elementAt(int step, size_t token, size_t index) {
  return static_cast<float>((static_cast<size_t>(step) * 31 + token * 7 + index) % 1021);
}

seqparShards_t shardsOf(int64_t tokens, int64_t inner) {
  seqparShards_t shards = SEQPAR_SHARDS_INITIALIZER;
  shards.tokens = tokens;
  shards.inner = inner;
  return shards;
}

void wait(seqparStream_t stream) {
  if (stream != nullptr) expectSuccess(seqparStreamSynchronize(stream), "seqparStreamSynchronize");
}

void gatherAndCheck(int step, int rank, int ranks, const seqparShards_t& shards, seqparComm_t comm,
                    seqparStream_t stream) {
  const auto tokens = static_cast<size_t>(shards.tokens), inner = static_cast<size_t>(shards.inner);
  std::vector<float> shard(tokens * inner), whole(static_cast<size_t>(ranks) * tokens * inner, -7.0F);
  for (size_t i = 0; i < shard.size(); ++i) {
    shard[i] = elementAt(step, static_cast<size_t>(rank) * tokens + i / inner, i % inner);
  }
  expectSuccess(seqparAllGather(shard.data(), whole.data(), &shards, comm, stream), "seqparAllGather", comm);
  wait(stream);
  for (size_t i = 0; i < whole.size(); ++i) {
    expect(whole[i] == elementAt(step, i / inner, i % inner), "step ", step, ", element ", i, ": ", whole[i]);
  }
}

/// To heads and back.
void transposeAndCheck(int step, int rank, int ranks, int64_t tokens, int64_t heads, int64_t headDim, seqparComm_t comm,
                       seqparStream_t stream) {
  seqparHeadShards_t shards = SEQPAR_HEAD_SHARDS_INITIALIZER;
  shards.tokens = tokens;
  shards.heads = heads;
  shards.headDim = headDim;
  const auto count = static_cast<size_t>(tokens), row = static_cast<size_t>(heads * headDim);
  int64_t first = 0, own = 0;
  expectSuccess(seqparHeadsOfMember(heads, 0, ranks, rank, &first, &own), "seqparHeadsOfMember");
  const auto part = static_cast<size_t>(own * headDim), begin = static_cast<size_t>(first * headDim);
  std::vector<float> sequence(count * row), head(static_cast<size_t>(ranks) * count * part, -7.0F);
  for (size_t i = 0; i < sequence.size(); ++i) {
    sequence[i] = elementAt(step, static_cast<size_t>(rank) * count + i / row, i % row);
  }
  expectSuccess(seqparSequenceToHeads(sequence.data(), head.data(), &shards, comm, stream), "seqparSequenceToHeads",
                comm);
  wait(stream);
  for (size_t i = 0; i < head.size(); ++i) {
    expect(head[i] == elementAt(step, i / part, begin + i % part), "step ", step, ", head element ", i, ": ", head[i]);
  }
  const std::vector<float> before = std::exchange(sequence, std::vector<float>(sequence.size(), -7.0F));
  expectSuccess(seqparHeadsToSequence(head.data(), sequence.data(), &shards, comm, stream), "seqparHeadsToSequence",
                comm);
  wait(stream);
  expect(sequence == before, "step ", step, ": the way back gives other values");
}

}  // namespace

TEST_CASE("exchanges of known shapes move the buffers of every call, also on streams") {
  const seqpar::test::Seed seed;
  const int ranks = GENERATE(1, 2, 3);
  const auto errors = onCommunicator(ranks, [&](seqparComm_t comm, int rank) {
    seqparStream_t stream = nullptr;
    expectSuccess(seqparStreamCreate(&stream), "seqparStreamCreate");
    std::mt19937 random(seed);  // equal on all ranks
    constexpr std::array<int64_t, 6> kSizes{1, 3, 29, 200, 5000, 40000};
    for (int step = 0; step < 120; ++step) {
      seqparStream_t const on = random() % 3 == 0 ? stream : nullptr;
      const int64_t size = kSizes[random() % kSizes.size()];
      if (random() % 2 == 0) {
        const int64_t tokens = static_cast<int64_t>(random() % 3);
        gatherAndCheck(step, rank, ranks, shardsOf(tokens, size), comm, on);
      } else {
        transposeAndCheck(step, rank, ranks, 1 + size / 12, 6, 1 + static_cast<int64_t>(random() % 2) * 15, comm, on);
      }
    }
    expectSuccess(seqparStreamDestroy(stream), "seqparStreamDestroy");
  });
  INFO(errors);
  CHECK(errors.empty());
}

TEST_CASE("more shapes of exchanges than the cache holds give correct results") {
  const auto errors = onCommunicator(2, [&](seqparComm_t comm, int rank) {
    for (int round = 0; round < 2; ++round) {
      for (int inner = 1; inner <= 100; ++inner) gatherAndCheck(inner, rank, 2, shardsOf(1, inner), comm, nullptr);
    }
  });
  INFO(errors);
  CHECK(errors.empty());
}

TEST_CASE("exchanges of a known shape refuse invalid buffers, groups and structures") {
  const auto errors = onCommunicator(2, [](seqparComm_t comm, int rank) {
    auto shards = shardsOf(1, 4);
    const std::array<float, 4> shard{1.0F, 2.0F, 3.0F, static_cast<float>(rank)};
    std::array<float, 8> whole{};
    const auto run = [&](const float* from, float* into) {
      return seqparAllGather(from, into, &shards, comm, nullptr);
    };
    for (int i = 0; i < 3; ++i) expectSuccess(run(shard.data(), whole.data()), "seqparAllGather", comm);
    expect(whole[3] == 0.0F && whole[7] == 1.0F, "gathered ", whole[3], " and ", whole[7]);
    expect(run(nullptr, whole.data()) == seqparInvalidArgument, "no input was taken");
    expect(run(shard.data(), nullptr) == seqparInvalidArgument, "no output was taken");
    expect(run(whole.data() + 1, whole.data()) == seqparInvalidArgument, "an overlap was taken");
    const int stranger = 5;
    shards.group = &stranger;
    shards.groupSize = 1;
    expect(run(shard.data(), whole.data()) == seqparInvalidArgument, "a group of unknown ranks was taken");
    shards.group = nullptr;
    expect(run(shard.data(), whole.data()) == seqparInvalidArgument, "a size of no group was taken");
    shards.groupSize = 0;
    shards.magic = 0;
    expect(run(shard.data(), whole.data()) == seqparInvalidArgument, "a wrong magic was taken");
    shards.magic = SEQPAR_STRUCT_MAGIC;
    const std::array<int64_t, 2> tokens{1, 1};
    shards.tokensOfMembers = tokens.data();
    expectSuccess(run(shard.data(), whole.data()), "seqparAllGather", comm);
    shards.tokensOfMembers = nullptr;
    // In place.
    whole[4 * static_cast<size_t>(rank)] = 9.0F;
    expectSuccess(run(whole.data() + 4 * static_cast<size_t>(rank), whole.data()), "seqparAllGather", comm);
    expect(whole[0] == 9.0F && whole[4] == 9.0F, "in place: ", whole[0], " and ", whole[4]);
  });
  INFO(errors);
  CHECK(errors.empty());
}
