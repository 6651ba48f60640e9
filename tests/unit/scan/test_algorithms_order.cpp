// Every algorithm combines every position once and in order, shown with a map that only records the positions it
// represents. Arithmetic cannot hide an error here.
#include <catch2/catch.hpp>
#include <cmath>
#include <cstring>
#include <numeric>

#include "algorithm_runs.h"
#include "base/error.h"
#include "kernels/scan/doubling_rounds.h"
#include "scan/cut.h"

namespace {

using namespace seqpar;
using namespace seqpar::test;

/// A run of positions, as a state of two values.
struct Run {
  float first, last;
};

/// The map of position p is the run [p, p]; composing joins runs, and throws if they are not adjacent. A coefficient is
/// the first position of its map, and 0 is never needed.
class RunAffine final : public Affine {
 public:
  RunAffine(int position, size_t units) : position_(static_cast<float>(position)), hops_(units, 0), units_(units) {}

  std::vector<Block> split(size_t parts) const override { return split({0, units_}, parts); }
  std::vector<Block> split(Block block, size_t parts) const override {
    const size_t length = block.end - block.begin;
    const size_t count = std::min(parts, length);
    std::vector<Block> blocks;
    for (size_t i = 0; i < count; ++i) {
      blocks.push_back({block.begin + length * i / count, block.begin + length * (i + 1) / count});
    }
    return blocks;
  }
  size_t stateElements(Block block) const override { return 2 * (block.end - block.begin); }
  size_t coefficientElements(Block block) const override { return block.end - block.begin; }

  void packState(Block block, Target wire) override {
    for (size_t i = 0; i < block.end - block.begin; ++i) reinterpret_cast<Run*>(wire.data)[i] = {position_, position_};
  }
  void packCoefficients(Block block, float* coefficients) override {
    std::fill_n(coefficients, coefficientElements(block), position_);
  }

  void hop(Block block, Values x, Target wire) override {
    if ((x.data == nullptr) != (position_ == 0)) throw std::logic_error("x is missing, or is given at position 0");
    for (size_t i = 0; i < block.end - block.begin; ++i) {
      ++hops_[block.begin + i];
      const Run run = x.data == nullptr ? Run{0, -1} : static_cast<const Run*>(x.data)[i];
      meet(run, position_);
      if (run.first != 0) throw std::logic_error("x does not begin at position 0");
      if (wire) reinterpret_cast<Run*>(wire.data)[i] = {0, position_};
    }
  }

  void compose(Block block, const float* laterA, Values laterS, float* earlierA, float* earlierS) override {
    for (size_t i = 0; i < block.end - block.begin; ++i) {
      const Run later = static_cast<const Run*>(laterS.data)[i];
      Run& earlier = reinterpret_cast<Run*>(earlierS)[i];
      meet(earlier, later.first);
      if (laterA[i] != later.first) throw std::logic_error("coefficients of another map");
      if ((earlierA == nullptr) != (earlier.first == 0)) {
        throw std::logic_error("a map from position 0 has coefficients, or another has none");
      }
      if (earlierA != nullptr && earlierA[i] != earlier.first) throw std::logic_error("coefficients of another map");
      earlier.last = later.last;
    }
  }

  void convert(Block block, Values from, Target to, seqparDataType_t) const override {
    std::memcpy(to.data, from.data, stateElements(block) * sizeof(float));
  }

  bool allHoppedOnce() const {
    return std::all_of(hops_.begin(), hops_.end(), [](int hops) { return hops == 1; });
  }

 private:
  static void meet(Run earlier, float next) {
    if (earlier.last + 1 == next) return;
    throw std::logic_error(concat("positions ", earlier.first, "..", earlier.last, " meet position ", next));
  }

