// The file of measured constants: lines that are read back, ignored or left unchanged, and its use by a communicator.
#include <sys/stat.h>
#include <unistd.h>

#include <array>
#include <catch2/catch.hpp>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <limits>
#include <optional>
#include <sstream>
#include <string>
#include <thread>
#include <vector>

#include "common/ranks.h"
#include "plan/tuning_cache.h"

using namespace seqpar;
using namespace seqpar::test;

namespace {

/// A folder that is gone afterwards.
class Folder {
 public:
  Folder() {
    std::string name = std::filesystem::temp_directory_path() / "seqpar-cache-XXXXXX";
    REQUIRE(mkdtemp(name.data()) != nullptr);
    path_ = name;
  }
  Folder(const Folder&) = delete;
  Folder& operator=(const Folder&) = delete;
  ~Folder() { std::filesystem::remove_all(path_); }

  std::string file() const { return path_ / "cache"; }
  size_t files() const {
    const std::filesystem::directory_iterator all(path_);
    return static_cast<size_t>(std::distance(begin(all), end(all)));
  }

 private:
  std::filesystem::path path_;
};

std::string textOf(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  std::ostringstream text;
  text << file.rdbuf();
  return text.str();
}

void write(const std::string& path, const std::string& text) {
  std::ofstream(path, std::ios::binary) << text;
}

LinkModel model(double scale) {
  LinkModel links;
  links.node = {1e-7 * scale, 1e-10 / 3 * scale, 1e-8};
  links.network = {2e-7 * scale, 0.1 * 1e-9, 0};
  links.process = {3e-8, 1.0 / 3 * 1e-9, 5e-9};
  links.contention = 1.25;
  return links;
}

bool same(const Link& a, const Link& b) {
  return a.alpha == b.alpha && a.secondsPerByte == b.secondsPerByte && a.overhead == b.overhead;
}

bool same(const std::optional<LinkModel>& found, const LinkModel& expected) {
  return found && found->remembered && same(found->node, expected.node) && same(found->network, expected.network) &&
         same(found->process, expected.process) && found->contention == expected.contention;
}

}  // namespace

TEST_CASE("stored constants are read back bit for bit") {
  const Folder folder;
  const TuningCache cache(folder.file());
  CHECK_FALSE(cache.find("a; b"));
  cache.store("a; b", model(1));
  cache.store("c", model(2));
  CHECK(same(cache.find("a; b"), model(1)));
  CHECK(same(cache.find("c"), model(2)));
  CHECK_FALSE(cache.find("a"));
  cache.store("c", model(3));
  CHECK(same(cache.find("c"), model(3)));
  CHECK(same(cache.find("a; b"), model(1)));
  CHECK(folder.files() == 1);
}

TEST_CASE("damaged lines are ignored, valid lines are kept") {
  const Folder folder;
  const TuningCache cache(folder.file());
  cache.store("first", model(1));
  cache.store("second", model(2));
  const std::string whole = textOf(folder.file());
  for (size_t at = whole.find('\n') + 1; at < whole.size(); ++at) {
    std::string text = whole;
    text[at] = static_cast<char>(text[at] ^ 1);
    write(folder.file(), text);
    const int good = (same(cache.find("first"), model(1)) ? 1 : 0) + (same(cache.find("second"), model(2)) ? 1 : 0);
    const auto first = cache.find("first"), second = cache.find("second");
    CAPTURE(at);
    CHECK((!first || same(first, model(1))));
    CHECK((!second || same(second, model(2))));
    CHECK(good <= 1);
  }
  for (size_t length = 0; length < whole.size(); ++length) {
    write(folder.file(), whole.substr(0, length));
    const auto first = cache.find("first");
    CHECK((!first || same(first, model(1))));
    const auto second = cache.find("second");
    CHECK((!second || (same(second, model(2)) && length + 1 == whole.size())));
  }
  write(folder.file(), whole + "nonsense\n\n\t\t\t\n");
  CHECK(same(cache.find("second"), model(2)));
}

TEST_CASE("invalid numbers are ignored") {
  const Folder folder;
  const TuningCache cache(folder.file());
  LinkModel links = model(1);
  links.node.alpha = -1;
  cache.store("negative", links);
  links = model(1);
  links.network.secondsPerByte = std::numeric_limits<double>::quiet_NaN();
  cache.store("nan", links);
  links = model(1);
  links.process.secondsPerByte = 0;
  cache.store("infinitely fast", links);
  for (const char* key : {"negative", "nan", "infinitely fast"}) CHECK_FALSE(cache.find(key));
}

TEST_CASE("files that are not a tuning cache are not changed") {
  const Folder folder;
  const TuningCache cache(folder.file());
  const std::string precious = "my notes\nsecond line\n";
  write(folder.file(), precious);
  CHECK_FALSE(cache.find("key"));
  cache.store("key", model(1));
  CHECK(textOf(folder.file()) == precious);
}

