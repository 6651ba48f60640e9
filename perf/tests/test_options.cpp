#include <catch2/catch.hpp>
#include <string>
#include <vector>

#include "common/options.h"
#include "common/settings.h"

using namespace seqpar::perf;

namespace {

/// Parses a command line into `settings`; false if it asks for help.
bool parse(Settings& settings, std::vector<std::string> arguments) {
  OptionParser parser("program", "summary");
  settings.addTo(parser);
  std::vector<char*> pointers;
  for (std::string& argument : arguments) pointers.push_back(argument.data());
  if (!parser.parse(pointers)) return false;
  settings.finish();
  return true;
}

std::string complaint(std::vector<std::string> arguments) {
  Settings settings;
  try {
    parse(settings, std::move(arguments));
  } catch (const UsageError& error) {
    return error.what();
  }
  return "";
}

}  // namespace

TEST_CASE("Sizes take suffixes and nothing else") {
  CHECK(parseBytes("512") == 512);
  CHECK(parseBytes("1k") == 1024);
  CHECK(parseBytes("2M") == 2u << 20);
  CHECK(parseBytes("3G") == 3ul << 30);
  for (const char* text :
       {"", "M", "1T", "1KB", "-1", "1.5M", "0x10", " 1", "99999999999999999999", "72057594037927936"}) {
    CAPTURE(text);
    CHECK_THROWS_AS(parseBytes(text), UsageError);
  }
}

TEST_CASE("Numbers out of range are refused") {
  CHECK(parseInteger("7", 1, 7) == 7);
  CHECK_THROWS_AS(parseInteger("8", 1, 7), UsageError);
  CHECK_THROWS_AS(parseInteger("7x", 1, 7), UsageError);
  CHECK(parseNumber("0.5", 0, 1) == 0.5);
  CHECK_THROWS_AS(parseNumber("nan", 0, 1), UsageError);
  CHECK_THROWS_AS(parseNumber("", 0, 1), UsageError);
}

TEST_CASE("Names come alone, in lists, or all") {
  const Names names{{"one", 1}, {"two", 2}};
  CHECK(parseNames("two,one", names) == std::vector<int>{2, 1});
  CHECK(parseNames("all", names) == std::vector<int>{1, 2});
  CHECK_THROWS_AS(parseNames("one,", names), UsageError);
  CHECK_THROWS_AS(parseNames("three", names), UsageError);
  CHECK_THROWS_AS(parseName("all", names), UsageError);
}

TEST_CASE("All spellings of an option set the same field") {
  for (const std::vector<std::string>& spelling :
       {std::vector<std::string>{"-n", "9"}, {"-n9"}, {"--iters", "9"}, {"--iters=9"}}) {
    Settings settings;
    CHECK(parse(settings, spelling));
    CHECK(settings.iterations == 9);
  }
  Settings settings;
  CHECK_FALSE(parse(settings, {"-h"}));
}

TEST_CASE("Sizes grow by a step or a factor") {
  Settings byFactor;
  CHECK(parse(byFactor, {"-b", "1K", "-e", "16K", "-f", "4"}));
  CHECK(byFactor.sizes() == std::vector<size_t>{1024, 4096, 16384});
  Settings byStep;
  CHECK(parse(byStep, {"-b", "10", "-e", "35", "-i", "10"}));
  CHECK(byStep.sizes() == std::vector<size_t>{10, 20, 30});
  Settings one;
  CHECK(parse(one, {"-b", "4M"}));
  CHECK(one.sizes() == std::vector<size_t>{4u << 20});
}

TEST_CASE("Complaints name the option and the value") {
  CHECK_THAT(complaint({"--nonsense"}), Catch::Contains("--nonsense"));
  CHECK_THAT(complaint({"-b", "many"}), Catch::Contains("-b") && Catch::Contains("many"));
  CHECK_THAT(complaint({"-n"}), Catch::Contains("-n") && Catch::Contains("value"));
  CHECK_THAT(complaint({"stray"}), Catch::Contains("stray"));
  CHECK_THAT(complaint({"-b", "2M", "-e", "1M"}), Catch::Contains("-e"));
  CHECK_THAT(complaint({"-f", "1"}), Catch::Contains("-f"));
  CHECK_THAT(complaint({"-J", "/dev/null"}), Catch::Contains("/dev/null"));
  CHECK_THAT(complaint({"--plot", "/dev/null"}), Catch::Contains("--plot") && Catch::Contains("/dev/null"));
  CHECK_THAT(complaint({"--device", "abacus"}), Catch::Contains("--device") && Catch::Contains("abacus"));
  CHECK_THAT(complaint({"--graph"}), Catch::Contains("--graph") && Catch::Contains("--device gpu"));
  CHECK_THAT(complaint({"-g", "2", "-G", "-I"}), Catch::Contains("-I"));
}
