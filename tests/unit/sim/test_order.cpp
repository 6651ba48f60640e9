// The messages that seqpar_sim records are those of the library on threads, in the same order on every rank.
#include <algorithm>
#include <catch2/catch.hpp>
#include <cmath>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <functional>
#include <map>
#include <random>
#include <span>
#include <sstream>
#include <string>
#include <vector>

#include "exchange/exchange.h"
#include "exchange/flows.h"
#include "exchange/heads.h"
#include "exchange/shards.h"
#include "memory_mailbox.h"
#include "scan/affine/affine.h"
#include "scan/registry.h"
#include "unit/seed.h"

namespace seqpar::test {
namespace {

/// A message of a rank: "send" or "receive", the other rank, and bytes.
struct Line {
  std::string kind;
  int peer = 0;
  double bytes = 0;
};
using Lines = std::vector<Line>;

/// How ranks, which are threads, reach each other's memory: as processes of a host do.
struct Access {
  bool reads = false;   ///< in place
  bool maps = false;    ///< each other's buffers
  bool shares = false;  ///< all data are in such buffers
};

/// Writes down the messages of another mailbox.
class Listening final : public Mailbox {
 public:
  Listening(Mailbox& mail, Lines& lines, Access access = {}) : mail_(mail), lines_(lines), access_(access) {}
  int rank() const override { return mail_.rank(); }
  int size() const override { return mail_.size(); }
  size_t maxMessage() const override { return mail_.maxMessage(); }
  size_t window() const override { return mail_.window(); }
  bool direct(int peer) const override { return mail_.direct(peer); }
  void begin(const char* operation, uint64_t number) override { mail_.begin(operation, number); }
  void mark(uint64_t digest) override { mail_.mark(digest); }
  void end() override { mail_.end(); }
  void abandon() noexcept override { mail_.abandon(); }
  bool waited() const override { return mail_.waited(); }
  Target acquire(std::span<const int> to, size_t bytes) override {
    to_.assign(to.begin(), to.end());
    std::sort(to_.begin(), to_.end());
    bytes_ = bytes;
    return mail_.acquire(to, bytes);
  }
  void commit() override {
    for (const int to : to_) lines_.push_back({"send", to, static_cast<double>(bytes_)});
    mail_.commit();
  }
  const std::byte* receive(int from, size_t bytes) override {
    lines_.push_back({"receive", from, static_cast<double>(bytes)});
    return mail_.receive(from, bytes);
  }
  void release(int from) override { mail_.release(from); }
  bool ready(int from) override { return mail_.ready(from); }
  bool readable(int) const override { return access_.reads; }
  bool mapped(int) const override { return access_.maps; }
  bool shared(const void*, size_t) const override { return access_.shares; }
  const std::byte* view(int, uint64_t address, size_t) override {
    // NOLINTNEXTLINE(performance-no-int-to-ptr): an address of another thread's memory.
    return reinterpret_cast<const std::byte*>(address);
  }
  void endViews(int) override {}
  bool prefersMessages(int) override { return false; }
  void read(int, std::span<const RemoteBytes> from, std::span<const std::span<std::byte>> into) override {
    std::vector<std::byte> all;
    for (const RemoteBytes& part : from) {
      // NOLINTNEXTLINE(performance-no-int-to-ptr): an address of another thread's memory.
      const auto* const begin = reinterpret_cast<const std::byte*>(part.address);
      all.insert(all.end(), begin, begin + part.bytes);
    }
    auto at = all.begin();
    for (const auto& part : into) {
      std::copy_n(at, part.size(), part.begin());
      at += static_cast<std::ptrdiff_t>(part.size());
    }
  }

