// Buffers that are not aligned to their elements, in every call of the interface that has a data type.
#include <catch2/catch.hpp>
#include <vector>

#include "refused_calls.h"
#include "seqpar/exchange.h"
#include "seqpar/scan.h"

using namespace seqpar::test;

TEST_CASE("buffers that are not aligned to their elements are refused by every call with a data type") {
  const int ranks = GENERATE(1, 2);
  onRanks(ranks, [ranks](seqparComm_t comm, int, Memory& memory) {
    const auto off = [&](size_t i, size_t bytes) -> void* { return reinterpret_cast<char*>(memory.at(i)) + bytes; };
    seqparMesh_t mesh = nullptr;
    expectSuccess(seqparMeshCreate(&mesh, ranks, 1, nullptr, comm), "seqparMeshCreate", comm);
    struct Type {
      int type;
      size_t off;
    };
    for (const Type wrong : {Type{seqparFloat32, 1}, Type{seqparFloat32, 2}, Type{seqparBfloat16, 1}}) {
      const int type = wrong.type;
      const size_t by = wrong.off;  // a structured binding could not be captured
      // Which of up to four buffers is misaligned; log-sum-exps and transitions are fp32 for every type.
      for (size_t bad = 0; bad < 4; ++bad) {
        const auto at = [&](size_t i) { return off(i, i == bad ? by : 0); };
        const auto floats = [&](size_t i) { return reinterpret_cast<float*>(at(i)); };
        seqparAllScanParams_t scan = SEQPAR_ALL_SCAN_PARAMS_INITIALIZER;
        scan.heads = scan.dk = scan.dv = 1;
        scan.stateType = type;
        refused("a scan", "seqparAllScan", seqparAllScan(at(0), at(1), at(2), at(3), nullptr, &scan, comm, nullptr));
        seqparHeadShards_t heads = SEQPAR_HEAD_SHARDS_INITIALIZER;
        heads.dataType = type;
        heads.tokens = heads.headDim = 1;
        heads.heads = ranks;
        seqparShards_t shards = SEQPAR_SHARDS_INITIALIZER;
        shards.dataType = type;
        shards.tokens = 1;
        seqparHalo_t halo = SEQPAR_HALO_INITIALIZER;
        halo.left = halo.right = 1;
        std::vector<size_t> counts(static_cast<size_t>(ranks), 1);
        std::vector<int64_t> tokens(static_cast<size_t>(ranks), 1);
        refused("lse", "seqparReduceScatterLse",
                seqparReduceScatterLse(at(0), floats(1), at(2), floats(3), 1, &shards, comm, nullptr));
        refused("lse", "seqparMeshReduceScatterO",
                reduceScatterO({at(0), at(1), at(2), at(3)}, tokens, 1, 1, type, mesh));
        if (bad < (ranks > 1 ? 4 : 2)) {  // alone, carries are not read
          const int index = ranks > 1 ? 1 : 0;
          refused("an output", "seqparMeshReduceO",
                  reduceO(index, {at(0), at(1), at(2), at(3)}, {1, 1, 1, 1}, type, mesh));
        }
        if (bad < 3) {
          refused("halo", "seqparHaloExchange", seqparHaloExchange(at(0), at(1), at(2), &halo, &shards, comm, nullptr));
          refused("halo", "seqparHaloAdjoint", seqparHaloAdjoint(at(0), at(1), at(2), &halo, &shards, comm, nullptr));
        }
        if (bad >= 2) continue;
        refused("heads", "seqparSequenceToHeads", seqparSequenceToHeads(at(0), at(1), &heads, comm, nullptr));
        refused("heads", "seqparHeadsToSequence", seqparHeadsToSequence(at(0), at(1), &heads, comm, nullptr));
        refused("shards", "seqparAllGather", seqparAllGather(at(0), at(1), &shards, comm, nullptr));
        refused("shards", "seqparReduceScatter", seqparReduceScatter(at(0), at(1), &shards, comm, nullptr));
        refused("counts", "seqparMeshReduceScatter",
                seqparMeshReduceScatter(seqparMeshAxisQ, at(0), at(1), counts.data(), type, mesh, nullptr));
        if (bad == 1 && ranks == 1) continue;
        const seqparMeshSum_t sum{at(0), 1, at(1), 1};
        refused("a sum", "seqparMeshReduceSum",
                seqparMeshReduceSum(seqparMeshAxisQ, ranks > 1 ? 1 : 0, &sum, 1, type, type, mesh, nullptr));
      }
    }
    expectSuccess(seqparMeshDestroy(mesh), "seqparMeshDestroy");
  });
}
