// checkArguments for values that only some ranks share: exchanges of a group, and the arrays of a mesh's groups.
#include <catch2/catch.hpp>
#include <functional>
#include <string>
#include <vector>

#include "bootstrap/bootstrap.h"
#include "comm/agreement.h"
#include "common/ranks.h"
#include "common/timeouts.h"
#include "seqpar/exchange.h"
#include "seqpar/mesh.h"

using namespace seqpar::test;

namespace {

/// body(comm, rank) on ranks as threads, with a communicator that compares arguments.
std::string onChecking(int ranks, const std::function<void(seqparComm_t, int rank)>& body) {
  seqparUniqueId id;
  REQUIRE(seqparGetUniqueId(&id) == seqparSuccess);
  return onThreads(ranks, [&](int rank) {
    seqparConfig_t config = SEQPAR_CONFIG_INITIALIZER;
    config.timeoutMs = kNoTimeoutMs;
    config.checkArguments = 1;
    seqparComm_t comm = nullptr;
    expectSuccess(seqparCommInitRankConfig(&comm, ranks, id, rank, &config), "seqparCommInitRankConfig");
    try {
      body(comm, rank);
    } catch (...) {
      seqparCommAbort(comm);
      throw;
    }
    expectSuccess(seqparCommDestroy(comm), "seqparCommDestroy");
  });
}

void expectRefused(seqparResult_t result, const std::string& text, seqparComm_t comm) {
  const std::string said = seqparGetLastError(comm);
  expect(result == seqparInvalidUsage, "result ", result, ": ", said);
  expect(said == text, said);
}

}  // namespace

TEST_CASE("exchanges of a group compare their members' arguments, with the ranks' own numbers") {
  const auto errors = onChecking(4, [](seqparComm_t comm, int rank) {
    const int groups[2][2] = {{0, 2}, {3, 1}};
    seqparShards_t shards = SEQPAR_SHARDS_INITIALIZER;
    shards.group = groups[rank % 2];
    shards.groupSize = 2;
    shards.inner = 3 + rank % 2;  // groups need not agree with each other
    shards.tokens = 2;
    const std::vector<float> shard(100, static_cast<float>(rank));
    std::vector<float> whole(200, -1);
    expectSuccess(seqparAllGather(shard.data(), whole.data(), &shards, comm, nullptr), "seqparAllGather", comm);
    const int64_t lengths[] = {2, rank == 2 ? 7 : 6};
    shards.tokensOfMembers = lengths;
    const auto gathered = seqparAllGather(shard.data(), whole.data(), &shards, comm, nullptr);
    if (rank % 2 == 0) {
      expectRefused(gathered,
                    "seqparAllGather: the ranks disagree: rank 2 has shards->tokensOfMembers[1] 7, rank 0 has 6", comm);
    } else {
      expectSuccess(gathered, "seqparAllGather", comm);
    }
    seqparHalo_t halo = SEQPAR_HALO_INITIALIZER;
    halo.left = rank == 1 ? 1 : 2;
    shards.tokensOfMembers = nullptr;
    const auto exchanged = seqparHaloExchange(shard.data(), whole.data(), nullptr, &halo, &shards, comm, nullptr);
    if (rank % 2 == 1) {
      expectRefused(exchanged, "seqparHaloExchange: the ranks disagree: rank 1 has halo->left 1, rank 3 has 2", comm);
    } else {
      expectSuccess(exchanged, "seqparHaloExchange", comm);
    }
    seqparHeadShards_t heads = SEQPAR_HEAD_SHARDS_INITIALIZER;
    heads.group = groups[rank % 2];
    heads.groupSize = 2;
    heads.heads = 2;
    heads.headDim = rank == 0 ? 4 : 5;
    heads.tokens = 3;
    const auto turned = seqparSequenceToHeads(shard.data(), whole.data(), &heads, comm, nullptr);
    if (rank % 2 == 0) {
      expectRefused(turned, "seqparSequenceToHeads: the ranks disagree: rank 2 has shards->headDim 5, rank 0 has 4",
                    comm);
    } else {
      expectSuccess(turned, "seqparSequenceToHeads", comm);
    }
  });
  CHECK(errors == "");
}

TEST_CASE("the arrays of a mesh's groups are compared between the group's ranks") {
  const auto errors = onChecking(4, [](seqparComm_t comm, int rank) {
    seqparMesh_t mesh = nullptr;
    expectSuccess(seqparMeshCreate(&mesh, 2, 2, nullptr, comm), "seqparMeshCreate", comm);
    // Q groups are {0, 1} and {2, 3}, KV groups {0, 2} and {1, 3}.
    const std::vector<float> send(64, 1);
    std::vector<float> receive(64), lse(64);
    const size_t bytes[] = {8, rank == 3 ? size_t{12} : size_t{4}};  // {0, 1} and {2, 3} differ, which is allowed
    const auto gathered = seqparMeshAllGather(seqparMeshAxisQ, send.data(), receive.data(), bytes, mesh, nullptr);
    if (rank >= 2) {
      expectRefused(gathered, "seqparMeshAllGather: the ranks disagree: rank 3 has bytes[1] 12, rank 2 has 4", comm);
    } else {
      expectSuccess(gathered, "seqparMeshAllGather", comm);
    }
    const size_t counts[] = {rank == 1 ? size_t{5} : size_t{6}, 7};
    const auto scattered =
        seqparMeshReduceScatter(seqparMeshAxisKv, send.data(), receive.data(), counts, seqparFloat32, mesh, nullptr);
    if (rank % 2 == 1) {
      expectRefused(scattered, "seqparMeshReduceScatter: the ranks disagree: rank 3 has counts[0] 6, rank 1 has 5",
                    comm);
    } else {
      expectSuccess(scattered, "seqparMeshReduceScatter", comm);
    }
    const int64_t tokens[] = {3, rank == 0 ? 1 : 2};
    std::vector<float> resultLse(64);
    seqparMeshReduceScatterOParams_t params = SEQPAR_MESH_REDUCE_SCATTER_O_PARAMS_INITIALIZER;
    params.o = send.data();
    params.lse = lse.data();
    params.result = receive.data();
    params.resultLse = resultLse.data();
    params.tokens = tokens;
    params.heads = params.dim = 2;
    params.dataType = seqparFloat32;
    const auto merged = seqparMeshReduceScatterO(&params, mesh, nullptr);
    if (rank < 2) {
      expectRefused(merged,
                    "seqparMeshReduceScatterO: the ranks disagree: rank 1 has params->tokens[1] 2, rank 0 has 1", comm);
    } else {
      expectSuccess(merged, "seqparMeshReduceScatterO", comm);
    }
    expectSuccess(seqparMeshDestroy(mesh), "seqparMeshDestroy", comm);
  });
  CHECK(errors == "");
}

TEST_CASE("arrays of groups are compared by name where all groups gather together, as on devices") {
  using namespace seqpar;
  const auto groups = makeLocalGroup(4, kNoTimeout);
  const auto errors = onThreads(4, [&](int rank) {
    const std::vector<int64_t> sizes{1, rank == 3 ? 5 : 4};
    const NamedValue all{"axis", 0};
    Comparison comparison("call", {&all, 1});
    const NamedValue ofGroup = namedArray("sizes", sizes);
    const int first = rank / 2 * 2;
    comparison.addOfGroup({first, first + 1}, {&ofGroup, 1});
    const auto text = comparison.differences(*groups[static_cast<size_t>(rank)]);
    expect(text == (rank < 2 ? "" : "call: the ranks disagree: rank 3 has other sizes than rank 2"), text);
  });
  CHECK(errors == "");
}