TEST_CASE("another version's file is replaced, an empty one filled") {
  const Folder folder;
  const TuningCache cache(folder.file());
  for (const char* text : {"", "seqpar tuning cache 999\nwhatever\n"}) {
    write(folder.file(), text);
    CHECK_FALSE(cache.find("key"));
    cache.store("key", model(1));
    CHECK(same(cache.find("key"), model(1)));
  }
}

TEST_CASE("a directory without write access is ignored") {
  const Folder folder;
  const TuningCache missing(folder.file() + "/no/such/folder");
  missing.store("key", model(1));
  CHECK_FALSE(missing.find("key"));
  std::filesystem::create_directory(folder.file());
  const TuningCache directory(folder.file());
  directory.store("key", model(1));
  CHECK_FALSE(directory.find("key"));
  const std::string pipe = folder.file() + "/pipe";
  REQUIRE(mkfifo(pipe.c_str(), 0600) == 0);
  const TuningCache fifo(pipe);  // opening it would wait for ever
  fifo.store("key", model(1));
  CHECK_FALSE(fifo.find("key"));
}

TEST_CASE("the file size is bounded") {
  const Folder folder;
  const TuningCache cache(folder.file());
  for (int i = 0; i < 300; ++i) cache.store("key " + std::to_string(i), model(1));
  CHECK_FALSE(cache.find("key 0"));
  CHECK(same(cache.find("key 299"), model(1)));
  CHECK(textOf(folder.file()).size() < 100000);
}

TEST_CASE("concurrent readers see complete files") {
  const Folder folder;
  const TuningCache cache(folder.file());
  cache.store("constant", model(1));
  std::vector<int> wrong(2, 0);
  {
    std::vector<std::jthread> threads;
    for (int writer = 0; writer < 2; ++writer) {
      threads.emplace_back([&, writer] {
        for (int i = 0; i < 50; ++i) cache.store("writer " + std::to_string(writer), model(i + 1));
      });
    }
    for (size_t reader = 0; reader < wrong.size(); ++reader) {
      threads.emplace_back([&, reader] {
        for (int i = 0; i < 200; ++i) wrong[reader] += same(cache.find("constant"), model(1)) ? 0 : 1;
      });
    }
  }
  CHECK(wrong == std::vector<int>{0, 0});
  CHECK(folder.files() == 1);
}

TEST_CASE("keys distinguish placements") {
  Topology topology;
  topology.hostIds = {"a", "a", "b"};
  topology.nodes = {0, 0, 1};
  topology.processes = {0, 1, 2};
  topology.models = {"Processor\t9", "Processor\t9"};
  topology.nodeCount = 2;
  const std::string key = tuningKey(topology, "shared memory");
  CHECK(key == tuningKey(topology, "shared memory"));
  CHECK(key.find('\t') == std::string::npos);
  std::vector<std::string> others{tuningKey(topology, "tcp")};
  const auto changed = [&](auto change) {
    Topology other = topology;
    change(other);
    others.push_back(tuningKey(other, "shared memory"));
  };
  changed([](Topology& t) { t.hostIds[2] = "c"; });
  changed([](Topology& t) { t.nodes = {0, 1, 1}; });
  changed([](Topology& t) { t.processes = {0, 0, 1}; });
  changed([](Topology& t) { t.models[1] = "Processor 8"; });
  changed([](Topology& t) { t.contention = 2; });
  for (const auto& other : others) CHECK(other != key);
}

namespace {

/// The constants that each of three ranks has.
std::vector<std::array<double, 3>> constantsOfThreeRanks() {
  std::vector<std::array<double, 3>> all(3);
  const auto errors = onCommunicator(3, [&](seqparComm_t comm, int rank) {
    seqparCommInfo_t info = SEQPAR_COMM_INFO_INITIALIZER;
    expectSuccess(seqparCommQuery(comm, &info), "seqparCommQuery", comm);
    all[static_cast<size_t>(rank)] = {info.alphaUs, info.bandwidth, info.overheadUs};
  });
  INFO(errors);
  REQUIRE(errors.empty());
  return all;
}

}  // namespace

TEST_CASE("all ranks of a communicator use the cached constants") {
  const Folder folder;
  setenv("SEQPAR_TUNING_CACHE", folder.file().c_str(), 1);
  const auto measured = constantsOfThreeRanks();
  CHECK(measured[1] == measured[0]);
  REQUIRE(folder.files() == 1);

  // Other values for the same key, which no measurement can produce.
  const std::string text = textOf(folder.file());
  const std::string line = text.substr(text.find('\n') + 1);
  const auto begin = line.find('\t') + 1;
  LinkModel links = model(1);
  links.network = {0.5, 0.25, 0.125};
  TuningCache(folder.file()).store(line.substr(begin, line.rfind('\t') - begin), links);
  for (const auto& ofRank : constantsOfThreeRanks()) CHECK(ofRank == std::array<double, 3>{5e5, 4, 1.25e5});

  setenv("SEQPAR_TUNING_CACHE", "off", 1);
  CHECK(constantsOfThreeRanks()[2][1] != 4);
  unsetenv("SEQPAR_TUNING_CACHE");
}
