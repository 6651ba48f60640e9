// The limits for connections that have not proved themselves.
#include <catch2/catch.hpp>

#include "bootstrap/strangers.h"

using namespace seqpar;
using std::chrono::milliseconds;

TEST_CASE("unproven connections: an address has a share, and a connection has time for its handshake") {
  Strangers strangers;
  const Strangers::Time start{};
  Strangers::Id id = 0;
  for (size_t i = 0; i < Strangers::kMostOfSource; ++i) CHECK_FALSE(strangers.add(id++, 1, start));
  // Within its time no connection is dropped, also beyond the share.
  CHECK_FALSE(strangers.add(id++, 1, start + milliseconds(100)));
  CHECK(strangers.add(id++, 1, start + Strangers::kPatience) == Strangers::Id{0});
  CHECK_FALSE(strangers.add(id++, 2, start + Strangers::kPatience));
  strangers.forget(1);
  CHECK(strangers.add(id++, 1, start + Strangers::kPatience) == Strangers::Id{2});
}

TEST_CASE("unproven connections: full, new connections wait until the oldest one had its time") {
  Strangers strangers;
  const Strangers::Time start{};
  for (size_t i = 0; i < Strangers::kMost; ++i) {
    REQUIRE(strangers.mayAdd(start));
    CHECK_FALSE(strangers.add(i, i, start));
  }
  CHECK_FALSE(strangers.mayAdd(start + Strangers::kPatience - milliseconds(1)));
  CHECK(strangers.roomAt() == start + Strangers::kPatience);
  REQUIRE(strangers.mayAdd(start + Strangers::kPatience));
  CHECK(strangers.add(1000, 1000, start + Strangers::kPatience) == Strangers::Id{0});
  strangers.forget(5);
  CHECK(strangers.mayAdd(start));
}
