#include "exchange_ops_suite.h"

#include <cmath>
#include <limits>

#include "exchange_runner.h"

namespace seqpar::test {
namespace {

/// Runs one case on one rank.
class Runner : public ExchangeRunner {
 public:
  using ExchangeRunner::ExchangeRunner;

  void run() {
    switch (c_.call) {
      case kToHeads:
      case kToSequence:
        return heads();
      case kGather:
        return gather();
      case kScatter:
        return scatter();
      case kScatterLse:
        return scatterLse();
      default:
        return halo();
    }
  }

 private:
  void gather() {
    const auto shape = shards();
    const auto mine = slice(c_.first(self_), c_.tokens[self_], {c_.key});
    MarginArray whole(static_cast<size_t>(c_.outer * c_.total() * c_.inner), c_.type, c_.skew);
    MarginArray shard(mine.size(), c_.type, c_.skew / 5);
    shard.set(mine);
    void* from = shard.data();
    if (c_.inPlace) {
      from = static_cast<std::byte*>(whole.data()) + static_cast<size_t>(c_.first(self_) * c_.inner) * sizeOf(c_.type);
      fromFloat(mine.data(), from, c_.type, mine.size());
    }
    done(seqparAllGather(from, whole.data(), &shape, comm_, stream_));
    compare("whole", whole, slice(0, c_.total(), {c_.key}));
    compare("shard", shard, mine);
  }

  void scatter() {
    const auto shape = shards();
    const auto mine = slice(0, c_.total(), {c_.keyOf(self_)});
    const auto expected = slice(c_.first(self_), c_.tokens[self_], allKeys());
    MarginArray whole(mine.size(), c_.type, c_.skew);
    MarginArray shard(expected.size(), c_.type, c_.skew / 5);
    whole.set(mine);
    if (!c_.inPlace) {
      done(seqparReduceScatter(whole.data(), shard.data(), &shape, comm_, stream_));
      compare("whole", whole, mine);
      return compare("shard", shard, expected);
    }
    const auto at = c_.first(self_) * c_.inner;
    void* into = static_cast<std::byte*>(whole.data()) + static_cast<size_t>(at) * sizeOf(c_.type);
    done(seqparReduceScatter(whole.data(), into, &shape, comm_, stream_));
    auto after = mine;
    std::copy(expected.begin(), expected.end(), after.begin() + at);
    compare("whole", whole, after);
  }

  /// In a row, a power of 2 of members have equal log-sum-exps, and the others are empty: the weights are exact.
  bool takesPart(size_t member, size_t row) const {
    size_t parts = 1;
    while (parts * 2 <= c_.members()) parts *= 2;
    parts >>= static_cast<size_t>(valueOf(c_.key + 1, row) + 8) % 4;
    const size_t first = static_cast<size_t>(valueOf(c_.key + 2, row) + 8);
    return (member + c_.members() - first % c_.members()) % c_.members() < parts;
  }

  void scatterLse() {
    const auto shape = shards();
    const auto rows = static_cast<size_t>(c_.outer * c_.heads * c_.total());
    MarginArray out(rows * static_cast<size_t>(c_.headDim), c_.type, c_.skew);
    MarginArray lse(rows, seqparFloat32);
    const auto ownRows = static_cast<size_t>(c_.outer * c_.heads * c_.tokens[self_]);
    MarginArray outShard(ownRows * static_cast<size_t>(c_.headDim), c_.type, c_.skew / 5);
    MarginArray lseShard(ownRows, seqparFloat32, c_.skew / 25);
    std::vector<float> outs(out.count()), lses(rows), expectedOut(outShard.count()), expectedLse(ownRows);
    for (int64_t outer = 0; outer < c_.outer; ++outer) {
      for (int64_t head = 0; head < c_.heads; ++head) {
        for (int64_t token = 0; token < c_.total(); ++token) {
          const auto row = static_cast<size_t>((outer * c_.heads + head) * c_.total() + token);
          const auto place = static_cast<size_t>((outer * c_.total() + token) * c_.heads + head);
          const float logarithm = 100 * valueOf(c_.key + 3, row);
          const int64_t local = token - c_.first(self_);
          const bool mine = local >= 0 && local < c_.tokens[self_];
          const auto ownRow = static_cast<size_t>((outer * c_.heads + head) * c_.tokens[self_] + local);
          const auto ownPlace = static_cast<size_t>((outer * c_.tokens[self_] + local) * c_.heads + head);
          size_t parts = 0;
          for (size_t member = 0; member < c_.members(); ++member) parts += takesPart(member, row) ? 1 : 0;
          lses[row] = takesPart(self_, row) ? logarithm : -std::numeric_limits<float>::infinity();
          if (mine) {
            expectedLse[ownRow] =
                parts == 0 ? -std::numeric_limits<float>::infinity() : logarithm + std::log(static_cast<float>(parts));
          }
          for (int64_t e = 0; e < c_.headDim; ++e) {
            const size_t at = place * static_cast<size_t>(c_.headDim) + static_cast<size_t>(e);
            outs[at] = takesPart(self_, row) ? valueOf(c_.keyOf(self_), at) : std::numeric_limits<float>::quiet_NaN();
            if (!mine) continue;
            float sum = 0;
            for (size_t member = 0; member < c_.members(); ++member) {
              if (takesPart(member, row)) sum += valueOf(c_.keyOf(member), at);
            }
            expectedOut[ownPlace * static_cast<size_t>(c_.headDim) + static_cast<size_t>(e)] =
                parts == 0 ? 0 : sum / static_cast<float>(parts);
          }
        }
      }
    }
    out.set(outs);
    lse.set(lses);
    done(seqparReduceScatterLse(out.data(), static_cast<float*>(lse.data()), outShard.data(),
                                static_cast<float*>(lseShard.data()), c_.heads, &shape, comm_, stream_));
    compare("outShard", outShard, expectedOut);
    compare("lseShard", lseShard, expectedLse);
  }

