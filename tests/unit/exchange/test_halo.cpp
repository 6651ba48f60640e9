#include <catch2/catch.hpp>

#include "exchange/halo.h"
#include "naive.h"
#include "unit/seed.h"

using namespace seqpar;
using namespace seqpar::test;

namespace {

struct HaloCase {
  Shards shards;
  Halo halo;
  size_t columns() const { return shards.inner / sizeof(float); }
};

HaloCase randomCase(std::mt19937_64& random, size_t members) {
  HaloCase out;
  out.shards = {1 + random() % 2, randomLengths(random, members, random() % 2 == 0 ? 2 : 9),
                (1 + random() % 2) * sizeof(float), shuffled(random, members)};
  out.halo = {random() % 12, random() % 12, random() % 2 == 0};
  return out;
}

/// Which tokens of the sequence a halo has; -1: none.
std::vector<long> tokensOf(const HaloCase& c, size_t member, HaloSide side) {
  const auto total = static_cast<long>(c.shards.total());
  const auto first = static_cast<long>(c.shards.first(member));
  const long begin =
      side == kLeft ? first - static_cast<long>(c.halo.left) : first + static_cast<long>(c.shards.tokens[member]);
  std::vector<long> tokens;
  for (long i = 0; i < static_cast<long>(side == kLeft ? c.halo.left : c.halo.right); ++i) {
    long token = begin + i;
    if (c.halo.periodic && total > 0) token = ((token % total) + total) % total;
    tokens.push_back(token >= 0 && token < total ? token : -1);
  }
  return tokens;
}

template <typename Body>
void forRandomCases(Body&& body) {
  const seqpar::test::Seed seed;
  std::mt19937_64 random(seed);
  for (size_t i = 0; i < 270; ++i) {
    const HaloCase c = randomCase(random, 1 + i % 9);
    CAPTURE(i, c.shards.tokens, c.halo.left, c.halo.right, c.halo.periodic);
    body(random, c);
  }
}

size_t rankOf(const HaloCase& c, size_t member) {
  return static_cast<size_t>(c.shards.ranks[member]);
}

/// A value for each element of the whole array, with exact sums of many.
float valueAt(const HaloCase& c, size_t outer, size_t token, size_t column) {
  return static_cast<float>((outer * c.shards.total() + token) * c.columns() + column + 1);
}

}  // namespace

TEST_CASE("a halo contains the tokens next to the shard, and zeros beyond the ends") {
  forRandomCases([](std::mt19937_64&, const HaloCase& c) {
    const size_t members = c.shards.members();
    std::vector<Route> routes(members);
    Buffers sends(members), receives(members);
    for (size_t member = 0; member < members; ++member) {
      std::vector<float> shard;
      for (size_t outer = 0; outer < c.shards.outer; ++outer) {
        for (size_t token = 0; token < c.shards.tokens[member]; ++token) {
          for (size_t i = 0; i < c.columns(); ++i) {
            shard.push_back(valueAt(c, outer, c.shards.first(member) + token, i));
          }
        }
      }
      const HaloRoute halo = haloRoute(c.shards, c.halo, member);
      auto& into = receives[rankOf(c, member)];
      into = {Bytes(c.shards.outer * c.halo.left * c.shards.inner, std::byte{0xff}),
              Bytes(c.shards.outer * c.halo.right * c.shards.inner, std::byte{0xff})};
      for (const StridedRegion& zeros : halo.zeros) {
        for (const size_t at : bytesOf(zeros)) into[static_cast<size_t>(zeros.buffer)].at(at) = std::byte{0};
      }
      routes[rankOf(c, member)] = halo.route;
      sends[rankOf(c, member)] = {toBytes(shard)};
    }
    simulate(routes, sends, receives);
    for (size_t member = 0; member < members; ++member) {
      for (const auto side : {kLeft, kRight}) {
        std::vector<float> expected;
        for (size_t outer = 0; outer < c.shards.outer; ++outer) {
          for (const long token : tokensOf(c, member, side)) {
            for (size_t i = 0; i < c.columns(); ++i) {
              expected.push_back(token < 0 ? 0 : valueAt(c, outer, static_cast<size_t>(token), i));
            }
          }
        }
        REQUIRE((fromBytes<float>(receives[rankOf(c, member)][side]) == expected));
      }
    }
  });
}

