// Executes every schedule on all ranks together, with sets of blocks instead of values.
#include <catch2/catch.hpp>

#include "common/covering.h"
#include "mesh/search.h"
#include "mesh_costs.h"
#include "unit/seed.h"

using namespace seqpar;
using namespace seqpar::test;

namespace {

/// Throws at the first violation with its description: Catch's macros are too slow for millions of checks.
void must(bool holds, const char* what) {
  if (!holds) throw std::runtime_error(what);
}

/// Blocks of one kind that are passed around one ring, on one rank: the owners of those that have arrived.
struct Blocks {
  std::vector<int> owners{};
};

/// The partial result of a row or a column: the ranks that contributed blocks to it, and the rank that owns it.
struct Partial {
  uint64_t from = 0;
  int owner = -1;
};

void addTo(Partial& into, uint64_t from) {
  must((into.from & from) == 0, "something was added twice");
  into.from |= from;
}

struct Rank {
  MeshGroup q, kv;
  Blocks queries, keys;
  std::vector<Partial> rows, columns;  ///< of O or dQ; of dKV
  std::vector<bool> computed;
  Partial rowCarry, columnCarry;
};

class World {
 public:
  World(const MeshSchedule& schedule) : schedule_(schedule), shape_(schedule.shape) {
    for (int rank = 0; rank < shape_.ranks(); ++rank) {
      Rank one{meshGroup(shape_, seqparMeshAxisQ, rank),
               meshGroup(shape_, seqparMeshAxisKv, rank),
               {{rank}},
               {{rank}},
               std::vector<Partial>(static_cast<size_t>(shape_.a)),
               std::vector<Partial>(static_cast<size_t>(shape_.b)),
               std::vector<bool>(static_cast<size_t>(shape_.ranks())),
               {},
               {}};
      ranks_.push_back(std::move(one));
    }
  }

  void run() {
    int nextTile = 0;
    for (const auto& step : schedule_.steps) {
      must(step.firstTile == nextTile, "tiles of a step do not follow those of the step before");
      nextTile += step.tileCount;
      // Sends use the data at the step's start; received data cannot be used before its end.
      const auto before = ranks_;
      for (auto& rank : ranks_) {
        for (int t = step.firstTile; t < nextTile; ++t)
          compute(rank, schedule_.tiles.at(static_cast<size_t>(t)), before);
      }
      for (size_t rank = 0; rank < ranks_.size(); ++rank) move(step, static_cast<int>(rank), before);
    }
    must(nextTile == shape_.ranks() && schedule_.tiles.size() == ranks_.size(), "not as many tiles as there are");
    finish();
  }

 private:
  void compute(Rank& rank, seqparMeshTile_t tile, const std::vector<Rank>& before) {
    const auto self = static_cast<size_t>(rank.queries.owners[0]);
    must(tile.q >= 0 && tile.kv >= 0, "a tile that is none");
    must(static_cast<size_t>(tile.q) < before[self].queries.owners.size(), "a query was used before it arrived");
    must(static_cast<size_t>(tile.kv) < before[self].keys.owners.size(), "a key was used before it arrived");
    const auto index = static_cast<size_t>(tile.q * shape_.b + tile.kv);
    must(!rank.computed[index], "a tile was computed twice");
    rank.computed[index] = true;
    const int query = rank.queries.owners[static_cast<size_t>(tile.q)];
    const int key = rank.keys.owners[static_cast<size_t>(tile.kv)];
    addTo(rank.rows[static_cast<size_t>(tile.q)], uint64_t{1} << key);
    addTo(rank.columns[static_cast<size_t>(tile.kv)], uint64_t{1} << query);
  }