  float position_;
  std::vector<int> hops_;
  size_t units_;
};

/// `units` independent scans over all positions of `lanes`, in the given nodes.
void checkOrder(seqparScanAlgorithm_t algorithm, size_t units, size_t blocks, const std::vector<int>& nodes,
                MemoryLanes& lanes) {
  const int size = static_cast<int>(nodes.size());
  std::vector<int> ranks(nodes.size());
  std::iota(ranks.begin(), ranks.end(), 0);
  std::reverse(ranks.begin(), ranks.end());
  std::vector<char> done(nodes.size(), 0);
  lanes.run([&](Mailbox& mail) {
    const int position = size - 1 - mail.rank();
    ScanProblem problem;
    problem.heads = units;
    problem.dk = 2;
    problem.dv = 1;
    problem.first = position == 0;
    RunAffine affine(position, units);
    scanAlgorithm(algorithm).host.run(affine, problem, {ranks, position, nodes}, mail, blocks);
    done[position] = affine.allHoppedOnce();
  });
  CHECK(std::count(done.begin(), done.end(), 1) == size);
}

MemoryMailboxOptions tight(size_t maxMessage) {
  MemoryMailboxOptions options;
  options.maxMessage = maxMessage;
  options.window = 4 * maxMessage;
  return options;
}

}  // namespace

TEST_CASE("every algorithm combines all positions in order, for up to 64 of them") {
  const seqparScanAlgorithm_t algorithm = GENERATE(from_range(allAlgorithms()));
  std::mt19937_64 random(7);
  for (int size = 1; size <= 64; size += size < 20 ? 1 : 11) {
    const std::vector<int> nodes = randomNodes(random, size, 1 + static_cast<int>(random() % 8));
    const size_t units = 1 + random() % 100;
    const size_t blocks = 1 + random() % 9;
    CAPTURE(algorithm, size, nodes, units, blocks);
    MemoryLanes lanes(size, {});
    checkOrder(algorithm, units, blocks, nodes, lanes);
  }
}

TEST_CASE("no algorithm deadlocks with the smallest window") {
  const seqparScanAlgorithm_t algorithm = GENERATE(from_range(allAlgorithms()));
  const int size = GENERATE(2, 3, 5, 8, 13);
  std::mt19937_64 random(static_cast<size_t>(size));
  MemoryLanes lanes(size, tight(1024));
  // Several operations in a row, so that ranks start one while others are still in the previous one.
  for (int i = 0; i < 10; ++i) {
    const std::vector<int> nodes = randomNodes(random, size, 1 + i % 5);
    CAPTURE(algorithm, size, nodes, i);
    checkOrder(algorithm, 1 + random() % 700, 1 + random() % 5, nodes, lanes);
  }
}

TEST_CASE("the mailbox of these tests shows a deadlock: ranks that publish more than the window before they receive") {
  const auto exchange = [](size_t messages, Mailbox& mail) {
    const int peer = 1 - mail.rank();
    for (size_t i = 0; i < messages; ++i) {
      mail.acquire(peer, 1024);
      mail.commit();
    }
    for (size_t i = 0; i < messages; ++i) {
      mail.receive(peer, 1024);
      mail.release(peer);
    }
  };
  MemoryMailboxOptions options = tight(1024);
  CHECK_NOTHROW(MemoryLanes(2, options).run([&](Mailbox& mail) { exchange(4, mail); }));
  options.timeout = std::chrono::seconds(1);
  CHECK_THROWS_WITH(MemoryLanes(2, options).run([&](Mailbox& mail) { exchange(5, mail); }),
                    Catch::Contains("acquiring 1024 bytes"));
}

TEST_CASE("HIER works for nodes of any sizes") {
  const std::vector<int> nodes = GENERATE(
      std::vector<int>{0}, std::vector<int>{3, 3, 3}, std::vector<int>{2, 1, 0}, std::vector<int>{0, 0, 0, 1},
      std::vector<int>{1, 0, 0, 0}, std::vector<int>{0, 0, 1, 1, 2, 2}, std::vector<int>{5, 5, 5, 2, 2, 9, 9, 9, 9});
  const size_t units = GENERATE(1, 2, 50);
  CAPTURE(nodes, units);
  MemoryLanes lanes(static_cast<int>(nodes.size()), {});
  checkOrder(seqparScanHier, units, 2, nodes, lanes);
}

