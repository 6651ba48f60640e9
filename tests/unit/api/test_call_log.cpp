#include <unistd.h>

#include <array>
#include <barrier>
#include <catch2/catch.hpp>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <sstream>
#include <vector>

#include "comm/call_log.h"
#include "common/ranks.h"
#include "seqpar/exchange.h"
#include "seqpar/scan.h"

using namespace seqpar;
using namespace seqpar::test;

namespace {

size_t count(const std::string& text, const std::string& part) {
  size_t found = 0;
  for (size_t at = text.find(part); at != std::string::npos; at = text.find(part, at + 1)) ++found;
  return found;
}

bool has(const std::string& text, const std::string& part) {
  return text.find(part) != std::string::npos;
}

/// A new folder, removed with its contents.
class Folder {
 public:
  Folder() {
    std::string pattern = (std::filesystem::temp_directory_path() / "seqpar.XXXXXX").string();
    path_ = mkdtemp(pattern.data());
  }
  ~Folder() { std::filesystem::remove_all(path_); }
  Folder(const Folder&) = delete;
  Folder& operator=(const Folder&) = delete;

  std::filesystem::path operator/(const std::string& name) const { return path_ / name; }

 private:
  std::filesystem::path path_;
};

class TraceFile {
 public:
  explicit TraceFile(const std::string& value) { setenv("SEQPAR_TRACE_FILE", value.c_str(), 1); }
  ~TraceFile() { unsetenv("SEQPAR_TRACE_FILE"); }
  TraceFile(const TraceFile&) = delete;
  TraceFile& operator=(const TraceFile&) = delete;
};

std::string contents(const std::filesystem::path& path) {
  std::ifstream file(path);
  std::stringstream text;
  text << file.rdbuf();
  return text.str();
}

}  // namespace

TEST_CASE("A record contains calls, sequence numbers, values, bytes and algorithm") {
  CallLog log;
  log.identify(0xabc, 1, 3);
  {
    CallScope scope(log, "first");
    CallScope::addBytes(100);
    CallScope::addBytes(28);
    const std::array<NamedValue, 2> values{{{"heads", 4}, {"dk", -1}}};
    log.collective("first", values);
    CallScope::setAlgorithm("chain");
    const CallReference operation = log.operation("first", false);
    operation.begin();
    operation.end();
    scope.succeed();
  }
  { const CallScope scope(log, "a query"); }
  {
    const CallScope scope(log, "second");
    log.operation("second", true);
  }
  const std::string json = log.json("a \"reason\"\n");
  CHECK(has(json, "\"communicator\":\"0000000000000abc\",\"rank\":1,\"ranks\":3"));
  CHECK(has(json, "\"reason\":\"a \\\"reason\\\"\\u000a\""));
  CHECK(has(json, "\"number\":1,\"collective\":1,\"call\":\"first\",\"algorithm\":\"chain\",\"bytes\":128"));
  CHECK(has(json, "\"operations\":1,\"ended\":1,\"failed\":false,\"values\":{\"heads\":4,\"dk\":-1}"));
  CHECK(has(json, "\"number\":2,\"collective\":0,\"call\":\"second\",\"algorithm\":null,\"bytes\":0"));
  CHECK(has(json, "\"begun_ns\":null,\"done_ns\":null,\"operations\":1,\"ended\":0"));
  CHECK_FALSE(has(json, "a query"));
}

TEST_CASE("Records print the values that the log stores") {
  CallLog log;
  log.identify(1, 0, 1);
  const std::array<NamedValue, 2> values{{{"heads", 4}, {"heads", 5}}};
  const CallValues* const kept = log.keep("kept", values);
  REQUIRE(kept != nullptr);
  log.collective("kept", *kept);
  const std::array<NamedValue, 1> others{{{"dk", 7}}};
  log.collective("others", others);
  const std::string json = log.json("");
  CHECK(has(json, "\"call\":\"kept\",\"algorithm\":null,\"bytes\":0"));
  CHECK(has(json, "\"values\":{\"heads\":4,\"heads 1\":5}}"));
  CHECK(has(json, "\"values\":{\"dk\":7}}"));
  const std::vector<NamedValue> many(CallRecord::kMostValues + 1, NamedValue{"x", 1});
  CHECK(log.keep("many", many) == nullptr);
}