  void move(const seqparMeshStep_t& step, int self, const std::vector<Rank>& before) {
    Rank& rank = ranks_[static_cast<size_t>(self)];
    const bool forward = schedule_.pass == seqparMeshForward;
    switch (step.operation) {
      case seqparMeshCompute:
        must(step.index == 0 && step.tileCount > 0, "a step without any use");
        return;
      case seqparMeshRecvQ:
      case seqparMeshRecvOdoq:
        must(forward == (step.operation == seqparMeshRecvQ), "an operation of the other pass");
        return receive(rank.queries, step.index, rank.q, before[static_cast<size_t>(rank.q.predecessor())].queries);
      case seqparMeshRecvKv:
        return receive(rank.keys, step.index, rank.kv, before[static_cast<size_t>(rank.kv.predecessor())].keys);
      case seqparMeshSendO:
      case seqparMeshSendDq: {
        must(forward == (step.operation == seqparMeshSendO), "an operation of the other pass");
        const auto& from = before[static_cast<size_t>(rank.q.predecessor())];
        return reduce(rank.rowCarry, from.rows, from.rowCarry, step.index, rank.q, from.queries, shape_.b, rowsSent_);
      }
      case seqparMeshSendDkv: {
        must(!forward, "an operation of the other pass");
        const auto& from = before[static_cast<size_t>(rank.kv.predecessor())];
        return reduce(rank.columnCarry, from.columns, from.columnCarry, step.index, rank.kv, from.keys, shape_.a,
                      columnsSent_);
      }
      default:
        must(false, "an operation that is none");
    }
  }

  static void receive(Blocks& mine, int index, const MeshGroup& group, const Blocks& predecessor) {
    must(static_cast<size_t>(index) == mine.owners.size(), "a block was received out of order");
    const int owner = predecessor.owners.at(static_cast<size_t>(index - 1));
    must(owner == group.owner(index), "the ring brought another block than Table 1 says");
    mine.owners.push_back(owner);
  }

  void reduce(Partial& carry, const std::vector<Partial>& predecessor, const Partial& predecessorCarry, int index,
              const MeshGroup& group, const Blocks& predecessorBlocks, int tilesOfLine, std::vector<int>& sent) {
    sent.resize(ranks_.size(), 0);
    int& latest = sent[static_cast<size_t>(group.owner(0))];
    must(index == ++latest, "a partial result was sent out of order");
    Partial arriving = predecessor.at(static_cast<size_t>(index));
    must(__builtin_popcountll(arriving.from) == tilesOfLine, "a partial result was sent before it was complete");
    arriving.owner = predecessorBlocks.owners.at(static_cast<size_t>(index));
    if (index > 1) {
      must(predecessorCarry.owner == arriving.owner, "another block's partial result was merged");
      addTo(arriving, predecessorCarry.from);
    }
    must(arriving.owner == group.owner((index + 1) % group.size()), "a partial result came to the wrong step");
    carry = arriving;
  }

  void finish() {
    const uint64_t all = ranks_.size() == 64 ? ~uint64_t{0} : (uint64_t{1} << ranks_.size()) - 1;
    for (auto& rank : ranks_) {
      const int self = rank.queries.owners[0];
      const auto close = [&](Partial own, const Partial& carry, int members) {
        if (members > 1) {
          must(carry.owner == self, "the last carry is another rank's");
          addTo(own, carry.from);
        }
        must(own.from == all, "a result lacks something");
      };
      close(rank.rows[0], rank.rowCarry, shape_.a);
      if (schedule_.pass == seqparMeshBackward) close(rank.columns[0], rank.columnCarry, shape_.b);
    }
  }

  const MeshSchedule& schedule_;
  MeshShape shape_;
  std::vector<Rank> ranks_;
  std::vector<int> rowsSent_, columnsSent_;
};

/// Bytes that the schedule's movements send, by counting them.
int64_t sentBytes(const MeshSchedule& schedule, const MeshBytes& bytes) {
  int64_t sum = 0;
  for (const auto& step : schedule.steps) sum += bytes[static_cast<size_t>(step.operation)];
  return sum;
}

/// The seven kinds get weights with distinct sums.
MeshBytes distinctBytes() {
  return {0, 1, 1000, 1000000, 1000000000, 1000000000000, 1000000000000000};
}

void checkSchedules(MeshShape shape, const MeshCosts& costs) {
  for (const auto pass : {seqparMeshForward, seqparMeshBackward}) {
    CAPTURE(shape.a, shape.b, pass, costs.tile, costs.step);
    const auto schedule = meshSchedule(pass, shape, costs);
    REQUIRE_NOTHROW(World(schedule).run());
    REQUIRE(sentBytes(schedule, distinctBytes()) == passBytes(pass, shape, distinctBytes()));
  }
}

}  // namespace

