#include "mesh_suite.h"

#include <algorithm>
#include <cmath>
#include <random>

#include "mesh_runner.h"

namespace seqpar::test {
namespace {

/// Naive attention of large blocks takes its time.
constexpr int kMostForLarge = 4;

/// Half an ulp of values from 1/2 to 1.
double roundoff(seqparDataType_t type) {
  return type == seqparFloat32 ? 0x1p-25 : type == seqparFloat16 ? 0x1p-12 : 0x1p-9;
}

void expectClose(const char* what, const Vector<float>& got, const Vector<float>& want, double tolerance) {
  expect(got.size() == want.size(), what, " has ", got.size(), " numbers, expected ", want.size());
  for (size_t i = 0; i < got.size(); ++i) {
    const double difference = std::abs(static_cast<double>(got[i]) - static_cast<double>(want[i]));
    expect(difference <= tolerance, what, "[", i, "] is ", got[i], ", expected ", want[i], " within ", tolerance);
  }
}

/// A block of this one takes several messages.
MeshAttention largeProblem(std::mt19937_64& random, int ranks) {
  MeshAttention attention;
  attention.seed = random();
  for (int rank = 0; rank < ranks; ++rank) attention.tokens.push_back(20 + static_cast<int>(random() % 20));
  attention.heads = attention.kvHeads = 4;
  attention.dk = attention.dv = 512;
  return attention;
}

MeshAttention drawProblem(std::mt19937_64& random, int ranks) {
  MeshAttention attention;
  attention.seed = random();
  const bool even = random() % 3 == 0;
  for (int rank = 0; rank < ranks; ++rank) {
    attention.tokens.push_back(even ? 3 : static_cast<int>(random() % 5));
  }
  attention.kvHeads = 1 + static_cast<int>(random() % 2);
  attention.heads = attention.kvHeads * (1 + static_cast<int>(random() % 2));
  attention.dk = 1 + static_cast<int>(random() % 2);
  attention.dv = 1 + static_cast<int>(random() % 2);
  attention.causal = random() % 2 == 0;
  return attention;
}

/// Parameters of a schedule; the results must not depend on them.
seqparMeshParams_t drawParams(std::mt19937_64& random) {
  seqparMeshParams_t params = SEQPAR_MESH_PARAMS_INITIALIZER;
  params.tokens = 1 + static_cast<int64_t>(random() % 4096);
  params.heads = 8;
  params.kvHeads = int64_t{1} << random() % 4;
  params.headDim = 64;
  params.forwardUs = random() % 3 == 0 ? 0 : static_cast<double>(random() % 2000);
  params.backwardUs = 2.5 * params.forwardUs;
  params.latencyUs = 1;
  params.bandwidth = 1e9 * static_cast<double>(1 + random() % 50);
  return params;
}

void runRound(seqparComm_t comm, std::mt19937_64& random, int ranks, int a, MeshAttention attention, MeshTypes types) {
  const auto params = drawParams(random);
  const bool onStream = random() % 2 == 0;
  int rank = 0;
  expectSuccess(seqparCommUserRank(comm, &rank), "seqparCommUserRank", comm);
  seqparMesh_t mesh = nullptr;
  expectSuccess(seqparMeshCreate(&mesh, a, a == 0 ? 0 : ranks / a, &params, comm), "seqparMeshCreate", comm);

  int rows = 0, columns = 0;
  expectSuccess(seqparMeshShape(mesh, &rows, &columns), "seqparMeshShape");
  // Merged in fp32 once a tile and once a hop, with weights from logarithms below 8: a few roundings each.
  const double merging = 64 * (rows + columns) * roundoff(seqparFloat32);
  // Values have magnitude 1 at most. They are rounded once by each hop, and as inputs and results.
  const double tolerance = merging + rows * roundoff(types.wire) + 2 * roundoff(types.data);
  const auto expected = referenceOutputs(attention, rank);
  for (const bool atOnce : {false, true}) {
    const auto outputs = meshOutputs({comm, mesh, attention, types, onStream}, atOnce);
    expectClose(atOnce ? "o at once" : "o", outputs.o, expected.o, tolerance);
    expectClose(atOnce ? "lse at once" : "lse", outputs.lse, expected.lse, merging);
  }

  attention.integers = true;
  const auto exact = referenceGradients(attention, rank);
  for (const bool atOnce : {false, true}) {
    const auto gradients = meshGradients({comm, mesh, attention, types, onStream}, atOnce);
    expectClose(atOnce ? "dq at once" : "dq", gradients.dq, exact.dq, 0);
    expectClose(atOnce ? "dk at once" : "dk", gradients.dk, exact.dk, 0);
    expectClose(atOnce ? "dv at once" : "dv", gradients.dv, exact.dv, 0);
  }
  expectSuccess(seqparMeshDestroy(mesh), "seqparMeshDestroy");
}

}  // namespace

void runMeshSuite(seqparComm_t comm, std::uint64_t seed, int rounds) {
  int ranks = 0;
  expectSuccess(seqparCommCount(comm, &ranks), "seqparCommCount", comm);
  static constexpr MeshTypes kTypes[] = {{seqparFloat32, seqparFloat32},
                                         {seqparFloat32, seqparBfloat16},
                                         {seqparFloat32, seqparFloat16},
                                         {seqparBfloat16, seqparBfloat16}};
  std::mt19937_64 random(seed);
  const auto run = [&](const char* what, int round, int a, const MeshAttention& attention, MeshTypes types) {
    try {
      runRound(comm, random, ranks, a, attention, types);
    } catch (const std::exception& error) {
      expect(false, "seed ", seed, ", ", what, " round ", round, ", a = ", a, ": ", error.what());
    }
  };
  for (int round = 0; round < rounds; ++round) {
    for (int a = 0; a <= ranks; ++a) {
      if (a > 0 && ranks % a != 0) continue;
      const auto types = kTypes[random() % std::size(kTypes)];
      run("small", round, a, drawProblem(random, ranks), types);
    }
  }
  // Once more with large blocks; only fp32 holds their sums.
  if (ranks <= kMostForLarge) run("large", 0, 0, largeProblem(random, ranks), kTypes[0]);
}

}  // namespace seqpar::test
