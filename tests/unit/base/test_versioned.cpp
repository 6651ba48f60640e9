#include "base/versioned.h"

#include <catch2/catch.hpp>

using Catch::Matchers::Contains;
using namespace seqpar;

namespace {

/// The structure as this library knows it, as an older header had it, and as a newer one will.
struct Now {
  size_t size = sizeof(Now);
  unsigned magic = SEQPAR_STRUCT_MAGIC;
  unsigned version = SEQPAR_VERSION_CODE;
  int first = 1;
  int second = 2;
};
struct Older {
  size_t size = sizeof(Older);
  unsigned magic = SEQPAR_STRUCT_MAGIC;
  unsigned version = 1;
  int first = 10;
  int after = 77;  // lies behind the structure: must not be read or written
};
struct Newer {
  size_t size = sizeof(Newer);
  unsigned magic = SEQPAR_STRUCT_MAGIC;
  unsigned version = SEQPAR_VERSION_CODE + 1;
  int first = 20;
  int second = 21;
  int third = 22;
};

template <typename Struct>
const Now* asNow(const Struct* given) {
  return reinterpret_cast<const Now*>(given);
}

}  // namespace

TEST_CASE("fields of an older header are taken, the rest keeps its defaults") {
  Older older;
  older.size = offsetof(Older, after);
  const Now read = readVersioned("call", "params", asNow(&older), Now{});
  CHECK(read.first == 10);
  CHECK(read.second == 2);
}

TEST_CASE("fields of a newer header are ignored") {
  const Newer newer;
  const Now read = readVersioned("call", "params", asNow(&newer), Now{});
  CHECK(read.first == 20);
  CHECK(read.second == 21);
}

TEST_CASE("results are written as far as the caller's header reaches") {
  Older older;
  older.size = offsetof(Older, after);
  Now value;
  value.first = 5;
  writeVersioned("call", "info", reinterpret_cast<Now*>(&older), value);
  CHECK(older.first == 5);
  CHECK(older.after == 77);
  CHECK(older.version == 1);
}

TEST_CASE("NULL, a wrong magic and an impossible size are refused by name") {
  CHECK_THROWS_WITH(readVersioned<Now>("call", "params", nullptr, Now{}),
                    Contains("call") && Contains("params is NULL"));
  Now wrong;
  wrong.magic = 0;
  CHECK_THROWS_WITH(readVersioned("call", "params", &wrong, Now{}), Contains("magic") && Contains("INITIALIZER"));
  Now small;
  small.size = 3;
  CHECK_THROWS_WITH(readVersioned("call", "params", &small, Now{}),
                    Contains("params->size is 3, expected " + std::to_string(sizeof(Now))));
}
