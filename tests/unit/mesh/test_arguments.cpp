// Arguments that the C interface of meshes refuses, and the results of its queries.
#include <array>
#include <catch2/catch.hpp>
#include <cmath>
#include <string>
#include <vector>

#include "common/ranks.h"
#include "seqpar/mesh.h"

using namespace seqpar::test;

namespace {

/// A communicator of one rank, and a mesh over it.
struct Alone {
  Alone() {
    REQUIRE(seqparCommInitAll(&comm, 1, nullptr) == seqparSuccess);
    REQUIRE(seqparMeshCreate(&mesh, 1, 1, nullptr, comm) == seqparSuccess);
  }
  ~Alone() {
    seqparMeshDestroy(mesh);
    seqparCommDestroy(comm);
  }
  seqparComm_t comm = nullptr;
  seqparMesh_t mesh = nullptr;
};

/// The latest error text has all of these in it.
void checkText(std::initializer_list<const char*> parts) {
  const std::string text = seqparGetLastError(nullptr);
  CAPTURE(text);
  for (const char* const part : parts) CHECK(text.find(part) != std::string::npos);
}

seqparMeshParams_t initialParams() {
  return SEQPAR_MESH_PARAMS_INITIALIZER;
}

}  // namespace

TEST_CASE("shapes that do not fit the communicator are refused") {
  const Alone alone;
  seqparMesh_t mesh = nullptr;
  CHECK(seqparMeshCreate(&mesh, 2, 1, nullptr, alone.comm) == seqparInvalidArgument);
  checkText({"seqparMeshCreate", "a is 2 and b is 1", "1 ranks"});
  CHECK(mesh == nullptr);
  for (const auto& [a, b] : {std::pair(0, 1), std::pair(-1, -1), std::pair(1 << 16, 1 << 16)}) {
    CHECK(seqparMeshCreate(&mesh, a, b, nullptr, alone.comm) == seqparInvalidArgument);
  }
  CHECK(seqparMeshCreate(nullptr, 1, 1, nullptr, alone.comm) == seqparInvalidArgument);
  CHECK(seqparMeshCreate(&mesh, 1, 1, nullptr, nullptr) == seqparInvalidArgument);
}

TEST_CASE("parameters out of range are refused by name") {
  const Alone alone;
  int count = 0;
  const auto refused = [&](const char* field, auto change) {
    auto params = initialParams();
    change(params);
    CAPTURE(field);
    CHECK(seqparMeshPlan(&params, alone.comm, nullptr, &count) == seqparInvalidArgument);
    checkText({"seqparMeshPlan", field});
  };
  refused("magic", [](auto& params) { params.magic = 1; });
  refused("tokens", [](auto& params) { params.tokens = 0; });
  refused("heads", [](auto& params) { params.heads = -1; });
  refused("kvHeads", [](auto& params) { params.kvHeads = -1; });
  refused("headDim", [](auto& params) { params.headDim = 0; });
  refused("valueDim", [](auto& params) { params.valueDim = -1; });
  refused("dataType", [](auto& params) { params.dataType = 3; });
  refused("wireType", [](auto& params) { params.wireType = -1; });
  refused("causal", [](auto& params) { params.causal = 2; });
  refused("sendDelta", [](auto& params) { params.sendDelta = -1; });
  refused("forwardUs", [](auto& params) { params.forwardUs = -1; });
  refused("backwardUs", [](auto& params) { params.backwardUs = std::nan(""); });
  refused("latencyUs", [](auto& params) { params.latencyUs = INFINITY; });
  refused("bandwidth", [](auto& params) { params.bandwidth = -1; });
  refused("bandwidth", [](auto& params) { params.latencyUs = 1; });
  refused("forwardWeight", [](auto& params) { params.forwardWeight = -1; });
  refused("backwardWeight", [](auto& params) { params.forwardWeight = params.backwardWeight = 0; });
  refused("kvHeads is 2", [](auto& params) {
    params.heads = 3;
    params.kvHeads = 2;
  });
  refused("numbers", [](auto& params) { params.tokens = params.heads = int64_t{1} << 39; });
  CHECK(seqparMeshPlan(nullptr, alone.comm, nullptr, &count) == seqparInvalidArgument);
  const auto params = initialParams();
  CHECK(seqparMeshPlan(&params, alone.comm, nullptr, nullptr) == seqparInvalidArgument);
  CHECK(seqparMeshPlan(&params, alone.comm, nullptr, &count) == seqparSuccess);
  CHECK(count == 1);
}