TEST_CASE("Ranks compare digests of calls that have succeeded") {
  CallLog log, other;
  const auto call = [](CallLog& of, int64_t heads, bool succeeds, bool compares) {
    CallScope scope(of, "scan");
    const std::array<NamedValue, 1> values{{{"heads", heads}}};
    of.collective("scan", values);
    if (compares) of.compare();
    if (succeeds) scope.succeed();
  };
  const auto difference = [&] { return differenceOf(log.chain().report().value(), other.chain().report().value()); };
  call(log, 4, true, true);
  call(log, 5, false, true);
  call(log, 5, true, false);
  call(log, 6, true, true);
  call(other, 4, true, true);
  call(other, 6, true, true);
  CHECK(log.chain().report()->calls == 2);
  CHECK_FALSE(difference());
  call(log, 7, true, true);
  call(other, 8, true, true);
  REQUIRE(difference());
  CHECK(difference()->call == 3);
  CHECK(difference()->first);
}

TEST_CASE("A call that throws is recorded as failed, an unfinished call as not returned") {
  CallLog log;
  log.identify(1, 0, 1);
  try {
    const CallScope scope(log, "thrower");
    log.operation("thrower", false);
    CHECK(has(log.json(""), "\"returned_ns\":null"));
    throw std::runtime_error("no");
  } catch (const std::runtime_error&) {
    CHECK(has(log.json(""), "\"failed\":true"));
    CHECK_FALSE(has(log.json(""), "\"returned_ns\":null"));
  }
}

TEST_CASE("The log keeps the last calls, and a late completion closes only its own call") {
  CallLog log;
  log.identify(1, 0, 1);
  const CallReference early = log.operation("early", true);
  for (size_t i = 0; i < CallLog::kCalls; ++i) log.operation("later", true);
  early.begin();
  early.end();
  const std::string json = log.json("");
  CHECK(count(json, "\"call\":\"later\"") == CallLog::kCalls);
  CHECK_FALSE(has(json, "early"));
  CHECK_FALSE(has(json, "\"ended\":1"));
  CHECK(has(json, "\"recorded\":1025"));
}

TEST_CASE("The record's file name contains its process and rank") {
  const Folder folder;
  const auto write = [&](const std::string& name, int rank) {
    const TraceFile variable((folder / name).string());
    CallLog log;
    log.identify(0x17, rank, 2);
    log.write("reason");
  };
  write("%r.%c%%.%p", 1);
  CHECK(std::filesystem::exists(folder / ("1.0000000000000017%." + std::to_string(getpid()))));
  write("plain", 1);
  CHECK(std::filesystem::exists(folder / "plain.1"));
  const TraceFile variable((folder / "%x").string());
  CallLog log;
  CHECK_THROWS_WITH(log.identify(1, 0, 1), Catch::Contains("SEQPAR_TRACE_FILE") && Catch::Contains("%r"));
}

TEST_CASE("Communicators of one process do not write over each other") {
  const Folder folder;
  const TraceFile variable((folder / "%r").string());
  CallLog one, other;
  one.identify(1, 0, 1);
  other.identify(2, 0, 1);
  one.write("one");
  other.write("other");
  one.write("one again");
  CHECK(has(contents(folder / "0"), "one again"));
  CHECK(has(contents(folder / "0.0000000000000002"), "other"));
}

TEST_CASE("A communicator that fails leaves the calls of each rank") {
  const Folder folder;
  const TraceFile variable((folder / "%r").string());
  const auto errors = onThreads(1, [&](int) {
    std::array<seqparComm_t, 2> comms{};
    expectSuccess(seqparCommInitAll(comms.data(), 2, nullptr), "seqparCommInitAll");
    std::barrier<> gathered(2);
    const auto failures = onThreads(2, [&](int rank) {
      const auto comm = comms[static_cast<size_t>(rank)];
      std::vector<float> shard(8), whole(16);
      seqparShards_t shards = SEQPAR_SHARDS_INITIALIZER;
      shards.tokens = 8;
      const auto gather = [&] { return seqparAllGather(shard.data(), whole.data(), &shards, comm, nullptr); };
      expectSuccess(gather(), "seqparAllGather", comm);
      gathered.arrive_and_wait();
      if (rank == 1) return static_cast<void>(seqparCommAbort(comm));
      expect(gather() == seqparRemoteError, "rank 1 has left, but a call did not fail");
      seqparCommAbort(comm);
    });
    expect(failures.empty(), failures);
  });
  CHECK(errors.empty());
  CAPTURE(errors);
  const std::string waited = contents(folder / "0"), left = contents(folder / "1");
  CHECK(count(waited, "\"call\":\"seqparAllGather\"") == 2);
  CHECK(count(waited, "\"failed\":true") == 1);
  CHECK(count(left, "\"call\":\"seqparAllGather\"") == 1);
  CHECK(has(left, "seqparCommAbort was called on rank 1"));
  CHECK(has(left, "\"bytes\":96"));  // a shard and the whole
}
