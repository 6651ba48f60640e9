#include "base/env.h"

#include <array>
#include <catch2/catch.hpp>
#include <cstdlib>

#include "base/error.h"

using Catch::Matchers::Contains;
using namespace seqpar;

namespace {

constexpr const char* kName = "SEQPAR_TEST_VARIABLE";
constexpr std::array<Choice, 2> kFruit{{{"apple", 1}, {"pear", 2}}};

/// Sets the variable for one scope.
struct Variable {
  explicit Variable(const char* value) { setenv(kName, value, 1); }
  Variable(const Variable&) = delete;
  Variable& operator=(const Variable&) = delete;
  ~Variable() { unsetenv(kName); }
};

}  // namespace

TEST_CASE("an unset or empty variable has no value") {
  CHECK_FALSE(envText(kName));
  CHECK_FALSE(envChoice(kName, kFruit));
  CHECK_FALSE(envInteger(kName, 0, 9));
  const Variable empty("");
  CHECK_FALSE(envText(kName));
  CHECK_FALSE(envNumber(kName, 0, 9));
}

TEST_CASE("choices ignore case, and an unknown choice lists the valid ones") {
  {
    const Variable pear("PeAr");
    CHECK(envChoice(kName, kFruit) == 2);
  }
  const Variable plum("plum");
  CHECK_THROWS_WITH(envChoice(kName, kFruit), Contains(kName) && Contains("\"plum\"") && Contains("apple, pear"));
}

TEST_CASE("numbers are parsed completely and within bounds") {
  const auto integer = [](const char* text) {
    const Variable variable(text);
    return envInteger(kName, -5, 100);
  };
  CHECK(integer("42") == 42);
  CHECK(integer("-5") == -5);
  for (const char* bad : {"101", "-6", "4x", "x", "1.5", "99999999999999999999"}) {
    CAPTURE(bad);
    CHECK_THROWS_WITH(integer(bad), Contains(bad) && Contains("-5 to 100"));
  }
  const auto number = [](const char* text) {
    const Variable variable(text);
    return envNumber(kName, 0, 10);
  };
  CHECK(number("0.25") == 0.25);
  for (const char* bad : {"nan", "inf", "-0.1", "1e3", "1 "}) {
    CAPTURE(bad);
    CHECK_THROWS_AS(number(bad), Error);
  }
}