  /// The heads that a member's queries use.
  std::vector<int64_t> headsOf(size_t member) const {
    const int64_t queries = c_.queryHeads == 0 ? c_.heads : c_.queryHeads;
    const auto members = static_cast<int64_t>(c_.members());
    std::vector<int64_t> heads;
    int64_t query = 0;
    for (int64_t m = 0; m < members; ++m) {
      const int64_t count = queries / members + (m < queries % members ? 1 : 0);
      for (int64_t q = query; q < query + count && m == static_cast<int64_t>(member); ++q) {
        const int64_t head = q / (queries / c_.heads);
        if (heads.empty() || heads.back() != head) heads.push_back(head);
      }
      query += count;
    }
    return heads;
  }

  size_t headIndex(int64_t batch, int64_t token, int64_t head, int64_t e) const {
    return static_cast<size_t>(((batch * c_.total() + token) * c_.heads + head) * c_.headDim + e);
  }

  /// Calls body(index in the whole array) for each element of a member's tokens, or of its heads, in order.
  template <typename Body>
  void forSequence(size_t member, Body&& body) {
    for (int64_t batch = 0; batch < c_.outer; ++batch) {
      for (int64_t token = c_.first(member); token < c_.first(member) + c_.tokens[member]; ++token) {
        for (int64_t head = 0; head < c_.heads; ++head) {
          for (int64_t e = 0; e < c_.headDim; ++e) body(head, headIndex(batch, token, head, e));
        }
      }
    }
  }
  template <typename Body>
  void forHeads(size_t member, Body&& body) {
    for (int64_t batch = 0; batch < c_.outer; ++batch) {
      for (int64_t token = 0; token < c_.total(); ++token) {
        for (const int64_t head : headsOf(member)) {
          for (int64_t e = 0; e < c_.headDim; ++e) body(head, headIndex(batch, token, head, e));
        }
      }
    }
  }

  void heads() {
    seqparHeadShards_t shape = SEQPAR_HEAD_SHARDS_INITIALIZER;
    shape.batch = c_.outer;
    shape.heads = c_.heads;
    shape.queryHeads = c_.queryHeads;
    shape.headDim = c_.headDim;
    setMembers(shape);
    int64_t first = -1, count = -1;
    expectSuccess(seqparHeadsOfMember(c_.heads, c_.queryHeads, static_cast<int>(c_.members()), static_cast<int>(self_),
                                      &first, &count),
                  "seqparHeadsOfMember");
    const auto own = headsOf(self_);
    expect(count == static_cast<int64_t>(own.size()) && (own.empty() || first == own.front()), "heads ", first, " and ",
           count, " more");

    const bool toHeads = c_.call == kToHeads;
    std::vector<float> input, expected;
    if (toHeads) {
      forSequence(self_, [&](int64_t, size_t index) { input.push_back(valueOf(c_.key, index)); });
      forHeads(self_, [&](int64_t, size_t index) { expected.push_back(valueOf(c_.key, index)); });
    } else {
      forHeads(self_, [&](int64_t, size_t index) { input.push_back(valueOf(c_.keyOf(self_), index)); });
      std::vector<std::vector<size_t>> owners(static_cast<size_t>(c_.heads));
      for (size_t member = 0; member < c_.members(); ++member) {
        for (const int64_t head : headsOf(member)) owners[static_cast<size_t>(head)].push_back(member);
      }
      forSequence(self_, [&](int64_t head, size_t index) {
        float sum = 0;
        for (const size_t owner : owners[static_cast<size_t>(head)]) sum += valueOf(c_.keyOf(owner), index);
        expected.push_back(sum);
      });
    }
    MarginArray from(input.size(), c_.type, c_.skew);
    MarginArray into(expected.size(), c_.type, c_.skew / 5);
    from.set(input);
    const auto call = toHeads ? seqparSequenceToHeads : seqparHeadsToSequence;
    done(call(from.data(), into.data(), &shape, comm_, stream_));
    compare("output", into, expected);
  }

