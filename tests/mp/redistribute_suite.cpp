#include "redistribute_suite.h"

#include <array>
#include <vector>

#include "common/backend.h"
#include "seqpar/groups.h"
#include "support/naive_layout.h"

namespace seqpar::test {
namespace {

using Bytes = Vector<unsigned char>;

constexpr size_t kMargin = 64;  ///< bytes before and after a tensor that must not change
constexpr unsigned char kUntouched = 0xa5;

struct Tensor {
  int64_t outer, rowBytes;
};

/// One redistribution, the same on all ranks.
struct Problem {
  LayoutCase from, to;
  std::vector<Tensor> tensors;

  std::string text() const {
    std::ostringstream out;
    out << "from " << from.text() << "; to " << to.text();
    for (const auto& tensor : tensors) out << "; tensor " << tensor.outer << " x " << tensor.rowBytes;
    return out.str();
  }
};

/// Tensor `t` on a rank that has these tokens, or nothing but untouched bytes, with margins.
Bytes tensorOf(size_t t, const Tensor& tensor, const std::vector<int64_t>& tokens, bool filled) {
  const size_t rows = static_cast<size_t>(tensor.outer) * tokens.size();
  const auto rowBytes = static_cast<size_t>(tensor.rowBytes);
  Bytes out(rows * rowBytes + 2 * kMargin, kUntouched);
  if (!filled) return out;
  for (size_t row = 0; row < rows; ++row) {
    const auto token = static_cast<uint64_t>(tokens[row % tokens.size()]);
    std::mt19937_64 random(token * 4096 + row / tokens.size() * 64 + t);
    for (size_t i = 0; i < rowBytes; ++i) out[kMargin + row * rowBytes + i] = static_cast<unsigned char>(random());
  }
  return out;
}

std::vector<Bytes> tensorsOf(const Problem& problem, const std::vector<int64_t>& tokens, bool filled) {
  std::vector<Bytes> out;
  for (size_t t = 0; t < problem.tensors.size(); ++t) out.push_back(tensorOf(t, problem.tensors[t], tokens, filled));
  return out;
}

seqparRedistributePlan_t makePlan(const LayoutCase& from, const LayoutCase& to, const std::vector<Tensor>& tensors,
                                  seqparComm_t comm) {
  std::vector<int64_t> outer;
  std::vector<int64_t> rowBytes;
  for (const auto& tensor : tensors) {
    outer.push_back(tensor.outer);
    rowBytes.push_back(tensor.rowBytes);
  }
  const auto had = from.get();
  const auto expected = to.get();
  seqparRedistributePlan_t plan = nullptr;
  expectSuccess(seqparRedistributePlanCreate(&plan, &had, &expected, static_cast<int>(tensors.size()), outer.data(),
                                             rowBytes.data(), comm),
                "seqparRedistributePlanCreate", comm);
  return plan;
}

void move(seqparRedistributePlan_t plan, std::vector<Bytes>& send, std::vector<Bytes>& receive, void* stream,
          seqparComm_t comm) {
  std::vector<const void*> from;
  std::vector<void*> into;
  for (size_t t = 0; t < send.size(); ++t) {
    from.push_back(send[t].data() + kMargin);
    into.push_back(receive[t].data() + kMargin);
  }
  expectSuccess(seqparRedistribute(plan, from.data(), into.data(), stream), "seqparRedistribute", comm);
}

/// Redistributes there and back; on a stream, the second call is enqueued before the first is done.
void check(const Problem& problem, seqparComm_t comm, int rank, const Stream* stream) {
  const auto had = dealTokens(problem.from)[static_cast<size_t>(rank)];
  const auto expected = dealTokens(problem.to)[static_cast<size_t>(rank)];
  auto original = tensorsOf(problem, had, true);
  auto moved = tensorsOf(problem, expected, false);
  auto back = tensorsOf(problem, had, false);
  auto* const plan = makePlan(problem.from, problem.to, problem.tensors, comm);
  auto* const inverse = makePlan(problem.to, problem.from, problem.tensors, comm);
  void* const handle = stream == nullptr ? backend()->noStream() : stream->get();
  move(plan, original, moved, handle, comm);
  move(inverse, moved, back, handle, comm);
  expectSuccess(seqparRedistributePlanDestroy(plan), "seqparRedistributePlanDestroy");
  expectSuccess(seqparRedistributePlanDestroy(inverse), "seqparRedistributePlanDestroy");
  backend()->synchronize(handle);
  expect(moved == tensorsOf(problem, expected, true), problem.text(), ": what arrived is wrong");
  expect(back == tensorsOf(problem, had, true), problem.text(), ": what came back is wrong");
}

Problem drawProblem(int ranks, std::mt19937_64& random) {
  constexpr int64_t kTokens[] = {0, 1, 2, 7, 64, 100, 257, 1000, 4096};
  constexpr int64_t kRows[] = {0, 1, 4, 36, 128, 1024};
  Problem problem;
  const int64_t tokens = kTokens[random() % std::size(kTokens)];
  problem.from = drawLayout(ranks, tokens, random);
  problem.to = drawLayout(ranks, tokens, random);
  if (random() % 2 == 0 && problem.to.kind != seqparPieces) problem.to.bounds = problem.from.bounds;
  for (uint64_t t = random() % 4; t > 0; --t) {
    problem.tensors.push_back({static_cast<int64_t>(random() % 4), kRows[random() % std::size(kRows)]});
  }
  return problem;
}

}  // namespace

void runRedistributeSuite(seqparComm_t comm, std::uint64_t seed, int rounds) {
  int ranks = 0;
  int rank = 0;
  expectSuccess(seqparCommCount(comm, &ranks), "seqparCommCount");
  expectSuccess(seqparCommUserRank(comm, &rank), "seqparCommUserRank");
  const Stream stream;
  for (const int64_t tokens : {3, 1000}) {
    for (int from = seqparContiguous; from <= seqparStriped; ++from) {
      for (int to = seqparContiguous; to <= seqparStriped; ++to) {
        check({{from, ranks, tokens, 1, 1, {}}, {to, ranks, tokens, 4, 1, {}}, {{1, 96}, {2, 4}}}, comm, rank,
              tokens == 3 ? nullptr : &stream);
      }
    }
  }
  // More bytes between two ranks than a message has.
  check({{seqparContiguous, ranks, 5000, 1, 1, {}}, {seqparZigzag, ranks, 5000, 1, 1, {}}, {{1, 2048}}}, comm, rank,
        nullptr);
  std::mt19937_64 random(seed);
  for (int round = 0; round < rounds; ++round) {
    check(drawProblem(ranks, random), comm, rank, random() % 2 == 0 ? &stream : nullptr);
  }
}

void runGroupsSuite(seqparComm_t world, std::uint64_t seed) {
  int ranks = 0;
  int rank = 0;
  expectSuccess(seqparCommCount(world, &ranks), "seqparCommCount");
  expectSuccess(seqparCommUserRank(world, &rank), "seqparCommUserRank");
  seqparGrid_t grid = SEQPAR_GRID_INITIALIZER;
  int left = ranks;
  for (const int dim : {seqparDimTensor, seqparDimUlysses, seqparDimRing}) {
    grid.extent[dim] = left % 2 == 0 ? 2 : left % 3 == 0 ? 3 : 1;
    left /= grid.extent[dim];
  }
  grid.extent[seqparDimData] = left;
  constexpr std::array<unsigned, 2> kDims{SEQPAR_DIM(seqparDimUlysses) | SEQPAR_DIM(seqparDimRing),
                                          SEQPAR_DIM(seqparDimTensor)};
  std::array<seqparComm_t, 2> comms{};
  expectSuccess(seqparGroupsCreate(world, &grid, kDims.data(), 2, comms.data(), nullptr), "seqparGroupsCreate", world);
  for (size_t i = 0; i < comms.size(); ++i) {
    int count = 0;
    int place = -1;
    int size = 0;
    expectSuccess(seqparGridGroup(&grid, kDims[i], rank, nullptr, 0, &count, &place), "seqparGridGroup");
    expectSuccess(seqparCommCount(comms[i], &size), "seqparCommCount", comms[i]);
    expect(size == count, "group ", i, " of rank ", rank, " has ", size, " ranks, expected ", count);
    runRedistributeSuite(comms[i], seed, 3);
    backend()->barrier();  // other groups are done too
    expectSuccess(seqparCommDestroy(comms[i]), "seqparCommDestroy");
    backend()->barrier();
  }
}

}  // namespace seqpar::test
