// Sizes that wrap, in every call of the interface with a size: refused before anything is done, under a limit of
// address space that an accepted call would hit.
#include <array>
#include <catch2/catch.hpp>
#include <string>
#include <vector>

#include "refused_calls.h"
#include "seqpar/exchange.h"
#include "seqpar/layout.h"
#include "seqpar/mesh.h"
#include "seqpar/plan.h"
#include "seqpar/ring.h"
#include "seqpar/scan_device.h"

using namespace seqpar::test;

namespace {

constexpr std::array<uint64_t, 9> kSizes{uint64_t{1} << 60,       uint64_t{1} << 61,       uint64_t{1} << 62,
                                         (uint64_t{1} << 62) + 3, (uint64_t{1} << 63) - 1, uint64_t{1} << 63,
                                         (uint64_t{1} << 63) + 8, 0xfffffffffffff000,      ~uint64_t{0}};

}  // namespace

TEST_CASE("sends and shifts of sizes that wrap are refused") {
  const int ranks = GENERATE(1, 2, 3);
  onRanks(ranks, [ranks](seqparComm_t comm, int rank, Memory& memory) {
    const int next = (rank + 1) % ranks, before = (rank + ranks - 1) % ranks;
    const auto sendRecv = [&](const void* a, size_t sent, int to, void* b, size_t received, int from) {
      refused("both ways", "seqparSendRecv", seqparSendRecv(a, sent, to, b, received, from, comm, nullptr));
    };
    for (const size_t n : kSizes) {
      sendRecv(memory.at(0), n, next, memory.at(1), n, before);
      if (ranks > 1) {
        sendRecv(memory.at(0), n, next, nullptr, 0, SEQPAR_NO_PEER);
        sendRecv(nullptr, 0, SEQPAR_NO_PEER, memory.at(1), n, before);
      }
      const void* sends[] = {memory.at(0), memory.at(1)};
      void* receives[] = {memory.at(2), memory.at(3)};
      const size_t bytes[] = {16, n};
      seqparShiftParams_t shift = SEQPAR_SHIFT_PARAMS_INITIALIZER;
      shift.sendPeer = next;
      shift.receivePeer = before;
      shift.sendTensors = shift.receiveTensors = 2;
      shift.sendBuffers = sends;
      shift.receiveBuffers = receives;
      shift.sendBytes = shift.receiveBytes = bytes;
      refused("a tensor", "seqparShift", seqparShift(&shift, comm, nullptr));
      if (ranks == 1) continue;
      shift.receivePeer = SEQPAR_NO_PEER;
      refused("a tensor sent", "seqparShift", seqparShift(&shift, comm, nullptr));
    }
    // Small enough, but past the last address.
    void* const end = reinterpret_cast<void*>(~uintptr_t{0} - 255);  // NOLINT: an address that is never dereferenced
    sendRecv(end, 256, next, memory.at(1), 256, before);
    sendRecv(memory.at(0), 4096, next, end, 4096, before);
  });
}

TEST_CASE("rings of sizes that wrap are refused") {
  const int ranks = GENERATE(1, 2, 3);
  onRanks(ranks, [ranks](seqparComm_t comm, int, Memory& memory) {
    for (const size_t n : kSizes) {
      std::vector<size_t> bytes(static_cast<size_t>(2 * ranks), 16);
      seqparRingParams_t params = SEQPAR_RING_PARAMS_INITIALIZER;
      params.tensors = 2;
      params.bytes = bytes.data();
      params.uneven = 1;
      bytes.back() = n;
      seqparRing_t ring = nullptr;
      int sets = 0;
      refused("own memory", "seqparRingCreate", seqparRingCreate(&ring, &params, comm));
      refused("sets", "seqparRingScratch", seqparRingScratch(&params, comm, &sets));
      void* const home[] = {memory.at(0), memory.at(1)};
      params.home = home;
      refused("home", "seqparRingCreate", seqparRingCreate(&ring, &params, comm));
      expect(ring == nullptr, "a ring was made");
    }
  });
}

