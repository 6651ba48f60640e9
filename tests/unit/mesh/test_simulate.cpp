#include "mesh/simulate.h"

#include <catch2/catch.hpp>
#include <map>
#include <queue>

#include "mesh_costs.h"
#include "unit/seed.h"

using namespace seqpar;
using namespace seqpar::test;

namespace {

/// An event simulation of independent ranks: a rank starts a step after its previous step, a transfer starts when
/// sender and receiver have both started the step, and a step is done when its tiles, its sending and its receiving are
/// done.
class Events {
 public:
  Events(const MeshSchedule& schedule, const MeshCosts& costs)
      : schedule_(schedule), costs_(costs), ranks_(static_cast<size_t>(schedule.shape.ranks())) {
    for (int rank = 0; rank < schedule.shape.ranks(); ++rank) begin(rank, 0, 0);
    while (!queue_.empty()) {
      const auto event = queue_.top();
      queue_.pop();
      partDone(event.rank, event.at, event.isTiles);
    }
  }

  double total() const {
    double latest = 0;
    for (const auto& rank : ranks_) latest = std::max(latest, rank.end);
    return latest;
  }
  /// Time that a rank spends in a step after its tiles are done.
  double waited(int rank) const { return ranks_[static_cast<size_t>(rank)].waited; }

 private:
  struct Event {
    double at;
    int rank;
    bool isTiles;
    bool operator<(const Event& other) const { return at > other.at; }
  };
  struct Machine {
    size_t step = 0;
    int open = 0;  ///< parts of the step that are not done
    double tilesDone = 0, end = 0, waited = 0;
  };

  void begin(int rank, size_t step, double at) {
    auto& machine = ranks_[static_cast<size_t>(rank)];
    machine.step = step;
    machine.end = at;
    if (step == schedule_.steps.size()) return;
    const auto& what = schedule_.steps[step];
    machine.open = 1;
    queue_.push({at + what.tileCount * costs_.tile, rank, true});
    if (what.operation == seqparMeshCompute) return;
    machine.open += 2;
    const bool keys = what.operation == seqparMeshRecvKv || what.operation == seqparMeshSendDkv;
    const auto group = meshGroup(schedule_.shape, keys ? seqparMeshAxisKv : seqparMeshAxisQ, rank);
    meet(step, rank, group.successor(), at, what.operation);
    meet(step, group.predecessor(), rank, at, what.operation);
  }

  /// Registers one end of a transfer; starts the transfer if the other end is registered already.
  void meet(size_t step, int from, int to, double at, int operation) {
    const auto key = std::tuple(step, from, to);
    const auto other = waiting_.find(key);
    if (other == waiting_.end()) {
      waiting_.emplace(key, at);
      return;
    }
    const double done = std::max(at, other->second) + costs_.step[static_cast<size_t>(operation)];
    queue_.push({done, from, false});
    queue_.push({done, to, false});
  }

  void partDone(int rank, double at, bool isTiles) {
    auto& machine = ranks_[static_cast<size_t>(rank)];
    if (isTiles) machine.tilesDone = at;
    if (--machine.open > 0) return;
    machine.waited += at - machine.tilesDone;
    begin(rank, machine.step + 1, at);
  }

  const MeshSchedule& schedule_;
  const MeshCosts& costs_;
  std::vector<Machine> ranks_;
  std::priority_queue<Event> queue_;
  std::map<std::tuple<size_t, int, int>, double> waiting_;
};

}  // namespace

TEST_CASE("a forward pass by hand") {
  // Q unlocks one tile for 1, KV one tile for 2: Q first, hidden by (0,0). Then KV, hidden by (1,0) only: 1 exposed.
  // Then (1,1), which completes row 1; sending it is hidden by (0,1).
  const auto costs = forwardCosts(1, 1, 2, 1);
  const auto schedule = forwardSchedule({2, 2}, costs);
  REQUIRE(schedule.steps.size() == 4);
  const int operations[] = {seqparMeshRecvQ, seqparMeshRecvKv, seqparMeshCompute, seqparMeshSendO};
  const seqparMeshTile_t tiles[] = {{0, 0}, {1, 0}, {1, 1}, {0, 1}};
  for (size_t step = 0; step < 4; ++step) {
    CHECK(schedule.steps[step].operation == operations[step]);
    CHECK(schedule.steps[step].tileCount == 1);
    CHECK(schedule.tiles[step].q == tiles[step].q);
    CHECK(schedule.tiles[step].kv == tiles[step].kv);
  }
  const auto timing = simulate(schedule, costs);
  CHECK(timing.total == 5);
  CHECK(timing.communication == 4);
  CHECK(timing.exposed == 1);
}

TEST_CASE("a backward pass by hand") {
  // KV first, hidden by (0,0); OdOQ hidden by (0,1) only: 1 exposed. (1,1) completes column 1, which costs more to
  // send: it overlaps with (1,0), 2 exposed; then row 1 without remaining tiles, 2 exposed.
  const auto costs = backwardCosts(2, 3, 2, 2, 4);
  const auto schedule = backwardSchedule({2, 2}, costs);
  REQUIRE(schedule.steps.size() == 5);
  const int operations[] = {seqparMeshRecvKv, seqparMeshRecvOdoq, seqparMeshCompute, seqparMeshSendDkv,
                            seqparMeshSendDq};
  const seqparMeshTile_t tiles[] = {{0, 0}, {0, 1}, {1, 1}, {1, 0}};
  for (size_t step = 0; step < 5; ++step) CHECK(schedule.steps[step].operation == operations[step]);
  for (size_t tile = 0; tile < 4; ++tile) {
    CHECK(schedule.tiles[tile].q == tiles[tile].q);
    CHECK(schedule.tiles[tile].kv == tiles[tile].kv);
  }
  const auto timing = simulate(schedule, costs);
  CHECK(timing.total == 13);
  CHECK(timing.communication == 11);
  CHECK(timing.exposed == 5);
}

TEST_CASE("the simulator agrees with a rank-by-rank simulation") {
  const seqpar::test::Seed seed;
  std::mt19937_64 random(seed);
  for (int n = 1; n <= 36; ++n) {
    for (const auto shape : meshShapes(n)) {
      for (const auto pass : {seqparMeshForward, seqparMeshBackward}) {
        const auto costs = randomCosts(random);
        CAPTURE(shape.a, shape.b, pass, costs.tile, costs.step);
        const auto schedule = meshSchedule(pass, shape, costs);
        const Events events(schedule, costs);
        const auto timing = simulate(schedule, costs);
        REQUIRE(timing.total == events.total());
        for (int rank = 0; rank < n; ++rank) REQUIRE(timing.exposed == events.waited(rank));
      }
    }
  }
}

TEST_CASE("a schedule's time is between its longest resource and their sum") {
  const seqpar::test::Seed seed;
  std::mt19937_64 random(seed);
  for (int round = 0; round < 300; ++round) {
    const auto shapes = meshShapes(1 + static_cast<int>(random() % 64));
    const auto shape = shapes[random() % shapes.size()];
    const auto costs = randomCosts(random);
    for (const auto pass : {seqparMeshForward, seqparMeshBackward}) {
      CAPTURE(shape.a, shape.b, pass, costs.tile, costs.step);
      const auto timing = simulate(meshSchedule(pass, shape, costs), costs);
      const double tiles = shape.ranks() * costs.tile;
      CHECK(timing.total == tiles + timing.exposed);
      CHECK(timing.total >= timing.communication);
      CHECK(timing.exposed <= timing.communication);
    }
  }
}
