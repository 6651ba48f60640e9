#include "soak_suite.h"

#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <functional>
#include <map>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "common/backend.h"
#include "exchange_ops_suite.h"
#include "exchange_suite.h"
#include "kept_ring.h"
#include "mesh_suite.h"
#include "redistribute_suite.h"
#include "ring_suite.h"
#include "scan_suite.h"
#include "seqpar/groups.h"

namespace seqpar::test {
namespace {

using Random = std::mt19937_64;

int drawBelow(Random& random, int bound) {
  return static_cast<int>(random() % static_cast<std::uint64_t>(bound));
}

class Soak {
 public:
  Soak(seqparComm_t world, std::uint64_t seed) : world_(world), seed_(seed), random_(seed) {
    expectSuccess(seqparCommCount(world, &ranks_), "seqparCommCount");
    expectSuccess(seqparCommUserRank(world, &rank_), "seqparCommUserRank");
    comms_ = {world};
    addGroups();
    rings_.resize(comms_.size());
    graphs_.resize(comms_.size());
  }

  void run(int seconds) {
    const auto end = std::chrono::steady_clock::now() + std::chrono::seconds(seconds);
    for (int turn = 0; agree(std::chrono::steady_clock::now() < end); ++turn) {
      const Action& action = draw();
      const auto which = static_cast<size_t>(drawBelow(random_, static_cast<int>(comms_.size())));
      const std::uint64_t seed = random_();
      ++turns_[action.name];
      if (rank_ == 0 && std::getenv("SEQPAR_TEST_TURNS") != nullptr) {
        std::fprintf(stderr, "turn %d: %s on communicator %zu, seed %llu\n", turn, action.name, which,
                     static_cast<unsigned long long>(seed));
      }
      try {
        action.run(which, seed);
      } catch (const std::exception& error) {
        expect(false, "soak of seed ", seed_, ", turn ", turn, " (", action.name, " on communicator ", which,
               "): ", error.what());
      }
    }
    close();
    if (rank_ > 0) return;
    std::string text;
    for (const auto& [name, count] : turns_) text += std::string(", ") + name + " " + std::to_string(count);
    std::printf("soak of seed %llu, %d ranks%s\n", static_cast<unsigned long long>(seed_), ranks_, text.c_str());
  }

 private:
  struct Action {
    const char* name;
    int weight;
    std::function<void(size_t which, std::uint64_t seed)> run;
  };

  /// Groups of equal sizes, so that all ranks do the same things at the same time.
  void addGroups() {
    if (ranks_ < 4 || ranks_ % 2 != 0) return;
    seqparComm_t half = nullptr;
    expectSuccess(seqparCommSplit(world_, rank_ % 2, -rank_, &half, nullptr), "seqparCommSplit", world_);
    seqparGrid_t grid = SEQPAR_GRID_INITIALIZER;
    grid.extent[seqparDimUlysses] = 2;
    grid.extent[seqparDimRing] = ranks_ / 2;
    const unsigned dims[] = {SEQPAR_DIM(seqparDimUlysses), SEQPAR_DIM(seqparDimUlysses) | SEQPAR_DIM(seqparDimRing)};
    seqparComm_t groups[2] = {};
    expectSuccess(seqparGroupsCreate(world_, &grid, dims, 2, groups, nullptr), "seqparGroupsCreate", world_);
    comms_.insert(comms_.end(), {half, groups[0], groups[1]});
    owned_.assign(comms_.begin() + 1, comms_.end());
  }

  /// Rank 0 decides; the others hear it along a chain.
  bool agree(bool mine) {
    Vector<int> go(4, mine ? 1 : 0);
    auto* const stream = backend()->noStream();
    const auto bytes = go.size() * sizeof(int);
    if (rank_ > 0) {
      expectSuccess(seqparSendRecv(nullptr, 0, SEQPAR_NO_PEER, go.data(), bytes, rank_ - 1, world_, stream),
                    "seqparSendRecv", world_);
      backend()->synchronize(stream);
    }
    if (rank_ + 1 < ranks_) {
      expectSuccess(seqparSendRecv(go.data(), bytes, rank_ + 1, nullptr, 0, SEQPAR_NO_PEER, world_, stream),
                    "seqparSendRecv", world_);
      backend()->synchronize(stream);
    }
    return go.front() == 1;
  }