TEST_CASE("the adjoint adds every copy to its token, members in order, left before right") {
  forRandomCases([](std::mt19937_64& random, const HaloCase& c) {
    const size_t members = c.shards.members();
    std::normal_distribution<float> normal;
    std::vector<Reduction> reductions(members);
    Buffers sends(members), receives(members);
    std::vector<float> whole(c.shards.outer * c.shards.total() * c.columns());  // as the definition has it
    std::vector<std::vector<std::vector<float>>> copies(members, std::vector<std::vector<float>>(2));
    for (float& value : whole) value = normal(random);
    for (size_t member = 0; member < members; ++member) {
      std::vector<float> shard;
      for (size_t outer = 0; outer < c.shards.outer; ++outer) {
        const auto row = (outer * c.shards.total() + c.shards.first(member)) * c.columns();
        const auto begin = whole.begin() + static_cast<std::ptrdiff_t>(row);
        shard.insert(shard.end(), begin, begin + static_cast<std::ptrdiff_t>(c.shards.tokens[member] * c.columns()));
      }
      for (const auto side : {kLeft, kRight}) {
        copies[member][side].resize(c.shards.outer * (side == kLeft ? c.halo.left : c.halo.right) * c.columns());
        for (float& value : copies[member][side]) value = normal(random);
      }
      reductions[rankOf(c, member)] = haloAdjoint(c.shards, c.halo, member);
      sends[rankOf(c, member)] = {toBytes(copies[member][kLeft]), toBytes(copies[member][kRight])};
      receives[rankOf(c, member)] = {toBytes(shard)};
    }
    simulate(reductions, sends, receives);

    // If a member holds a token several times, its first copy is added with all members' first copies, its second after
    // them.
    struct Term {
      size_t layer, member;
      float value;
    };
    std::vector<std::vector<Term>> terms(whole.size());
    for (size_t member = 0; member < members; ++member) {
      for (const auto side : {kLeft, kRight}) {
        const auto tokens = tokensOf(c, member, side);
        for (size_t outer = 0; outer < c.shards.outer; ++outer) {
          for (size_t i = 0; i < tokens.size() * c.columns(); ++i) {
            const long token = tokens[i / c.columns()];
            if (token < 0) continue;
            const size_t row = outer * c.shards.total() + static_cast<size_t>(token);
            auto& all = terms[row * c.columns() + i % c.columns()];
            const auto had = std::count_if(all.begin(), all.end(), [&](const Term& t) { return t.member == member; });
            all.push_back(
                {static_cast<size_t>(had), member, copies[member][side][outer * tokens.size() * c.columns() + i]});
          }
        }
      }
    }
    for (size_t i = 0; i < whole.size(); ++i) {
      std::stable_sort(terms[i].begin(), terms[i].end(),
                       [](const Term& a, const Term& b) { return a.layer < b.layer; });
      for (const Term& term : terms[i]) whole[i] += term.value;
    }
    for (size_t member = 0; member < members; ++member) {
      std::vector<float> expected;
      for (size_t outer = 0; outer < c.shards.outer; ++outer) {
        const auto row = (outer * c.shards.total() + c.shards.first(member)) * c.columns();
        const auto begin = whole.begin() + static_cast<std::ptrdiff_t>(row);
        expected.insert(expected.end(), begin,
                        begin + static_cast<std::ptrdiff_t>(c.shards.tokens[member] * c.columns()));
      }
      REQUIRE((fromBytes<float>(receives[rankOf(c, member)][0]) == expected));
    }
  });
}
