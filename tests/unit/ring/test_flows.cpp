// Several tensors each way, over a mailbox that blocks as soon as the deadlock rule is broken.
#include <algorithm>
#include <catch2/catch.hpp>
#include <random>
#include <vector>

#include "common/covering.h"
#include "exchange/flows.h"
#include "memory_mailbox.h"
#include "unit/seed.h"

using namespace seqpar;
using namespace seqpar::test;

namespace {

constexpr size_t kLengths[] = {0, 1, 63, 8192, 16384, 65536, 65537, (128 << 10) - 1, 128 << 10, 300001, (2 << 20) + 5};

using Tensors = std::vector<std::vector<std::byte>>;

/// What `rank` sends in flow `flow`.
Tensors tensorsOf(unsigned seed, int rank, size_t flow) {
  std::mt19937 random(seed * 1000 + static_cast<unsigned>(rank) * 10 + static_cast<unsigned>(flow));
  Tensors tensors(random() % 6);
  for (auto& tensor : tensors) {
    tensor.resize(kLengths[random() % std::size(kLengths)]);
    auto value = static_cast<unsigned>(random());
    for (auto& byte : tensor) byte = static_cast<std::byte>((value = value * 1664525 + 1013904223) >> 24);
  }
  return tensors;
}

/// Every flow sends `distance[flow]` ranks further; an open chain does not go round.
void runFlows(int ranks, const std::vector<int>& distances, bool closed, unsigned seed) {
  CAPTURE(ranks, distances, closed, seed);
  MemoryMailboxOptions options;
  options.maxMessage = 256 << 10;
  options.window = 1 << 20;
  options.mapped = seed % 2 == 0;
  MemoryLanes lanes(ranks, options);
  std::vector<int> wrong(static_cast<size_t>(ranks), 0);
  lanes.run([&](Mailbox& mail) {
    std::vector<Tensors> sent, received, expected;
    std::vector<std::vector<std::span<const std::byte>>> out(distances.size());
    std::vector<std::vector<std::span<std::byte>>> in(distances.size());
    std::vector<Flow> flows;
    for (size_t i = 0; i < distances.size(); ++i) {
      const int to = mail.rank() + distances[i];
      const int from = mail.rank() - distances[i];
      const bool sends = closed || to < ranks;
      const bool receives = closed || from >= 0;
      sent.push_back(tensorsOf(seed, mail.rank(), i));
      expected.push_back(receives ? tensorsOf(seed, (from + ranks) % ranks, i) : Tensors());
      received.push_back(expected.back());
      for (auto& tensor : received.back()) std::fill(tensor.begin(), tensor.end(), std::byte{0xee});
      for (const auto& tensor : sent.back()) out[i].emplace_back(tensor);
      for (auto& tensor : received.back()) in[i].emplace_back(tensor);
      flows.push_back(
          {sends ? to % ranks : SEQPAR_NO_PEER, out[i], receives ? (from + ranks) % ranks : SEQPAR_NO_PEER, in[i]});
    }
    exchangeFlows(mail, flows);
    wrong[static_cast<size_t>(mail.rank())] = received == expected ? 0 : 1;
  });
  CHECK(wrong == std::vector<int>(static_cast<size_t>(ranks), 0));
}

}  // namespace

TEST_CASE("one flow of several tensors") {
  const seqpar::test::Seed seed;
  for (const int ranks : {2, 3, 5}) {
    for (unsigned round = 0; round < (seqpar::test::kSanitized ? 4 : 8); ++round) {
      runFlows(ranks, {1 + static_cast<int>(round) % (ranks - 1)}, true, seed + round);
      runFlows(ranks, {1}, false, seed + 100 + round);
    }
  }
}

TEST_CASE("two flows at once") {
  const seqpar::test::Seed seed;
  for (const int ranks : {3, 4, 5}) {
    for (unsigned round = 0; round < (seqpar::test::kSanitized ? 4 : 8); ++round) {
      runFlows(ranks, {1, ranks - 1}, true, seed + round);
      runFlows(ranks, {2, 1}, true, seed + 50 + round);
      runFlows(ranks, {1, 2}, false, seed + 100 + round);
    }
  }
}