TEST_CASE("HIER refuses a node whose positions are not neighbors, before it sends anything") {
  MemoryLanes lanes(3, {});
  try {
    checkOrder(seqparScanHier, 4, 1, {0, 1, 0}, lanes);
    FAIL("HIER ran");
  } catch (const Error& error) {
    CHECK(error.result() == seqparInvalidUsage);
    CHECK_THAT(error.what(), Catch::Contains("hier") && Catch::Contains("node 0") && Catch::Contains("neighbors"));
  }
  for (int rank = 0; rank < 3; ++rank) CHECK(lanes.messagesFrom(rank) == 0);
}

TEST_CASE("HIER cuts shards for the smallest node") {
  const std::vector<int> nodes = {4, 4, 4, 1, 1, 3, 3, 3};
  CHECK(hierRails({nodes, 0, nodes}) == 2);
}

TEST_CASE("doubling takes the paper's number of rounds and covers all earlier positions") {
  for (int size = 1; size <= 64; ++size) {
    CAPTURE(size);
    const int expected = size < 2 ? 0 : static_cast<int>(std::ceil(std::log2(size - 1) + std::log2(4.0 / 3) - 1e-9));
    CHECK(doublingRounds(size) == expected);

    // known[p]: the positions of the maps that position p has combined, in order.
    std::vector<std::vector<int>> known(static_cast<size_t>(size));
    for (int number = 0; hasDoublingRound(number, size); ++number) {
      const DoublingRound round = doublingRound(number);
      std::vector<std::vector<int>> sent = known;
      for (int p = 0; round.own && p < size; ++p) sent[p].push_back(p);
      for (int p = round.skip; p < size; ++p) {
        const std::vector<int>& got = sent[p - round.skip];
        known[p].insert(known[p].begin(), got.begin(), got.end());
      }
    }
    for (int p = 0; p < size; ++p) {
      std::vector<int> all(static_cast<size_t>(p));
      std::iota(all.begin(), all.end(), 0);
      CHECK(known[p] == all);
    }
  }
}

TEST_CASE("algorithms send as few messages as they should") {
  constexpr int kSize = 6;
  constexpr size_t kBlocks = 3;
  const std::vector<int> nodes(kSize, 0);
  const auto messagesAt = [](const MemoryLanes& lanes, int position) {
    return lanes.messagesFrom(kSize - 1 - position);
  };
  SECTION("CHAIN sends one message per block to the successor, none from the last position") {
    MemoryLanes lanes(kSize, {});
    checkOrder(seqparScanChain, 60, kBlocks, nodes, lanes);
    for (int p = 0; p < kSize; ++p) {
      CHECK(messagesAt(lanes, p) == (p + 1 < kSize ? kBlocks : 0));
      if (p + 1 < kSize) CHECK(lanes.messagesOn(kSize - 1 - p, kSize - 2 - p) == kBlocks);
    }
  }
  SECTION("ONESHOT sends one message per block for any number of receivers, none from the last position") {
    MemoryLanes lanes(kSize, {});
    checkOrder(seqparScanOneshot, 60, kBlocks, nodes, lanes);
    for (int p = 0; p < kSize; ++p) CHECK(messagesAt(lanes, p) == (p + 1 < kSize ? kBlocks : 0));
  }
  SECTION("TRANSPOSED sends shards of each block to the other owners and x of its own shard to later positions") {
    MemoryLanes lanes(kSize, {});
    checkOrder(seqparScanTransposed, 60, kBlocks, nodes, lanes);
    for (int p = 0; p < kSize; ++p) {
      const size_t maps = p + 1 < kSize ? kSize - 1 : 0;
      const size_t states = p == 0 ? kSize - 1 : kSize - 2;
      CHECK(messagesAt(lanes, p) == kBlocks * (maps + states));
    }
  }
  SECTION("DOUBLING sends at most one message per round and block") {
    MemoryLanes lanes(kSize, {});
    checkOrder(seqparScanDoubling, 60, kBlocks, nodes, lanes);
    for (int p = 0; p < kSize; ++p) CHECK(messagesAt(lanes, p) <= kBlocks * static_cast<size_t>(doublingRounds(kSize)));
  }
}
