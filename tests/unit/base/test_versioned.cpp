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
  int after = 77;  // after the structure: must not be read or written
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

TEST_CASE("fields of an older header are read, other fields keep their defaults") {
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

TEST_CASE("results are written up to the caller's header size") {
  Older older;
  older.size = offsetof(Older, after);
  Now value;
  value.first = 5;
  writeVersioned("call", "info", reinterpret_cast<Now*>(&older), value);
  CHECK(older.first == 5);
  CHECK(older.after == 77);
  CHECK(older.version == 1);
}

TEST_CASE("struct sizes of no header version are refused") {
  struct Case {
    unsigned version;
    size_t size;
    bool good;
  };
  constexpr unsigned kVersion = SEQPAR_VERSION_CODE;
  for (const auto& [version, size, good] :
       {Case{kVersion, sizeof(Now), true}, Case{kVersion, sizeof(Now) - 8, false},
        Case{kVersion, sizeof(Now) + 8, false}, Case{kVersion, SIZE_MAX, false},
        Case{kVersion - 1, sizeof(Now) - 8, true}, Case{kVersion - 1, sizeof(Now) + 8, false},
        Case{kVersion + 1, sizeof(Now) - 8, false}, Case{kVersion + 1, sizeof(Newer), true},
        Case{kVersion + 1, SIZE_MAX, false}, Case{0, sizeof(Now), false}}) {
    CAPTURE(version, size);
    Newer room;  // behind what is read
    room.version = version;
    room.size = size;
    if (good) {
      CHECK_NOTHROW(readVersioned("call", "params", asNow(&room), Now{}));
      CHECK_NOTHROW(writeVersioned("call", "params", reinterpret_cast<Now*>(&room), Now{}));
    } else {
      const auto expected = Contains(version == 0 ? "params->version is 0" : "params->size is " + std::to_string(size));
      CHECK_THROWS_WITH(readVersioned("call", "params", asNow(&room), Now{}), expected);
      CHECK_THROWS_WITH(writeVersioned("call", "params", reinterpret_cast<Now*>(&room), Now{}), expected);
    }
  }
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