 private:
  Mailbox& mail_;
  Lines& lines_;
  Access access_;
  std::vector<int> to_;
  size_t bytes_ = 0;
};

/// A message to several ranks has no order of its receivers, and some algorithms receive what is ready first: sorts
/// neighboring messages of a kind by their peers.
Lines sortedRuns(Lines lines) {
  for (auto at = lines.begin(); at != lines.end();) {
    const auto from = at;
    at = std::find_if(from, lines.end(), [&](const Line& each) { return each.kind != from->kind; });
    std::stable_sort(from, at, [](const Line& a, const Line& b) { return a.peer < b.peer; });
  }
  return lines;
}

/// The first difference as text; "" if kinds, peers and order are equal, and bytes but for the padding of messages.
std::string difference(const Lines& simulated, const Lines& real) {
  constexpr double kPadding = 0.02;
  const auto text = [](const Line& each) {
    return each.kind + " " + std::to_string(each.peer) + " " + std::to_string(each.bytes);
  };
  for (size_t i = 0; i < std::min(simulated.size(), real.size()); ++i) {
    const auto &a = simulated[i], &b = real[i];
    if (a.kind == b.kind && a.peer == b.peer && std::abs(a.bytes - b.bytes) <= kPadding * b.bytes) continue;
    return "message " + std::to_string(i) + ": simulated " + text(a) + ", real " + text(b);
  }
  if (simulated.size() == real.size()) return "";
  return std::to_string(simulated.size()) + " simulated and " + std::to_string(real.size()) + " real messages";
}

/// The lines of the simulated ranks, by algorithm and rank.
std::map<std::pair<std::string, int>, Lines> simulated(int ranks, const std::string& arguments) {
  const auto path =
      std::filesystem::temp_directory_path() / ("seqpar_order_" + std::to_string(std::random_device()()) + ".csv");
  const std::string command = std::string(SEQPAR_SIM_PROGRAM) + " --ranks " + std::to_string(ranks) + " " + arguments +
                              " --order " + path.string() + " > /dev/null";
  REQUIRE(std::system(command.c_str()) == 0);
  std::ifstream file(path);
  std::string text;
  std::getline(file, text);
  std::map<std::pair<std::string, int>, Lines> all;
  while (std::getline(file, text)) {
    std::stringstream parts(text);
    std::string number, algorithm, rank, kind, peer, size;
    std::getline(parts, number, ',');
    std::getline(parts, algorithm, ',');
    std::getline(parts, rank, ',');
    std::getline(parts, kind, ',');
    std::getline(parts, peer, ',');
    std::getline(parts, size);
    all[{algorithm, std::stoi(rank)}].push_back({kind, std::stoi(peer), std::stod(size)});
  }
  std::filesystem::remove(path);
  return all;
}

}  // namespace

TEST_CASE("simulated and real messages of All-Scan have the same order") {
  const Seed seed;
  std::mt19937_64 random(seed);
  const int ranks = 2 << (random() % 3);               // shards that the simulator divides without rounding
  constexpr size_t kElements = 16384, kChunk = 16384;  // a state that the simulator divides without rounding
  CAPTURE(ranks);
  const auto expected = simulated(ranks, "--scan sum," + std::to_string(kElements * sizeof(float)));
  int compared = 0;
  for (const auto& row : scanAlgorithms()) {
    if (!expected.contains({row.name, 0})) continue;
    if (row.id == seqparScanHier) continue;  // on GPUs of one node another program serves it
    CAPTURE(row.name);
    std::vector<Lines> lines(static_cast<size_t>(ranks));
    std::vector<int> order, nodes;
    for (int rank = 0; rank < ranks; ++rank) {
      order.push_back(rank);
      nodes.push_back(0);
    }
    const size_t parts = row.pipelined ? kElements * sizeof(float) / kChunk : 1;
    MemoryLanes lanes(ranks, {});
    lanes.run([&](Mailbox& mail) {
      std::vector<float> state(kElements, 1), prefix(kElements);
      ScanProblem problem;
      problem.op = seqparScanSum;
      problem.heads = 1;
      problem.dk = 128;
      problem.dv = kElements / 128;
      problem.state = state.data();
      problem.prefix = prefix.data();
      problem.headFlags.assign(problem.heads, 0);
      problem.first = mail.rank() == 0;
      Listening listening(mail, lines[static_cast<size_t>(mail.rank())]);
      const auto affine = makeAffine(problem);
      row.host.run(*affine, problem, {order, mail.rank(), nodes, {}}, listening, parts);
      // The exclusive prefix of ones is the rank: the recorded run is a real one.
      CHECK(prefix.back() == static_cast<float>(mail.rank()));
    });
    for (int rank = 0; rank < ranks; ++rank) {
      CAPTURE(rank);
      CHECK(difference(sortedRuns(expected.at({row.name, rank})), sortedRuns(lines[static_cast<size_t>(rank)])) == "");
    }
    ++compared;
  }
  REQUIRE(compared >= 4);
}

namespace {

constexpr Access kReads{true, false, false}, kPrivate{true, true, false}, kShared{true, true, true};

/// Runs body(rank, mailbox) on threads; returns each rank's messages.
std::vector<Lines> real(int ranks, Access access, const std::function<void(int, Mailbox&)>& body) {
  std::vector<Lines> lines(static_cast<size_t>(ranks));
  MemoryLanes lanes(ranks, {});
  lanes.run([&](Mailbox& mail) {
    Listening listening(mail, lines[static_cast<size_t>(mail.rank())], access);
    body(mail.rank(), listening);
  });
  return lines;
}

/// Simulated and real messages of ranks on hosts: equal in kind, peer, bytes and order.
void compareOnHosts(int ranks, const std::string& arguments, const std::string& name, const std::vector<Lines>& lines) {
  const auto expected = simulated(ranks, "--machine " SEQPAR_SIM_HOST " --gpus-per-node " + std::to_string(ranks) +
                                             " --what-if host.sends_messages=0 " + arguments);
  for (int rank = 0; rank < ranks; ++rank) {
    CAPTURE(name, rank);
    const auto& own = lines[static_cast<size_t>(rank)];
    REQUIRE(own.size() > 1);
    CHECK(difference(expected.at({name, rank}), own) == "");
  }
}

/// Bytes between two ranks, whatever the messages.
std::map<std::pair<std::string, int>, double> totals(const Lines& lines) {
  std::map<std::pair<std::string, int>, double> sums;
  for (const Line& line : lines) sums[{line.kind, line.peer}] += line.bytes;
  return sums;
}

/// The same bytes between the same ranks on GPUs, where an exchange has one message a peer.
void compareOnGpus(int ranks, const std::string& arguments, const std::string& name, const std::vector<Lines>& lines) {
  const auto expected = simulated(ranks, arguments);
  for (int rank = 0; rank < ranks; ++rank) {
    CAPTURE(name, rank);
    const auto wanted = totals(expected.at({name, rank})), got = totals(lines[static_cast<size_t>(rank)]);
    REQUIRE(wanted.size() == got.size());
    for (const auto& [key, bytes] : wanted) {
      CAPTURE(key.first, key.second);
      REQUIRE(got.contains(key));
      CHECK(got.at(key) == bytes);
    }
  }
}

}  // namespace

TEST_CASE("simulated and real messages of ring steps have the same order") {
  const Seed seed;
  std::mt19937_64 random(seed);
  const int ranks = 2 + static_cast<int>(random() % 5);
  const size_t bytes = 64 + random() % 300000;
  CAPTURE(ranks, bytes);
  const auto step = [&](int rank, Mailbox& mail) {
    const std::vector<std::byte> sent(bytes, std::byte(rank));
    std::vector<std::byte> received(bytes);
    const std::span<const std::byte> out(sent);
    const std::span<std::byte> in(received);
    const int previous = (rank + ranks - 1) % ranks;
    const Flow flow{(rank + 1) % ranks, std::span(&out, 1), previous, std::span(&in, 1)};
    exchangeFlows(mail, std::span(&flow, 1));
    CHECK(received == std::vector<std::byte>(bytes, std::byte(previous)));
  };
  const std::string size = std::to_string(bytes);
  if (bytes > 8192) {
    compareOnHosts(ranks, "--ring " + size, "ring", real(ranks, kShared, step));  // in the ring's own buffers
    compareOnHosts(ranks, "--exchange shift," + size, "shift", real(ranks, kPrivate, step));
    compareOnHosts(ranks, "--mapped --exchange shift," + size, "shift", real(ranks, kShared, step));
    compareOnHosts(ranks, "--what-if host.maps=0 --ring " + size, "ring", real(ranks, kReads, step));
  }
  compareOnGpus(ranks, "--ring " + size, "ring", real(ranks, {}, step));
}

TEST_CASE("simulated and real messages of exchanges have the same order") {
  const Seed seed;
  std::mt19937_64 random(seed);
  const int ranks = 2 << (random() % 3);
  const auto count = static_cast<size_t>(ranks);
  const size_t tokens = 1 + random() % 64;
  CAPTURE(ranks, tokens);

  Shards shards;
  shards.tokens.assign(count, tokens);
  shards.inner = sizeof(float);
  for (int rank = 0; rank < ranks; ++rank) shards.ranks.push_back(rank);
  const auto gathered = real(ranks, {}, [&](int rank, Mailbox& mail) {
    const std::vector<float> shard(tokens, static_cast<float>(rank));
    std::vector<float> whole(tokens * count);
    const auto* const send = reinterpret_cast<const std::byte*>(shard.data());
    auto* const receive = reinterpret_cast<std::byte*>(whole.data());
    exchangeOnHost(mail, gatherRoute(shards, static_cast<size_t>(rank)), std::span(&send, 1), std::span(&receive, 1));
    for (size_t i = 0; i < whole.size(); ++i) REQUIRE(whole[i] == static_cast<float>(i / tokens));
  });
  const std::string whole = std::to_string(tokens * count * sizeof(float));
  for (const Lines& lines : gathered) REQUIRE(lines.size() == 2 * (count - 1));
  const auto sorted = [](std::vector<Lines> lines) {
    for (Lines& each : lines) each = sortedRuns(each);
    return lines;
  };
  // One message to all other ranks: no order of its receivers.
  const auto expected = simulated(ranks, "--machine " SEQPAR_SIM_HOST " --gpus-per-node " + std::to_string(ranks) +
                                             " --exchange allgather," + whole);
  for (int rank = 0; rank < ranks; ++rank) {
    CAPTURE(rank);
    CHECK(difference(sortedRuns(expected.at({"allgather", rank})), sorted(gathered)[static_cast<size_t>(rank)]) == "");
  }
  compareOnGpus(ranks, "--exchange allgather," + whole, "allgather", gathered);

  constexpr size_t kHeads = 32, kHeadBytes = 256;
  HeadShards heads;
  heads.tokens.assign(count, tokens);
  heads.heads = kHeads;
  heads.headBytes = kHeadBytes;
  for (int rank = 0; rank < ranks; ++rank) {
    heads.ranks.push_back(rank);
    heads.range.push_back(headsOf(kHeads, kHeads, count, static_cast<size_t>(rank)));
  }
  const size_t bytes = tokens * kHeads * kHeadBytes;
  const auto exchange = [&](int rank, Mailbox& mail) {
    const std::vector<std::byte> sequence(bytes, std::byte(rank));
    std::vector<std::byte> head(bytes);
    const std::byte* const send = sequence.data();
    std::byte* const receive = head.data();
    exchangeOnHost(mail, sequenceToHeads(heads, static_cast<size_t>(rank)), std::span(&send, 1),
                   std::span(&receive, 1));
    for (size_t i = 0; i < bytes; ++i) REQUIRE(head[i] == std::byte(i / (bytes / count)));
  };
  const std::string arguments = "--exchange to_heads," + std::to_string(bytes);
  compareOnHosts(ranks, arguments, "to_heads", real(ranks, kPrivate, exchange));
  compareOnHosts(ranks, "--mapped " + arguments, "to_heads", real(ranks, kShared, exchange));
  compareOnGpus(ranks, arguments, "to_heads", real(ranks, {}, exchange));
}

}  // namespace seqpar::test