TEST_CASE("steps of meshes with sizes that wrap are refused") {
  const int ranks = GENERATE(1, 2, 3);
  onRanks(ranks, [ranks](seqparComm_t comm, int, Memory& memory) {
    seqparMesh_t mesh = nullptr;
    expectSuccess(seqparMeshCreate(&mesh, ranks, 1, nullptr, comm), "seqparMeshCreate", comm);
    const auto q = seqparMeshAxisQ;
    const auto f32 = seqparFloat32;
    for (const size_t n : kSizes) {
      const auto signedN = static_cast<int64_t>(n);
      if (ranks > 1) {
        for (const bool sends : {true, false}) {
          const seqparMeshPart_t parts[] = {{memory.at(0), 16, memory.at(1), 16},
                                            {memory.at(2), sends ? n : 16, memory.at(3), sends ? 16 : n}};
          refused("parts", "seqparMeshReceive", seqparMeshReceive(q, parts, 2, mesh, nullptr));
        }
      }
      const auto refusedO = [&](int64_t tokens, int64_t carried, int64_t heads, int64_t dim) {
        refused("an output", "seqparMeshReduceO",
                reduceO(ranks > 1 ? 1 : 0, {memory.at(0), memory.at(1), memory.at(2), memory.at(3)},
                        {tokens, carried, heads, dim}, f32, mesh));
      };
      refusedO(signedN, 1, 1, 1);
      refusedO(1, 1, signedN, 1);
      refusedO(1, 1, 1, signedN);
      refusedO(0, 0, signedN, signedN);
      if (ranks > 1) refusedO(1, signedN, 1, 1);
      for (const bool data : {true, false}) {
        if (!data && ranks == 1) continue;  // carry is not read
        const seqparMeshSum_t sum{memory.at(0), data ? n : 1, memory.at(1), data ? 1 : n};
        refused("a sum", "seqparMeshReduceSum",
                seqparMeshReduceSum(q, ranks > 1 ? 1 : 0, &sum, 1, f32, f32, mesh, nullptr));
      }
      std::vector<size_t> counts(static_cast<size_t>(ranks), 1);
      std::vector<int64_t> tokens(static_cast<size_t>(ranks), 1);
      counts.back() = n;
      tokens.back() = signedN;
      refused("bytes", "seqparMeshAllGather",
              seqparMeshAllGather(q, memory.at(0), memory.at(1), counts.data(), mesh, nullptr));
      refused("counts", "seqparMeshReduceScatter",
              seqparMeshReduceScatter(q, memory.at(0), memory.at(1), counts.data(), f32, mesh, nullptr));
      const auto scatterO = [&](const std::vector<int64_t>& all, int64_t heads, int64_t dim) {
        refused("outputs", "seqparMeshReduceScatterO",
                reduceScatterO({memory.at(0), memory.at(1), memory.at(2), memory.at(3)}, all, heads, dim, f32, mesh));
      };
      scatterO(tokens, 1, 1);
      const std::vector<int64_t> ones(static_cast<size_t>(ranks), 1);
      scatterO(ones, signedN, 1);
      scatterO(ones, 1, signedN);
      seqparMeshParams_t params = SEQPAR_MESH_PARAMS_INITIALIZER;
      for (int64_t* field : {&params.tokens, &params.heads, &params.headDim, &params.valueDim}) {
        params = SEQPAR_MESH_PARAMS_INITIALIZER;
        *field = signedN;
        int count = 0;
        seqparMesh_t other = nullptr;
        refused("a plan", "seqparMeshPlan", seqparMeshPlan(&params, comm, nullptr, &count));
        refused("a mesh", "seqparMeshCreate", seqparMeshCreate(&other, 0, 0, &params, comm));
      }
    }
    expectSuccess(seqparMeshDestroy(mesh), "seqparMeshDestroy");
  });
}