  /// Which token of the sequence a halo has at `at`; -1: none.
  int64_t haloToken(size_t member, bool isLeft, int64_t at) const {
    const int64_t token = isLeft ? c_.first(member) - c_.left + at : c_.first(member) + c_.tokens[member] + at;
    if (c_.periodic && c_.total() > 0) return ((token % c_.total()) + c_.total()) % c_.total();
    return token >= 0 && token < c_.total() ? token : -1;
  }
  /// The gradient of a member's halo.
  float copyOf(size_t member, bool isLeft, int64_t outer, int64_t at, int64_t i) const {
    const int64_t tokens = isLeft ? c_.left : c_.right;
    return std::trunc(
        valueOf(c_.keyOf(member) + (isLeft ? 32 : 0), static_cast<size_t>((outer * tokens + at) * c_.inner + i)) / 4);
  }

  void halo() {
    const auto shape = shards();
    seqparHalo_t requested = SEQPAR_HALO_INITIALIZER;
    requested.left = c_.left;
    requested.right = c_.right;
    requested.periodic = c_.periodic ? 1 : 0;
    MarginArray shard(static_cast<size_t>(c_.outer * c_.tokens[self_] * c_.inner), c_.type, c_.skew);
    MarginArray left(static_cast<size_t>(c_.outer * c_.left * c_.inner), c_.type, c_.skew / 5);
    MarginArray right(static_cast<size_t>(c_.outer * c_.right * c_.inner), c_.type, c_.skew / 25);
    auto mine = slice(c_.first(self_), c_.tokens[self_], {c_.key});
    shard.set(mine);
    if (c_.call == kHalo) {
      done(seqparHaloExchange(shard.data(), c_.left > 0 ? left.data() : nullptr, c_.right > 0 ? right.data() : nullptr,
                              &requested, &shape, comm_, stream_));
      compare("shard", shard, mine);
      for (const bool isLeft : {true, false}) {
        std::vector<float> expected;
        for (int64_t outer = 0; outer < c_.outer; ++outer) {
          for (int64_t at = 0; at < (isLeft ? c_.left : c_.right); ++at) {
            const int64_t token = haloToken(self_, isLeft, at);
            for (int64_t i = 0; i < c_.inner; ++i)
              expected.push_back(token < 0 ? 0 : valueOf(c_.key, indexOf(outer, token, i)));
          }
        }
        compare(isLeft ? "leftHalo" : "rightHalo", isLeft ? left : right, expected);
      }
      return;
    }
    for (const bool isLeft : {true, false}) {
      std::vector<float> copies;
      for (int64_t outer = 0; outer < c_.outer; ++outer) {
        for (int64_t at = 0; at < (isLeft ? c_.left : c_.right); ++at) {
          for (int64_t i = 0; i < c_.inner; ++i) copies.push_back(copyOf(self_, isLeft, outer, at, i));
        }
      }
      (isLeft ? left : right).set(copies);
    }
    for (size_t member = 0; member < c_.members(); ++member) {
      for (const bool isLeft : {true, false}) {
        for (int64_t at = 0; at < (isLeft ? c_.left : c_.right); ++at) {
          const int64_t local = haloToken(member, isLeft, at) - c_.first(self_);
          if (haloToken(member, isLeft, at) < 0 || local < 0 || local >= c_.tokens[self_]) continue;
          for (int64_t outer = 0; outer < c_.outer; ++outer) {
            for (int64_t i = 0; i < c_.inner; ++i) {
              mine[static_cast<size_t>((outer * c_.tokens[self_] + local) * c_.inner + i)] +=
                  copyOf(member, isLeft, outer, at, i);
            }
          }
        }
      }
    }
    done(seqparHaloAdjoint(c_.left > 0 ? left.data() : nullptr, c_.right > 0 ? right.data() : nullptr, shard.data(),
                           &requested, &shape, comm_, stream_));
    compare("shard", shard, mine);
  }
};

}  // namespace

void runExchangeOps(seqparComm_t comm, std::uint64_t seed, const ExchangeOps& options) {
  int ranks = 0, rank = 0;
  expectSuccess(seqparCommCount(comm, &ranks), "seqparCommCount");
  expectSuccess(seqparCommUserRank(comm, &rank), "seqparCommUserRank");
  const Stream stream;
  for (int i = 0; i < options.cases; ++i) {
    std::mt19937_64 random(seed + static_cast<std::uint64_t>(i));
    const ExchangeCase c = randomExchangeCase(random, ranks, rank, options);
    try {
      void* const on = c.onStream ? stream.get() : backend()->noStream();
      c.call == kRanges ? runRanges(c, comm, rank, on) : Runner(c, comm, rank, on).run();
    } catch (const std::exception& error) {
      expect(false, "seed ", seed, ", case ", i, " (", nameOf(c.call), ", ", typeName(c.type), ", ", c.members(),
             " members, ", c.total(), " tokens): ", error.what());
    }
  }
}

}  // namespace seqpar::test
