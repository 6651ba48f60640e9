#include <catch2/catch.hpp>
#include <cstdlib>
#include <string>
#include <vector>

#include "common/options.h"
#include "common/settings.h"

using namespace seqpar::perf;

namespace {

constexpr size_t kDefaultBytes = 1 << 20;

/// Parses a command line into `settings`; false if it asks for help.
bool parse(Settings& settings, std::vector<std::string> arguments) {
  OptionParser parser("program", "summary");
  settings.addTo(parser, kDefaultBytes);
  settings.addIgnoredTo(parser);
  std::vector<char*> pointers;
  for (std::string& argument : arguments) pointers.push_back(argument.data());
  if (!parser.parse(pointers)) return false;
  settings.finish(kDefaultBytes);
  return true;
}

/// Parses a valid command line.
Settings parsed(std::vector<std::string> arguments) {
  Settings settings;
  CHECK(parse(settings, std::move(arguments)));
  return settings;
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

/// Sets an environment variable for its lifetime.
class Variable {
 public:
  Variable(const char* name, const char* value) : name_(name) { setenv(name, value, 1); }
  ~Variable() { unsetenv(name_); }
  Variable(const Variable&) = delete;
  Variable& operator=(const Variable&) = delete;

 private:
  const char* name_;
};

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

TEST_CASE("Printed sizes parse to the same value") {
  for (const size_t bytes : {0ul, 1ul, 1000ul, 1024ul, 1536ul, 2ul << 20, 3ul << 30}) {
    CAPTURE(bytes);
    CHECK(parseBytes(shownBytes(bytes)) == bytes);
  }
  CHECK(shownBytes(2 << 20) == "2M");
}

TEST_CASE("The number of key heads divides the number of query heads") {
  CHECK(keyHeadsOf(8, 0) == 8);
  CHECK(keyHeadsOf(8, 2) == 2);
  CHECK_THROWS_WITH(keyHeadsOf(8, 3), "option --kv-heads: '3' is no divisor of --heads, 8");
  CHECK_THROWS_AS(keyHeadsOf(8, 16), UsageError);
}

TEST_CASE("Numbers out of range are refused") {
  CHECK(parseInteger("7", 1, 7) == 7);
  CHECK_THROWS_AS(parseInteger("8", 1, 7), UsageError);
  CHECK_THROWS_AS(parseInteger("7x", 1, 7), UsageError);
  CHECK(parseNumber("0.5", 0, 1) == 0.5);
  CHECK_THROWS_AS(parseNumber("nan", 0, 1), UsageError);
  CHECK_THROWS_AS(parseNumber("", 0, 1), UsageError);
}

TEST_CASE("Names are given singly, as a list, or as `all`") {
  const Names names{{"one", 1}, {"two", 2}};
  CHECK(parseNames("two,one", names) == std::vector<int>{2, 1});
  CHECK(parseNames("all", names) == std::vector<int>{1, 2});
  CHECK_THROWS_AS(parseNames("one,", names), UsageError);
  CHECK_THROWS_AS(parseNames("three", names), UsageError);
  CHECK_THROWS_AS(parseName("all", names), UsageError);
}

TEST_CASE("All spellings of an option set the same field") {
  for (const std::vector<std::string>& spelling :
       {std::vector<std::string>{"-n", "9"}, {"-n9"}, {"--iters", "9"}, {"--iters=9"}, {"-n", "1", "-n", "9"}}) {
    CHECK(parsed(spelling).iterations == 9);
  }
  Settings settings;
  CHECK_FALSE(parse(settings, {"-h"}));
}

TEST_CASE("Sizes grow by a step or a factor") {
  CHECK(parsed({"-b", "1K", "-e", "16K", "-f", "4"}).sizes() == std::vector<size_t>{1024, 4096, 16384});
  CHECK(parsed({"-b", "10", "-e", "35", "-i", "10"}).sizes() == std::vector<size_t>{10, 20, 30});
  CHECK(parsed({"-b", "10", "-e", "30", "-i", "10", "-f", "1"}).sizes() == std::vector<size_t>{10, 20, 30});
  CHECK(parsed({"-b", "0", "-e", "1", "-i", "1"}).sizes() == std::vector<size_t>{0, 1});
}

TEST_CASE("Default sizes are those of nccl-tests") {
  CHECK(parsed({}).sizes() == std::vector<size_t>{kDefaultBytes});
  CHECK(parsed({"-b", "256K", "-f", "2"}).sizes() == std::vector<size_t>{256 << 10, 512 << 10, kDefaultBytes});
  CHECK(parsed({"-b", "4M"}).sizes() == std::vector<size_t>{4u << 20});
  CHECK(parsed({"-e", "64K"}).sizes() == std::vector<size_t>{64u << 10});
}

TEST_CASE("Options have the meaning of nccl-tests") {
  const Settings settings =
      parsed({"-t", "2", "-g", "3", "--device", "host", "-m", "4", "-N", "0", "-c", "5", "-z", "3",
              "-I", "1", "-K", "2", "-C",       "1",    "-S", "1", "-M", "1", "-u", "7", "-a", "1"});
  CHECK(settings.threads == 2);
  CHECK(settings.devices == 3);
  CHECK(settings.aggregate == 4);
  CHECK(settings.cycles == 0);
  CHECK(settings.check == 5);
  CHECK(settings.blocking == Blocking::IterationApart);
  CHECK(settings.perIteration);
  CHECK(settings.perIterationSkip == 2);
  CHECK(settings.cpuTime);
  CHECK(settings.timestamps);
  CHECK(settings.memory);
  CHECK(settings.unalign == 7);
  CHECK(settings.average == Average::Mean);
  CHECK(settings.notes.empty());
}

TEST_CASE("An omitted option value is 1") {
  const Settings bare = parsed({"-I", "-C", "-z", "-n", "5"});
  CHECK(bare.perIteration);
  CHECK(bare.cpuTime);
  CHECK(bare.blocking == Blocking::EachBarrier);
  CHECK(bare.iterations == 5);
  CHECK_FALSE(parsed({"-I", "0"}).perIteration);
  const Settings graph = parsed({"--device", "gpu", "-G", "-B"});
  CHECK(graph.graphLaunches == 1);
  CHECK(graph.barrier);
  CHECK(parsed({"-g", "2", "-G", "7"}).graphLaunches == 7);
}

TEST_CASE("Option -g selects GPUs by default") {
  CHECK(parsed({"-g", "2"}).gpu);
  CHECK_FALSE(parsed({"-g", "2", "--device", "host"}).gpu);
  const Variable device("SEQPAR_PERF_DEVICE", "host");
  CHECK_FALSE(parsed({"-g", "2"}).gpu);
  CHECK(parsed({"-g", "2", "--device", "gpu"}).gpu);
}

TEST_CASE("Options without effect are reported with the reason") {
  const auto note = [](std::vector<std::string> arguments) {
    const Settings settings = parsed(std::move(arguments));
    REQUIRE(settings.notes.size() == 1);
    return settings.notes.front();
  };
  CHECK_THAT(note({"-r", "3"}), Catch::Contains("-r 3") && Catch::Contains("root"));
  CHECK_THAT(note({"-R", "2"}), Catch::Contains("-R 2"));
  CHECK_THAT(note({"-g", "2", "-G", "-I"}), Catch::Contains("-I"));
  CHECK_THAT(note({"-g", "2", "-G", "-z", "3"}), Catch::Contains("-z"));
  CHECK_THAT(note({"-K", "2"}), Catch::Contains("-K"));
  CHECK_THAT(note({"-I", "-K", "5", "-n", "5"}), Catch::Contains("-K"));
  CHECK(parsed({"-g", "2", "-G", "-I"}).perIteration == false);
  CHECK(parsed({"-I", "-K", "5", "-n", "5"}).perIterationSkip == 0);
}

TEST_CASE("nccl-tests' variables are read") {
  CHECK(parsed({}).minBandwidth == -1);
  {
    const Variable bandwidth("NCCL_TESTS_MIN_BW", "2.5"), device("NCCL_TESTS_DEVICE", "3");
    CHECK(parsed({}).minBandwidth == 2.5);
    CHECK(parsed({}).firstGpu == 3);
  }
  const Variable mask("NCCL_TESTS_SPLIT_MASK", "7");
  CHECK(splitColor(parsed({}).split, 13) == 5);
  const Variable bad("NCCL_TESTS_MIN_BW", "fast");
  CHECK_THAT(complaint({}), Catch::Contains("NCCL_TESTS_MIN_BW") && Catch::Contains("fast"));
}

TEST_CASE("Processes get the colors of nccl-tests' expressions") {
  CHECK(splitColor("AND 0x7", 13) == 5);
  CHECK(splitColor("&3", 13) == 1);
  CHECK(splitColor("or 0b111", 8) == 15);
  CHECK(splitColor("MOD 8", 13) == 5);
  CHECK(splitColor("% 2", 13) == 1);
  CHECK(splitColor("DIV 4", 13) == 3);
  for (const char* text : {"", "XOR 3", "MOD", "MOD 0", "DIV 0", "DIV x", "AND 0b", "% 2x"}) {
    CAPTURE(text);
    CHECK_THROWS_AS(splitColor(text, 1), UsageError);
  }
}

TEST_CASE("Errors name the option and the value") {
  CHECK_THAT(complaint({"--nonsense"}), Catch::Contains("--nonsense"));
  CHECK_THAT(complaint({"-b", "many"}), Catch::Contains("-b") && Catch::Contains("many"));
  CHECK_THAT(complaint({"-n"}), Catch::Contains("--iters") && Catch::Contains("required"));
  CHECK_THAT(complaint({"stray"}), Catch::Contains("'stray' belongs to no option"));
  CHECK_THAT(complaint({"--algae", "ring"}), Catch::Contains("there is no option --algae"));
  CHECK_THAT(complaint({"-b", "2M", "-e", "1M"}), Catch::Contains("-e"));
  CHECK_THAT(complaint({"-f", "0"}), Catch::Contains("-f"));
  CHECK_THAT(complaint({"-z", "4"}), Catch::Contains("-z") && Catch::Contains("4"));
  CHECK_THAT(complaint({"-D", "1"}), Catch::Contains("-D"));
  CHECK_THAT(complaint({"--device", "abacus"}), Catch::Contains("--device") && Catch::Contains("abacus"));
  CHECK_THAT(complaint({"-G", "1"}), Catch::Contains("-G") && Catch::Contains("--device gpu"));
}