TEST_CASE("steps refuse invalid arguments") {
  const Alone alone;
  std::array<float, 8> a{}, b{};
  const seqparMeshPart_t part{a.data(), sizeof(a), b.data(), sizeof(b)};
  const auto q = seqparMeshAxisQ;
  CHECK(seqparMeshReceive(q, &part, 1, alone.mesh, nullptr) == seqparInvalidUsage);
  CHECK(seqparMeshReceive(q, nullptr, 1, alone.mesh, nullptr) == seqparInvalidArgument);
  CHECK(seqparMeshReceive(q, &part, 0, alone.mesh, nullptr) == seqparInvalidArgument);
  CHECK(seqparMeshReceive(q, &part, SEQPAR_MESH_PARTS + 1, alone.mesh, nullptr) == seqparInvalidArgument);
  CHECK(seqparMeshReceive(2, &part, 1, alone.mesh, nullptr) == seqparInvalidArgument);
  checkText({"axis is 2"});
  CHECK(seqparMeshReceive(q, &part, 1, nullptr, nullptr) == seqparInvalidArgument);
  checkText({"seqparMeshReceive", "mesh"});

  seqparMeshReduceOParams_t row = SEQPAR_MESH_REDUCE_O_PARAMS_INITIALIZER;
  row.o = a.data();
  row.lse = b.data();
  row.tokens = row.heads = row.dim = 2;
  const auto refused = [&](const auto& change, int index = 0) {
    auto bad = row;
    change(bad);
    return seqparMeshReduceO(index, &bad, alone.mesh, nullptr) == seqparInvalidArgument;
  };
  const auto reduce = [&](int index, int64_t tokens, int64_t heads, int64_t dim, int data, int wire) {
    auto one = row;
    one.tokens = tokens;
    one.heads = heads;
    one.dim = dim;
    one.dataType = data;
    one.wireType = wire;
    return seqparMeshReduceO(index, &one, alone.mesh, nullptr);
  };
  const auto f32 = seqparFloat32, bf16 = seqparBfloat16;
  CHECK(reduce(0, 2, 2, 2, f32, f32) == seqparSuccess);
  CHECK(reduce(1, 2, 2, 2, f32, f32) == seqparInvalidArgument);
  checkText({"index is 1"});
  CHECK(reduce(-1, 2, 2, 2, f32, f32) == seqparInvalidArgument);
  CHECK(reduce(0, -1, 2, 2, f32, f32) == seqparInvalidArgument);
  CHECK(reduce(0, 2, 0, 2, f32, f32) == seqparInvalidArgument);
  CHECK(reduce(0, int64_t{1} << 62, 2, 2, f32, f32) == seqparInvalidArgument);
  checkText({"overflows"});
  CHECK(reduce(0, 2, 2, 2, bf16, f32) == seqparInvalidArgument);
  checkText({"wireType is fp32"});
  CHECK(reduce(0, 2, 2, 2, f32, 7) == seqparInvalidArgument);
  CHECK(refused([&](auto& params) { params.lse = a.data() + 1; }));
  checkText({"overlaps"});
  CHECK(refused([](auto& params) { params.o = nullptr; }));
  CHECK(refused([](auto& params) { params.magic = 7; }));
  checkText({"seqparMeshReduceO", "params->magic is 7"});
  CHECK(refused([](auto& params) { params.size = 8; }));
  checkText({"params->size is 8"});
  CHECK(seqparMeshReduceO(0, nullptr, alone.mesh, nullptr) == seqparInvalidArgument);
  checkText({"params is NULL"});
  CHECK(reduce(0, 2, 2, 2, f32, f32) == seqparSuccess);
  CHECK(seqparMeshReduceO(0, &row, alone.mesh, a.data()) == seqparInvalidArgument);
  checkText({"stream"});
}

TEST_CASE("in a group of one rank the forms without overlap copy") {
  const Alone alone;
  const std::array<float, 3> from{1, 2, 3};
  std::array<float, 3> to{};
  const size_t bytes = sizeof(from), count = from.size();
  CHECK(seqparMeshAllGather(seqparMeshAxisKv, from.data(), to.data(), &bytes, alone.mesh, nullptr) == seqparSuccess);
  CHECK(to == from);
  to = {};
  CHECK(seqparMeshReduceScatter(seqparMeshAxisQ, from.data(), to.data(), &count, seqparFloat32, alone.mesh, nullptr) ==
        seqparSuccess);
  CHECK(to == from);
  to = {};
  std::array<float, 3> lse{0, -INFINITY, 5}, toLse{};
  const int64_t tokens = 3;
  seqparMeshReduceScatterOParams_t params = SEQPAR_MESH_REDUCE_SCATTER_O_PARAMS_INITIALIZER;
  params.o = from.data();
  params.lse = lse.data();
  params.result = to.data();
  params.resultLse = toLse.data();
  params.tokens = &tokens;
  CHECK(seqparMeshReduceScatterO(&params, alone.mesh, nullptr) == seqparSuccess);
  CHECK(to == std::array<float, 3>{1, 0, 3});
  CHECK(toLse == lse);
  params.magic = 7;
  CHECK(seqparMeshReduceScatterO(&params, alone.mesh, nullptr) == seqparInvalidArgument);
  checkText({"seqparMeshReduceScatterO", "params->magic is 7"});
  CHECK(seqparMeshReduceScatterO(nullptr, alone.mesh, nullptr) == seqparInvalidArgument);
  const size_t huge = SIZE_MAX;
  CHECK(seqparMeshAllGather(seqparMeshAxisKv, from.data(), to.data(), &huge, alone.mesh, nullptr) ==
        seqparInvalidArgument);
  CHECK(seqparMeshAllGather(seqparMeshAxisKv, from.data(), to.data(), nullptr, alone.mesh, nullptr) ==
        seqparInvalidArgument);
}

