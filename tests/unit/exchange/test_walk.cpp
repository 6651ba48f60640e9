#include <catch2/catch.hpp>

#include "exchange/walk.h"
#include "naive.h"
#include "unit/seed.h"

using namespace seqpar;
using namespace seqpar::test;

namespace {

/// Strides are at least the extent inside, and sometimes equal to it.
StridedRegion randomRegion(std::mt19937_64& random) {
  StridedRegion region;
  region.offset = random() % 5;
  region.run = 1 + random() % 4;
  size_t inside = region.run;
  for (size_t axis = 3; axis-- > 0;) {
    region.count[axis] = 1 + random() % 3;
    region.stride[axis] = random() % 2 == 0 ? inside : inside + random() % 4;
    inside = region.stride[axis] * region.count[axis];
  }
  return region;
}

}  // namespace

TEST_CASE("a simplified region has the same bytes in the same order") {
  const seqpar::test::Seed seed;
  std::mt19937_64 random(seed);
  for (int i = 0; i < 2000; ++i) {
    const StridedRegion region = randomRegion(random);
    REQUIRE(bytesOf(simplified(region)) == bytesOf(region));
  }
}

TEST_CASE("a region without gaps is one run") {
  const StridedRegion region = simplified({0, 7, 4, {2, 3, 5}, {60, 20, 4}});
  CHECK(region.run == 120);
  CHECK(region.bytes() == 120);
}

TEST_CASE("a walk visits every byte once and in order for any step") {
  const seqpar::test::Seed seed;
  std::mt19937_64 random(seed);
  std::vector<char> memory(4096);
  for (int i = 0; i < 500; ++i) {
    RegionWalk<char> walk;
    std::vector<size_t> expected;
    for (size_t regions = random() % 4; regions > 0; --regions) {
      StridedRegion region = randomRegion(random);
      if (random() % 5 == 0) region.count[random() % 3] = 0;
      walk.add(region, memory.data());
      for (const size_t at : bytesOf(region)) expected.push_back(at);
    }
    std::vector<size_t> got;
    REQUIRE(walk.left() == expected.size());
    while (walk.left() > 0) {
      const size_t most = 1 + random() % 9;
      const size_t contiguous = walk.contiguous();
      const auto part = walk.next(most);
      REQUIRE(part.size() == std::min(most, contiguous));
      for (size_t byte = 0; byte < part.size(); ++byte) {
        got.push_back(static_cast<size_t>(part.data() - memory.data()) + byte);
      }
    }
    REQUIRE(got == expected);
    REQUIRE(walk.next(1).empty());
    REQUIRE(walk.contiguous() == 0);
  }
}