  const Action& draw() {
    int all = 0;
    for (const auto& action : actions_) all += action.weight;
    int left = drawBelow(random_, all);
    size_t at = 0;
    while (left >= actions_[at].weight) left -= actions_[at++].weight;
    return actions_[at];
  }

  int some(std::uint64_t seed, int most) { return 1 + static_cast<int>(seed % static_cast<std::uint64_t>(most)); }

  /// A ring that stays open from turn to turn; now and then a new one in its place.
  KeptRing& keptRing(size_t which, std::uint64_t seed) {
    auto& ring = rings_[which];
    if (ring && seed % 8 == 0) closeRing(which);
    if (!ring) ring = std::make_unique<KeptRing>(comms_[which], seed);
    return *ring;
  }
  void closeRing(size_t which) {
    if (rings_[which]) rings_[which]->close();
    rings_[which].reset();
  }

  void runKeptRing(size_t which, std::uint64_t seed) {
    // Between post and wait anything may go on, on the same communicator or on another one.
    const size_t other = seed / 64 % comms_.size();
    keptRing(which, seed).run(seed, [&](int step) {
      const std::uint64_t inner = seed + static_cast<std::uint64_t>(step);
      if (inner % 3 == 0) runScanSuite(comms_[other], inner, 1);
      if (inner % 3 == 1) runExchangeSuite(comms_[other], inner, 1);
    });
  }

  void runGraph(size_t which, std::uint64_t seed) {
    auto& graph = graphs_[which];
    if (graph && seed % 16 == 0) closeGraph(which);
    if (!graph) graph = std::make_unique<CapturedRing>(comms_[which], seed);
    graph->replay(seed, some(seed / 16, 6));
  }
  void closeGraph(size_t which) {
    if (graphs_[which]) graphs_[which]->close();
    graphs_[which].reset();
  }

  void close() {
    for (size_t which = 0; which < comms_.size(); ++which) {
      closeGraph(which);
      closeRing(which);
    }
    backend()->barrier();
    for (auto* comm : owned_) {
      expectSuccess(seqparCommDestroy(comm), "seqparCommDestroy");
      backend()->barrier();
    }
  }

  seqparComm_t world_;
  std::uint64_t seed_;
  Random random_;
  int ranks_ = 0, rank_ = 0;
  std::vector<seqparComm_t> comms_, owned_;
  std::vector<std::unique_ptr<KeptRing>> rings_;       ///< of each communicator; null: none is open
  std::vector<std::unique_ptr<CapturedRing>> graphs_;  ///< likewise
  std::map<std::string, int> turns_;
  const std::vector<Action> actions_{
      {"scans", 12, [this](size_t on, std::uint64_t seed) { runScanSuite(comms_[on], seed, some(seed, 8)); }},
      {"shifts", 8, [this](size_t on, std::uint64_t seed) { runExchangeSuite(comms_[on], seed, some(seed, 5)); }},
      {"exchanges", 12,
       [this](size_t on, std::uint64_t seed) {
         runExchangeOps(comms_[on], seed, {.cases = some(seed, 5), .most = 2000});
       }},
      {"redistributions", 1,
       [this](size_t on, std::uint64_t seed) { runRedistributeSuite(comms_[on], seed, some(seed, 5)); }},
      {"meshes", 2, [this](size_t on, std::uint64_t seed) { runMeshSuite(comms_[on], seed, 1); }},
      {"rings", 1, [this](size_t on, std::uint64_t seed) { runRingSuite(comms_[on], seed, 1); }},
      {"kept rings", 12, [this](size_t on, std::uint64_t seed) { runKeptRing(on, seed); }},
      {"graphs", backend()->hasGraphs() ? 16 : 0, [this](size_t on, std::uint64_t seed) { runGraph(on, seed); }},
      {"groups", 1, [this](size_t, std::uint64_t seed) { runGroupsSuite(world_, seed); }},
  };
};

}  // namespace

void runSoak(seqparComm_t world, std::uint64_t seed, int seconds) {
  Soak(world, seed).run(seconds);
}

}  // namespace seqpar::test