TEST_CASE("queries return sizes first and refuse short buffers") {
  const Alone alone;
  int steps = 0, tiles = 0;
  CHECK(seqparMeshSchedule(alone.mesh, seqparMeshForward, nullptr, nullptr, &steps, &tiles) == seqparSuccess);
  CHECK(steps == 1);
  CHECK(tiles == 1);
  seqparMeshStep_t step{};
  seqparMeshTile_t tile{7, 7};
  steps = 0;
  CHECK(seqparMeshSchedule(alone.mesh, seqparMeshForward, &step, &tile, &steps, &tiles) == seqparInvalidArgument);
  steps = 1;
  CHECK(seqparMeshSchedule(alone.mesh, seqparMeshForward, &step, &tile, &steps, &tiles) == seqparSuccess);
  CHECK(step.operation == seqparMeshCompute);
  CHECK(tile.q == 0);
  CHECK(tile.kv == 0);
  CHECK(seqparMeshSchedule(alone.mesh, 2, nullptr, nullptr, &steps, &tiles) == seqparInvalidArgument);

  size_t bytes = 0;
  CHECK(seqparMeshScheduleText(alone.mesh, seqparMeshBackward, 1, nullptr, &bytes) == seqparSuccess);
  std::string text(bytes, '?');
  size_t shorter = bytes - 1;
  CHECK(seqparMeshScheduleText(alone.mesh, seqparMeshBackward, 1, text.data(), &shorter) == seqparInvalidArgument);
  CHECK(text == std::string(bytes, '?'));
  CHECK(seqparMeshScheduleText(alone.mesh, seqparMeshBackward, 1, text.data(), &bytes) == seqparSuccess);
  CHECK(text.find(R"("pass":"backward","a":1,"b":1)") != std::string::npos);
  CHECK(text.back() == '\0');
}

TEST_CASE("all ranks choose the same shape, and destroyed meshes are known") {
  constexpr int kRanks = 6;
  const auto errors = onCommunicator(kRanks, [](seqparComm_t comm, int rank) {
    auto params = initialParams();
    params.tokens = 1024;
    params.heads = 8;
    params.headDim = 64;
    params.wireType = seqparBfloat16;
    int count = 0;
    expectSuccess(seqparMeshPlan(&params, comm, nullptr, &count), "seqparMeshPlan", comm);
    expect(count == 4, "6 ranks have ", count, " shapes, expected 4");
    std::vector<seqparMeshEstimate_t> shapes(static_cast<size_t>(count));
    count = 2;
    shapes[2].a = -1;
    expectSuccess(seqparMeshPlan(&params, comm, shapes.data(), &count), "seqparMeshPlan", comm);
    expect(count == 4 && shapes[2].a == -1, "more was stored than there is room for");

    seqparMesh_t mesh = nullptr;
    expectSuccess(seqparMeshCreate(&mesh, 0, 0, &params, comm), "seqparMeshCreate", comm);
    int a = 0, b = 0, position = -1;
    expectSuccess(seqparMeshShape(mesh, &a, &b), "seqparMeshShape");
    expect(a == shapes[0].a && b == shapes[0].b, "the mesh has another shape than the plan's first");
    std::vector<int> ranks(static_cast<size_t>(b));
    expectSuccess(seqparMeshGroup(mesh, seqparMeshAxisKv, ranks.data(), &position), "seqparMeshGroup");
    expect(ranks[static_cast<size_t>(position)] == rank, "position ", position, " is not this rank's");
    expectSuccess(seqparMeshDestroy(mesh), "seqparMeshDestroy");
    expect(seqparMeshShape(mesh, &a, &b) == seqparInvalidArgument, "a destroyed mesh was accepted");
    expect(seqparMeshDestroy(mesh) == seqparInvalidArgument, "a mesh was destroyed twice");
    expectSuccess(seqparMeshDestroy(nullptr), "seqparMeshDestroy");
  });
  CHECK(errors == "");
}

TEST_CASE("errors of a mesh's queries are the communicator's latest too") {
  const Alone alone;
  const auto kept = [&](const char* call, seqparResult_t result) {
    CHECK(result == seqparInvalidArgument);
    CHECK_THAT(seqparGetLastError(alone.comm), Catch::Matchers::StartsWith(std::string(call) + ": "));
  };
  int steps = 0, tiles = 0;
  size_t bytes = 0;
  kept("seqparMeshGroup", seqparMeshGroup(alone.mesh, 2, nullptr, nullptr));
  kept("seqparMeshSchedule", seqparMeshSchedule(alone.mesh, 7, nullptr, nullptr, &steps, &tiles));
  kept("seqparMeshScheduleText", seqparMeshScheduleText(alone.mesh, 7, 0, nullptr, &bytes));
  kept("seqparMeshGroup", seqparMeshGroup(alone.mesh, -1, nullptr, nullptr));
}
