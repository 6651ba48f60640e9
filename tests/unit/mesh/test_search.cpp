#include "mesh/search.h"
#include "unit/seed.h"

#include <catch2/catch.hpp>
#include <limits>
#include <random>

using namespace seqpar;

namespace {

/// 32 query heads of 128, bf16 everywhere.
MeshProblem llama(int64_t tokens, int64_t kvHeads) {
  MeshProblem problem;
  problem.tokens = tokens;
  problem.heads = 32;
  problem.kvHeads = kvHeads;
  problem.headDim = problem.valueDim = 128;
  problem.wireType = seqparBfloat16;
  return problem;
}

MeshLinks oneNode(int ranks, double bandwidth, double alpha = 0) {
  return uniformLinks(ranks, {alpha, 1 / bandwidth, 0});
}

}  // namespace

TEST_CASE("the first shape is the one with the least time") {
  const seqpar::test::Seed seed;
  std::mt19937_64 random(seed);
  for (int round = 0; round < 60; ++round) {
    const int ranks = 1 + static_cast<int>(random() % 64);
    auto problem = llama(1 + static_cast<int64_t>(random() % 4096), int64_t{1} << random() % 6);
    problem.forwardTile = static_cast<double>(random() % 3) * 1e-3;
    problem.backwardTile = 2.5 * problem.forwardTile;
    problem.causal = random() % 2 == 0;
    problem.forwardWeight = static_cast<int>(random() % 2);
    problem.backwardWeight = 1;
    const auto links = oneNode(ranks, 1e9 * static_cast<double>(1 + random() % 400), 1e-6);
    const auto found = searchShapes(problem, links);
    REQUIRE(found.size() == meshShapes(ranks).size());
    double least = std::numeric_limits<double>::infinity();
    for (const auto shape : meshShapes(ranks)) {
      double time = 0;
      for (const auto pass : {seqparMeshForward, seqparMeshBackward}) {
        const int weight = pass == seqparMeshForward ? problem.forwardWeight : problem.backwardWeight;
        const auto costs = meshCosts(pass, shape, problem, links);
        time += weight * simulate(meshSchedule(pass, shape, costs), costs).total;
      }
      least = std::min(least, time);
    }
    CHECK(found.front().weighted(problem) == least);
    for (size_t i = 1; i < found.size(); ++i) CHECK(found[i - 1].weighted(problem) <= found[i].weighted(problem));
  }
}

TEST_CASE("with equal head counts the square mesh sends least, with few key heads the ring") {
  auto problem = llama(8192, 32);
  problem.backwardWeight = 0;
  CHECK(searchShapes(problem, oneNode(64, 1e9)).front().shape == MeshShape{8, 8});
  CHECK(searchShapes(problem, oneNode(16, 1e9)).front().shape == MeshShape{4, 4});
  problem.kvHeads = 8;
  CHECK(searchShapes(problem, oneNode(8, 1e9)).front().shape == MeshShape{1, 8});
  CHECK(searchShapes(problem, oneNode(64, 1e9)).front().shape == MeshShape{4, 16});
}

TEST_CASE("a ring between nodes is bounded by the network shared by its sending ranks") {
  MeshLinks links = uniformLinks(8, {1e-6, 1e-10, 0});
  links.model.network = {1e-5, 1e-9, 0};
  links.model.process = {0, 1e-11, 0};
  links.topology.nodes = {0, 0, 0, 0, 1, 1, 1, 1};
  links.topology.processes = {0, 0, 1, 1, 2, 2, 3, 3};
  CHECK(ringLink(links, {4, 2}, seqparMeshAxisQ).secondsPerByte == 1e-10);
  CHECK(ringLink(links, {4, 2}, seqparMeshAxisQ).alpha == 1e-6);
  CHECK(ringLink(links, {4, 2}, seqparMeshAxisKv).secondsPerByte == Approx(4e-9));
  CHECK(ringLink(links, {4, 2}, seqparMeshAxisKv).alpha == 1e-5);
  CHECK(ringLink(links, {1, 8}, seqparMeshAxisKv).secondsPerByte == Approx(1e-9));
  CHECK(ringLink(links, {2, 4}, seqparMeshAxisQ).secondsPerByte == Approx(1e-11));
}

TEST_CASE("a causal mask halves the tiles and keeps the transfers") {
  auto problem = llama(1024, 8);
  problem.forwardTile = 2e-3;
  problem.backwardTile = 6e-3;
  const auto links = oneNode(4, 1e9, 1e-6);
  const auto full = meshCosts(seqparMeshForward, {2, 2}, problem, links);
  problem.causal = true;
  const auto half = meshCosts(seqparMeshForward, {2, 2}, problem, links);
  CHECK(full.tile == 2e-3);
  CHECK(half.tile == 1e-3);
  CHECK(full.step == half.step);
  CHECK(meshCosts(seqparMeshBackward, {2, 2}, problem, links).tile == 3e-3);
  // 1024 tokens, 32 heads of 128 in bf16 are 8 MiB; keys and values together with 8 heads 4 MiB.
  CHECK(full.step[seqparMeshRecvQ] == Approx(1e-6 + 8388608e-9));
  CHECK(full.step[seqparMeshRecvKv] == Approx(1e-6 + 4194304e-9));
}
