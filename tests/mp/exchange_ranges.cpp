#include <random>

#include "exchange_runner.h"

namespace seqpar::test {
namespace {

class RangesRunner : public ExchangeRunner {
 public:
  using ExchangeRunner::ExchangeRunner;

  /// Gathers random ranges and adds other numbers in their places: the copies of each token.
  void ranges() {
    const auto shape = shards();
    std::vector<int64_t> counts;
    std::vector<seqparRange_t> all;
    for (size_t member = 0; member < c_.members(); ++member) {
      const auto mine = rangesOf(member);
      counts.push_back(static_cast<int64_t>(mine.size()));
      all.insert(all.end(), mine.begin(), mine.end());
    }
    seqparRangesPlan_t plan = nullptr;
    expectSuccess(seqparRangesPlanCreate(&plan, &shape, counts.data(), all.data(), comm_), "seqparRangesPlanCreate",
                  comm_);
    // The numbers of a member's ranges, of the array with this key.
    const auto part = [&](size_t member, std::uint64_t key) {
      std::vector<float> values;
      for (int64_t outer = 0; outer < c_.outer; ++outer) {
        for (const auto& range : rangesOf(member)) {
          for (int64_t i = 0; i < range.count * c_.inner; ++i) {
            values.push_back(valueOf(key, static_cast<size_t>((outer * c_.total() + range.first) * c_.inner + i)));
          }
        }
      }
      return values;
    };
    const auto mine = slice(c_.first(self_), c_.tokens[self_], {c_.key});
    const auto gathered = part(self_, c_.key), sent = part(self_, c_.keyOf(self_));
    MarginArray shard(mine.size(), c_.type, c_.skew), into(gathered.size(), c_.type, c_.skew / 5),
        from(sent.size(), c_.type, c_.skew / 7), sums(mine.size(), c_.type, c_.skew / 25);
    shard.set(mine);
    from.set(sent);
    sums.set(mine);
    done(seqparGatherRanges(plan, shard.data(), into.data(), stream_));
    compare("part", into, gathered);
    compare("shard", shard, mine);
    done(seqparScatterRanges(plan, from.data(), sums.data(), stream_));
    expectSuccess(seqparRangesPlanDestroy(plan), "seqparRangesPlanDestroy");
    auto expected = mine;  // of tokens without copies
    for (int64_t token = 0; token < c_.tokens[self_]; ++token) {
      const int64_t global = c_.first(self_) + token;
      std::vector<std::uint64_t> keys;
      for (size_t member = 0; member < c_.members(); ++member) {
        const auto of = rangesOf(member);
        if (std::any_of(of.begin(), of.end(), [&](const auto& range) {
              return range.first <= global && global < range.first + range.count;
            })) {
          keys.push_back(c_.keyOf(member));
        }
      }
      if (keys.empty()) continue;
      for (int64_t outer = 0; outer < c_.outer; ++outer) {
        for (int64_t i = 0; i < c_.inner; ++i) {
          float sum = 0;
          for (const auto key : keys) sum += valueOf(key, indexOf(outer, global, i));
          expected[static_cast<size_t>((outer * c_.tokens[self_] + token) * c_.inner + i)] = sum;
        }
      }
    }
    compare("sums", sums, expected);
  }

 private:
  /// The ranges of a member: intervals of all tokens in random order, some of them.
  std::vector<seqparRange_t> rangesOf(size_t member) const {
    std::mt19937_64 random(c_.keyOf(member));
    const auto below = [&](int64_t n) { return static_cast<int64_t>(random() % static_cast<std::uint64_t>(n)); };
    std::vector<int64_t> cuts{0, c_.total()};
    for (int64_t i = below(8); i > 0; --i) cuts.push_back(below(c_.total() + 1));
    std::sort(cuts.begin(), cuts.end());
    std::vector<seqparRange_t> ranges;
    for (size_t i = 0; i + 1 < cuts.size(); ++i) {
      if (below(3) != 0) ranges.push_back({cuts[i], cuts[i + 1] - cuts[i]});
    }
    std::shuffle(ranges.begin(), ranges.end(), random);
    return ranges;
  }
};

}  // namespace

void runRanges(const ExchangeCase& c, seqparComm_t comm, int rank, void* stream) {
  RangesRunner(c, comm, rank, stream).ranges();
}

}  // namespace seqpar::test