TEST_CASE("exchanges of shapes that wrap are refused") {
  const int ranks = GENERATE(1, 2, 3);
  onRanks(ranks, [ranks](seqparComm_t comm, int, Memory& memory) {
    void *const a = memory.at(0), *const b = memory.at(1);
    float *const c = memory.at(2), *const d = memory.at(3);
    const auto exchangeHeads = [&](const seqparHeadShards_t& shards) {
      refused("heads", "seqparSequenceToHeads", seqparSequenceToHeads(a, b, &shards, comm, nullptr));
      refused("heads", "seqparHeadsToSequence", seqparHeadsToSequence(a, b, &shards, comm, nullptr));
    };
    const auto exchangeShards = [&](const seqparShards_t& shards, const seqparHalo_t& halo) {
      refused("halo", "seqparHaloExchange", seqparHaloExchange(a, b, c, &halo, &shards, comm, nullptr));
      refused("halo", "seqparHaloAdjoint", seqparHaloAdjoint(b, c, a, &halo, &shards, comm, nullptr));
      if (halo.left != 0) return;
      refused("shards", "seqparAllGather", seqparAllGather(a, b, &shards, comm, nullptr));
      refused("shards", "seqparReduceScatter", seqparReduceScatter(a, b, &shards, comm, nullptr));
      refused("shards", "seqparReduceScatterLse", seqparReduceScatterLse(a, c, b, d, 1, &shards, comm, nullptr));
    };
    for (const uint64_t size : kSizes) {
      const auto n = static_cast<int64_t>(size);
      seqparHeadShards_t heads = SEQPAR_HEAD_SHARDS_INITIALIZER;
      for (int64_t* field : {&heads.batch, &heads.heads, &heads.headDim, &heads.tokens}) {
        heads = SEQPAR_HEAD_SHARDS_INITIALIZER;
        heads.tokens = heads.headDim = 1;
        *field = n;
        exchangeHeads(heads);
      }
      heads = SEQPAR_HEAD_SHARDS_INITIALIZER;
      heads.batch = heads.headDim = n;  // times no tokens
      exchangeHeads(heads);
      std::vector<int64_t> tokens(static_cast<size_t>(ranks), 1);
      tokens.back() = n;
      heads = SEQPAR_HEAD_SHARDS_INITIALIZER;
      heads.headDim = 1;
      heads.tokensOfMembers = tokens.data();
      exchangeHeads(heads);

      seqparHalo_t halo = SEQPAR_HALO_INITIALIZER;
      seqparShards_t shards = SEQPAR_SHARDS_INITIALIZER;
      for (int64_t* field : {&shards.outer, &shards.inner, &shards.tokens}) {
        shards = SEQPAR_SHARDS_INITIALIZER;
        shards.tokens = 1;
        *field = n;
        exchangeShards(shards, halo);
      }
      shards = SEQPAR_SHARDS_INITIALIZER;
      shards.outer = shards.inner = n;  // times no tokens
      exchangeShards(shards, halo);
      shards = SEQPAR_SHARDS_INITIALIZER;
      shards.tokensOfMembers = tokens.data();
      exchangeShards(shards, halo);
      shards = SEQPAR_SHARDS_INITIALIZER;
      shards.tokens = 1;
      halo.left = halo.right = n;
      exchangeShards(shards, halo);
      refused("heads", "seqparReduceScatterLse", seqparReduceScatterLse(a, c, b, d, n, &shards, comm, nullptr));
      int64_t first = 0, count = 0;
      const auto ofMember = seqparHeadsOfMember(n, 0, 2, 1, &first, &count);
      if (n < 0) refused("heads of a member", "seqparHeadsOfMember", ofMember);
      if (n > 0) expect(first == n - n / 2 && count == n / 2, "heads of a member: ", first, " ", count);
    }
    // Each of them small enough, but not their product.
    seqparShards_t shards = SEQPAR_SHARDS_INITIALIZER;
    shards.outer = shards.inner = shards.tokens = int64_t{1} << 32;
    exchangeShards(shards, SEQPAR_HALO_INITIALIZER);
    seqparHeadShards_t heads = SEQPAR_HEAD_SHARDS_INITIALIZER;
    heads.batch = heads.headDim = heads.tokens = int64_t{1} << 32;
    exchangeHeads(heads);
  });
}

TEST_CASE("scans of shapes that wrap are refused") {
  const int ranks = GENERATE(1, 2);
  onRanks(ranks, [](seqparComm_t comm, int, Memory& memory) {
    const auto scan = [&](seqparAllScanParams_t params) {
      for (const int op : {seqparScanSum, seqparScanScalar, seqparScanDiag, seqparScanMatrix}) {
        params.op = op;
        const void* const transition = op == seqparScanSum ? nullptr : memory.at(1);
        refused("a scan", "seqparAllScan",
                seqparAllScan(memory.at(0), transition, nullptr, memory.at(2), nullptr, &params, comm, nullptr));
        seqparScanEstimate_t estimates[SEQPAR_SCAN_ALGORITHMS + 1];
        refused("a plan", "seqparAllScanPlan", seqparAllScanPlan(&params, comm, estimates));
      }
    };
    seqparAllScanParams_t params = SEQPAR_ALL_SCAN_PARAMS_INITIALIZER;
    for (const uint64_t size : kSizes) {
      const auto n = static_cast<int64_t>(size);
      for (int64_t* field : {&params.heads, &params.dk, &params.dv, &params.sequences}) {
        params = SEQPAR_ALL_SCAN_PARAMS_INITIALIZER;
        params.heads = params.dk = params.dv = 1;
        *field = n;
        scan(params);
      }
      params = SEQPAR_ALL_SCAN_PARAMS_INITIALIZER;
      params.dk = params.dv = n;  // of no heads
      scan(params);
      seqparScanDevice_t window = SEQPAR_SCAN_DEVICE_INITIALIZER;
      refused("heads", "seqparScanDeviceCreate", seqparScanDeviceCreate(&window, n, 1, seqparForward, comm));
      refused("elements", "seqparScanDeviceCreate", seqparScanDeviceCreate(&window, 1, n, seqparForward, comm));
    }
    params = SEQPAR_ALL_SCAN_PARAMS_INITIALIZER;
    params.heads = params.dk = params.dv = int64_t{1} << 32;
    scan(params);
  });
}