TEST_CASE("every schedule of up to 64 ranks gives every rank its results") {
  const seqpar::test::Seed seed;
  std::mt19937_64 random(seed);
  for (int n = 1; n <= 64; ++n) {
    if (seqpar::test::kSanitized && n > 24 && n % 8 != 0) continue;
    for (const auto shape : meshShapes(n)) {
      checkSchedules(shape, {{0, 1, 1, 1, 1, 1, 1}, 1});
      checkSchedules(shape, {{0, 3.5, 7, 5, 2.5, 3, 9}, 1});
      checkSchedules(shape, randomCosts(random));
      if (n <= 24) {
        for (int round = 0; round < 8; ++round) checkSchedules(shape, randomCosts(random));
      }
    }
  }
}

TEST_CASE("a wrong schedule is found") {
  const auto right = meshSchedule(seqparMeshForward, {2, 2}, forwardCosts(1, 1, 2, 1));
  REQUIRE_NOTHROW(World(right).run());
  auto wrong = right;
  std::swap(wrong.tiles.front(), wrong.tiles.back());
  CHECK_THROWS(World(wrong).run());
  wrong = right;
  wrong.tiles[1] = wrong.tiles[0];
  CHECK_THROWS(World(wrong).run());
  wrong = right;
  std::swap(wrong.steps[2].operation, wrong.steps[3].operation);
  std::swap(wrong.steps[2].index, wrong.steps[3].index);
  CHECK_THROWS(World(wrong).run());
  wrong = right;
  wrong.steps.erase(wrong.steps.begin());
  CHECK_THROWS(World(wrong).run());
}

TEST_CASE("sent volumes are the paper's") {
  // fp32 everywhere, lse not counted: (Nd/n)(2(a-1) + 2(b-1)) elements forward, 4 and 4 backward.
  MeshProblem problem;
  problem.tokens = 6;
  problem.heads = problem.kvHeads = 2;
  problem.headDim = problem.valueDim = 4;
  problem.dataType = problem.wireType = seqparFloat32;
  problem.sendDelta = false;
  const auto bytes = meshBytes(problem);
  const int64_t block = 4 * 6 * 2 * 4;  // Nd/n
  const int64_t lse = 4 * 6 * 2;
  for (const auto shape : meshShapes(36)) {
    const int64_t rows = shape.a - 1, columns = shape.b - 1;
    CHECK(passBytes(seqparMeshForward, shape, bytes) == block * (2 * rows + 2 * columns) + lse * rows);
    CHECK(passBytes(seqparMeshBackward, shape, bytes) == block * (4 * rows + 4 * columns) + lse * rows);
  }
  problem.sendDelta = true;
  problem.kvHeads = 1;
  const auto grouped = meshBytes(problem);
  CHECK(passBytes(seqparMeshForward, {3, 4}, grouped) == 2 * (2 * block + lse) + 3 * block);
  CHECK(passBytes(seqparMeshBackward, {3, 4}, grouped) == 2 * (3 * block + 2 * lse) + 3 * 2 * block);
}

TEST_CASE("one row is Ring Attention: a block arrives while the one before is used") {
  const auto schedule = forwardSchedule({1, 4}, forwardCosts(1, 9, 1, 9));
  REQUIRE(schedule.steps.size() == 4);
  for (int step = 0; step < 4; ++step) {
    const auto& one = schedule.steps[static_cast<size_t>(step)];
    CHECK(one.operation == (step < 3 ? seqparMeshRecvKv : seqparMeshCompute));
    CHECK(one.index == (step < 3 ? step + 1 : 0));
    CHECK(one.tileCount == 1);
    CHECK(schedule.tiles[static_cast<size_t>(step)].kv == step);
  }
}
