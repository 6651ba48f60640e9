#include <catch2/catch.hpp>
#include <cmath>
#include <limits>

#include "base/convert.h"
#include "exchange/combine.h"
#include "exchange/lse.h"
#include "memory_mailbox.h"
#include "naive.h"
#include "unit/seed.h"

using namespace seqpar;
using namespace seqpar::test;

namespace {

constexpr float kNothing = -std::numeric_limits<float>::infinity();
constexpr float kNaN = std::numeric_limits<float>::quiet_NaN();

/// All members' partial results.
struct LseCase {
  LseShards shards;
  size_t elements = 0;                  ///< of a head
  std::vector<std::vector<float>> out;  ///< [member][outer][tokens][heads][elements]
  std::vector<std::vector<float>> lse;  ///< [member][outer][heads][tokens]

  size_t outAt(size_t outer, size_t token, size_t head) const {
    return ((outer * shards.out.total() + token) * shards.heads + head) * elements;
  }
  size_t lseAt(size_t outer, size_t token, size_t head) const {
    return (outer * shards.heads + head) * shards.out.total() + token;
  }
};

/// A third of the parts are empty, with NaN in their memory.
LseCase randomCase(std::mt19937_64& random, size_t members, seqparDataType_t type) {
  LseCase c;
  c.elements = 1 + random() % 70;
  c.shards.heads = 1 + random() % 3;
  c.shards.type = type;
  c.shards.out = {1 + random() % 2, randomLengths(random, members, 40), c.shards.heads * c.elements * sizeOf(type),
                  shuffled(random, members)};
  std::normal_distribution<float> normal;
  for (size_t member = 0; member < members; ++member) {
    auto& lse = c.lse.emplace_back(c.shards.out.outer * c.shards.heads * c.shards.out.total());
    auto& out = c.out.emplace_back(lse.size() * c.elements);
    for (float& value : lse) value = random() % 3 == 0 ? kNothing : 20 * normal(random);
    for (size_t outer = 0; outer < c.shards.out.outer; ++outer) {
      for (size_t token = 0; token < c.shards.out.total(); ++token) {
        for (size_t head = 0; head < c.shards.heads; ++head) {
          const bool nothing = lse[c.lseAt(outer, token, head)] == kNothing;
          for (size_t i = 0; i < c.elements; ++i) {
            out[c.outAt(outer, token, head) + i] = nothing ? kNaN : normal(random);
          }
        }
      }
    }
    Bytes rounded(out.size() * sizeOf(type));
    fromFloat(out.data(), rounded.data(), type, out.size());
    toFloat(rounded.data(), type, out.data(), out.size());
  }
  return c;
}

struct Merged {
  std::vector<float> out, lse;
};

/// By member.
std::vector<Merged> run(const LseCase& c, const MemoryMailboxOptions& options) {
  const Shards& shards = c.shards.out;
  std::vector<Merged> all(shards.members());
  MemoryLanes lanes(static_cast<int>(shards.members()), options);
  lanes.run([&](Mailbox& mail) {
    const auto member =
        static_cast<size_t>(std::find(shards.ranks.begin(), shards.ranks.end(), mail.rank()) - shards.ranks.begin());
    const size_t rows = shards.outer * shards.tokens[member] * c.shards.heads;
    Bytes out(c.out[member].size() * sizeOf(c.shards.type)), shard(rows * c.elements * sizeOf(c.shards.type));
    fromFloat(c.out[member].data(), out.data(), c.shards.type, c.out[member].size());
    all[member].lse.resize(rows);
    all[member].out.resize(rows * c.elements);
    reduceLseOnHost(mail, {c.shards, member, out.data(), c.lse[member].data(), shard.data(), all[member].lse.data()});
    toFloat(shard.data(), c.shards.type, all[member].out.data(), rows * c.elements);
  });
  return all;
}

/// Rounding error of one result of `type`, for values up to `size`.
double unit(seqparDataType_t type) {
  return type == seqparFloat32 ? 0 : type == seqparFloat16 ? 0x1p-11 : 0x1p-8;
}

}  // namespace