TEST_CASE("layouts and redistributions of sizes that wrap are refused") {
  onRanks(2, [](seqparComm_t comm, int, Memory&) {
    std::array<int64_t, 4> numbers{0, 4, 4, 4};
    seqparLayout_t whole = SEQPAR_LAYOUT_INITIALIZER;
    whole.ranks = 2;
    whole.tokens = 4;
    for (const uint64_t size : kSizes) {
      const auto n = static_cast<int64_t>(size);
      std::vector<seqparLayout_t> bad(3, whole);
      bad[0].tokens = n;
      bad[1].kind = seqparStriped;
      bad[1].stripe = n;
      bad[2].sequences = n;
      bad[2].cuSeqlens = numbers.data();
      int64_t out = 0, more = 0;
      int rank = 0;
      seqparLayoutRun_t run{};
      for (const auto& layout : bad) {
        refused("length", "seqparLayoutLocalLength", seqparLayoutLocalLength(&layout, 0, &out));
        refused("global", "seqparLayoutToGlobal", seqparLayoutToGlobal(&layout, 0, 0, &out));
        refused("local", "seqparLayoutToLocal", seqparLayoutToLocal(&layout, 0, &rank, &out));
        refused("globals", "seqparLayoutGlobals", seqparLayoutGlobals(&layout, 0, &out));
        refused("runs", "seqparLayoutRuns", seqparLayoutRuns(&layout, 0, &run, 1, &more));
        refused("bounds", "seqparLayoutLocalCuSeqlens",
                seqparLayoutLocalCuSeqlens(&layout, 0, numbers.data(), 1, &out));
        seqparRedistributePlan_t plan = nullptr;
        const int64_t rowBytes = 4;
        refused("from", "seqparRedistributePlanCreate",
                seqparRedistributePlanCreate(&plan, &layout, &whole, 1, nullptr, &rowBytes, comm));
        refused("to", "seqparRedistributePlanCreate",
                seqparRedistributePlanCreate(&plan, &whole, &layout, 1, nullptr, &rowBytes, comm));
      }
      refused("local", "seqparLayoutToGlobal", seqparLayoutToGlobal(&whole, 0, n, &out));
      refused("global", "seqparLayoutToLocal", seqparLayoutToLocal(&whole, n, &rank, &out));
      refused("capacity", "seqparLayoutRuns", seqparLayoutRuns(&whole, 0, &run, n, &more));
      refused("sequences", "seqparLayoutLocalCuSeqlens",
              seqparLayoutLocalCuSeqlens(&whole, 0, numbers.data(), n, numbers.data()));
      seqparRedistributePlan_t plan = nullptr;
      const int64_t small = 4;
      refused("rows", "seqparRedistributePlanCreate",
              seqparRedistributePlanCreate(&plan, &whole, &whole, 1, nullptr, &n, comm));
      refused("outer", "seqparRedistributePlanCreate",
              seqparRedistributePlanCreate(&plan, &whole, &whole, 1, &n, &small, comm));
      expect(plan == nullptr, "a plan was made");
    }
    // All tokens may be many; their indices are more than an array holds.
    seqparLayout_t long_ = SEQPAR_LAYOUT_INITIALIZER;
    long_.tokens = int64_t{1} << 48;
    refused("globals", "seqparLayoutGlobals", seqparLayoutGlobals(&long_, 0, numbers.data()));
  });
}

TEST_CASE("a failed allocation of any size is a SystemError") {
  onRanks(1, [](seqparComm_t comm, int, Memory& memory) {
    for (const size_t n : kSizes) {
      void* pointer = memory.at(0);
      const auto result = seqparMemAlloc(&pointer, n, comm);
      const std::string text = seqparGetLastError(comm);
      expect(result == seqparSystemError, n, " bytes: result ", result, ": ", text);
      expect(text.rfind("seqparMemAlloc: ", 0) == 0, text);
      expect(pointer == nullptr, n, " bytes: ", pointer);
      double us = -1;
      expectSuccess(seqparMoveEstimate(seqparMoveShift, n, nullptr, 0, comm, &us), "seqparMoveEstimate", comm);
    }
  });
}