TEST_CASE("merged results agree with one softmax") {
  const auto type = GENERATE(seqparFloat32, seqparFloat16, seqparBfloat16);
  const seqpar::test::Seed seed;
  CAPTURE(static_cast<int>(type));
  std::mt19937_64 random(seed);
  for (size_t i = 0; i < 36; ++i) {
    const LseCase c = randomCase(random, 1 + i % 9, type);
    CAPTURE(i, c.shards.out.tokens, c.shards.heads, c.elements);
    const auto got = run(c, {});
    const Shards& shards = c.shards.out;
    for (size_t member = 0; member < shards.members(); ++member) {
      for (size_t outer = 0; outer < shards.outer; ++outer) {
        for (size_t token = 0; token < shards.tokens[member]; ++token) {
          for (size_t head = 0; head < c.shards.heads; ++head) {
            const size_t whole = shards.first(member) + token;
            double most = kNothing;
            for (const auto& lse : c.lse) most = std::max(most, static_cast<double>(lse[c.lseAt(outer, whole, head)]));
            double sum = 0;
            for (const auto& lse : c.lse) {
              if (most != kNothing) sum += std::exp(static_cast<double>(lse[c.lseAt(outer, whole, head)]) - most);
            }
            const double merged = most == kNothing ? kNothing : most + std::log(sum);
            const float lse = got[member].lse[(outer * c.shards.heads + head) * shards.tokens[member] + token];
            if (most == kNothing) {
              REQUIRE(lse == kNothing);
            } else {
              REQUIRE(lse == Approx(merged).epsilon(4e-7).margin(4e-6));
            }
            for (size_t e = 0; e < c.elements; ++e) {
              double expected = 0, size = 0;
              for (size_t other = 0; other < shards.members(); ++other) {
                const double part = c.lse[other][c.lseAt(outer, whole, head)];
                if (part == kNothing) continue;
                const double term = std::exp(part - merged) * c.out[other][c.outAt(outer, whole, head) + e];
                expected += term;
                size += std::abs(term);
              }
              const size_t at = ((outer * shards.tokens[member] + token) * c.shards.heads + head) * c.elements + e;
              // The exponents are differences of values below 128; the significant ones are small.
              REQUIRE(std::abs(got[member].out[at] - expected) <= size * (unit(type) + 2e-6) + 1e-7);
            }
          }
        }
      }
    }
  }
}

TEST_CASE("a merge does not depend on how messages are cut") {
  std::mt19937_64 random(11);
  const LseCase c = randomCase(random, 5, seqparBfloat16);
  MemoryMailboxOptions small;
  small.maxMessage = 512;
  small.window = 2048;
  const auto a = run(c, {});
  const auto b = run(c, small);
  for (size_t member = 0; member < 5; ++member) {
    CHECK((a[member].lse == b[member].lse));
    CHECK((a[member].out == b[member].out));
  }
}

TEST_CASE("a single non-empty part is returned unchanged") {
  const float lse[] = {kNothing, -91.25f, kNothing};
  float weights[3] = {};
  CHECK(mergeLse(lse, weights, 3) == -91.25f);
  CHECK(weights[0] == 0);
  CHECK(weights[1] == 1);
  CHECK(weights[2] == 0);
}

TEST_CASE("empty parts contribute nothing") {
  const float lse[] = {kNothing, kNothing};
  float weights[2] = {5, 5};
  CHECK(mergeLse(lse, weights, 2) == kNothing);
  CHECK(weights[0] == 0);
  CHECK(weights[1] == 0);
}

TEST_CASE("large logarithms neither overflow nor vanish") {
  const float lse[] = {5000.0f, 5000.0f};
  float weights[2] = {};
  CHECK(mergeLse(lse, weights, 2) == Approx(5000.6931));
  CHECK(weights[0] == 0.5f);
  const float less[] = {-5000.0f, -6000.0f};
  CHECK(mergeLse(less, weights, 2) == -5000.0f);
  CHECK(weights[0] == 1);
  CHECK(weights[1] == 0);
}

TEST_CASE("a NaN logarithm propagates") {
  const float lse[] = {1.0f, kNaN, 2.0f};
  float weights[3] = {};
  CHECK(std::isnan(mergeLse(lse, weights, 3)));
  CHECK(std::isnan(weights[0]));
}
