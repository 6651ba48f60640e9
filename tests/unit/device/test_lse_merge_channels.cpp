// The kernel that merges partial attention between peers, on threads, against fp64.
#include <catch2/catch.hpp>
#include <cmath>
#include <cstring>
#include <limits>
#include <memory>
#include <random>

#include "base/convert.h"
#include "base/error.h"
#include "kernels/exchange/lse_merge.h"
#include "kernels/exchange/lse_merge_short.h"
#include "kernels/exchange/lse_merge_teams.h"
#include "thread_peers.h"
#include "unit/seed.h"

using namespace seqpar;
using namespace seqpar::test;

namespace {

constexpr float kNothing = -std::numeric_limits<float>::infinity();
constexpr float kNaN = std::numeric_limits<float>::quiet_NaN();

/// One call of all ranks.
struct Call {
  MergeTask shape;  ///< without addresses
  std::vector<std::vector<std::byte>> out, outMerged;
  std::vector<std::vector<float>> lse, lseMerged;
  std::vector<MergeTask> tasks;
  std::int32_t rowCount = 0;

  std::size_t each() const { return sizeOf(shape.type); }
  float value(const std::vector<std::byte>& bytes, std::size_t index) const {
    float number = 0;
    toFloat(bytes.data() + offset + index * each(), shape.type, &number, 1);
    return number;
  }
  std::size_t offset = 0;  ///< of arrays in `out` and `outMerged`: unaligned if not 0
  bool inPlace = false;
};

/// A third of the results are empty, with NaN in their memory; all ranks lack some results; one lse is NaN.
std::unique_ptr<Call> draw(std::mt19937_64& random, int ranks, int channels, bool large) {
  auto call = std::make_unique<Call>();
  MergeTask& shape = call->shape;
  shape.kind = static_cast<MergeKind>(random() % 3);
  shape.type = static_cast<seqparDataType_t>(random() % 3);
  shape.rows = 1 + random() % (large ? 40 : 6);
  shape.heads = 1 + random() % (large ? 24 : 6);
  const bool whole = random() % 2 == 0;
  shape.elements = whole ? 8 * (1 + random() % (large ? 16 : 3)) : 1 + random() % 40;
  shape.channels = 1 + static_cast<int>(random() % static_cast<unsigned>(channels));
  call->offset = whole ? 0 : call->each();
  call->inPlace = shape.kind != MergeKind::Heads && random() % 2 == 0;
  call->rowCount = static_cast<std::int32_t>(random() % (shape.rows + 1));
  const bool counted = random() % 2 == 0;
  if (!counted) call->rowCount = static_cast<std::int32_t>(shape.rows);
  const std::size_t results = std::size_t{shape.rows} * shape.heads;
  const std::size_t lacking = random() % results, nan = random() % (3 * results);
  std::normal_distribution<float> normal;
  for (int rank = 0; rank < ranks; ++rank) {
    auto& lse = call->lse.emplace_back(results);
    std::vector<float> out(results * shape.elements);
    for (std::size_t r = 0; r < results; ++r) {
      lse[r] = r == lacking || random() % 3 == 0 ? kNothing : 20 * normal(random);
      if (r == nan && rank == 0) lse[r] = kNaN;
      for (std::size_t i = 0; i < shape.elements; ++i) {
        out[r * shape.elements + i] = lse[r] == kNothing ? kNaN : normal(random);
      }
    }
    auto& bytes = call->out.emplace_back(call->offset + out.size() * call->each());
    fromFloat(out.data(), bytes.data() + call->offset, shape.type, out.size());
  }
  call->outMerged = call->out;
  call->lseMerged = call->lse;
  for (std::size_t rank = 0; rank < call->out.size(); ++rank) {
    MergeTask task = shape;
    task.outMerged = call->outMerged[rank].data() + call->offset;
    task.lseMerged = call->lseMerged[rank].data();
    task.out = call->inPlace ? task.outMerged : call->out[rank].data() + call->offset;
    task.lse = call->inPlace ? task.lseMerged : call->lse[rank].data();
    task.rowCount = counted ? &call->rowCount : nullptr;
    task.complete(ranks);
    task.setChannels(shape.channels, ranks);
    task.brief = random() % 2 == 0;  // selects a program; each rank may select another
    call->tasks.push_back(task);
  }
  return call;
}

/// Of a channel's threads.
struct Shared {
  MergeShared merge;
  TeamShared<4> teams;
};

void run(const MergeTask& task, const ChannelThread& thread, Shared& shared, std::atomic<bool>& ok) {
  const auto with = [&](auto type) {
    constexpr auto kType = decltype(type)::value;
    const auto merge = [&](auto most) {
      constexpr int kMost = decltype(most)::value;
      if constexpr (kMost == 4) {
        if (task.brief && task.isShort() && thread.group.threads() >= thread.view.size - 1) {
          return TeamMergeProgram<kType, kMost, ThreadMemory, ThreadGroup>(thread.view, task, thread.channel,
                                                                           thread.group, shared.teams)
              .run();
        }
      }
      if (thread.view.size <= 8 && task.isShort()) {
        return ShortMergeProgram<kType, kMost, ThreadMemory, ThreadGroup>(thread.view, task, thread.channel,
                                                                          thread.group, shared.merge)
            .run();
      }
      return LseMergeProgram<kType, kMost, ThreadMemory, ThreadGroup>(thread.view, task, thread.channel, thread.group,
                                                                      shared.merge)
          .run();
    };
    const bool done = thread.view.size <= 2   ? merge(std::integral_constant<int, 2>())
                      : thread.view.size <= 4 ? merge(std::integral_constant<int, 4>())
                                              : merge(std::integral_constant<int, 9>());
    if (!done) ok = false;
  };
  if (task.type == seqparFloat32) return with(std::integral_constant<seqparDataType_t, seqparFloat32>());
  if (task.type == seqparFloat16) return with(std::integral_constant<seqparDataType_t, seqparFloat16>());
  with(std::integral_constant<seqparDataType_t, seqparBfloat16>());
}

/// The first error of a rank's results, as text.
std::string judge(const Call& call, int rank, int ranks) {
  const MergeTask& shape = call.shape;
  const auto self = static_cast<std::size_t>(rank);
  const bool byHeads = shape.kind == MergeKind::Heads;
  const std::size_t first = byHeads ? MergeTask::firstOf(shape.heads, ranks, rank) : 0;
  const std::size_t own = byHeads ? MergeTask::shareOf(shape.heads, ranks, rank) : shape.heads;
  const double eps = shape.type == seqparFloat32 ? 2e-5 : shape.type == seqparFloat16 ? 2e-3 : 1.6e-2;
  for (std::size_t i = 0; i < static_cast<std::size_t>(call.rowCount) * own; ++i) {
    const std::size_t result = i / own * shape.heads + first + i % own;
    double most = static_cast<double>(kNothing), sum = 0;
    for (const auto& lse : call.lse) {
      most = std::isnan(lse[result]) || std::isnan(most) ? kNaN : std::max(most, static_cast<double>(lse[result]));
    }
    for (const auto& lse : call.lse) sum += lse[result] == kNothing ? 0 : std::exp(lse[result] - most);
    const bool none = most == static_cast<double>(kNothing);
    const double expected = none ? most : most + std::log(sum);
    const float lse = call.lseMerged[self][i];
    const bool same = std::isnan(expected) ? std::isnan(lse)
                      : none               ? lse == kNothing
                                           : std::abs(lse - expected) < 1e-5 * (1 + std::abs(expected));
    if (!same) return concat("lse of result ", result, " is ", lse, ", expected ", expected);
    for (std::size_t e = 0; e < shape.elements; ++e) {
      double right = 0;
      for (std::size_t other = 0; other < call.lse.size(); ++other) {
        if (call.lse[other][result] == kNothing) continue;
        right +=
            std::exp(call.lse[other][result] - most) / sum * call.value(call.out[other], result * shape.elements + e);
      }
      const float value = call.value(call.outMerged[self], i * shape.elements + e);
      const bool near =
          std::isnan(expected) ? std::isnan(value) : std::abs(value - right) < eps * (1 + std::abs(right));
      if (!near) return concat("out of result ", result, " is ", value, ", expected ", right);
    }
  }
  return "";
}

/// Calls follow each other with nothing between them.
void runCalls(ThreadPeers& peers, int threadsOfChannel, std::vector<std::unique_ptr<Call>>& calls) {
  std::atomic<bool> ok = true;
  std::vector<Shared> shared(static_cast<std::size_t>(peers.size() * peers.channels()));
  peers.run(threadsOfChannel, [&](const ChannelThread& thread) {
    Shared& mine = shared[static_cast<std::size_t>(thread.view.self * peers.channels() + thread.channel)];
    for (const auto& call : calls) {
      const MergeTask& task = call->tasks[static_cast<std::size_t>(thread.view.self)];
      if (thread.channel < task.channels) run(task, thread, mine, ok);
      thread.group.sync();
    }
  });
  REQUIRE(ok);
  for (const auto& call : calls) {
    CAPTURE(static_cast<int>(call->shape.kind), call->shape.type, call->shape.rows, call->shape.heads,
            call->shape.elements, call->shape.channels, call->rowCount, call->inPlace);
    for (int rank = 0; rank < peers.size(); ++rank) {
      CAPTURE(rank);
      REQUIRE(judge(*call, rank, peers.size()) == "");
      if (call->shape.kind == MergeKind::Heads) continue;
      const std::size_t used = static_cast<std::size_t>(call->rowCount) * call->shape.heads;
      const auto self = static_cast<std::size_t>(rank);
      const std::size_t bytes = used * call->shape.elements * call->each();
      REQUIRE(std::memcmp(call->outMerged[self].data() + call->offset, call->outMerged[0].data() + call->offset,
                          bytes) == 0);
      REQUIRE(std::memcmp(call->lseMerged[self].data(), call->lseMerged[0].data(), used * sizeof(float)) == 0);
      // Rows that are not in use are not written.
      const auto& before = call->out[self];
      const std::size_t end = call->offset + bytes;
      REQUIRE(std::memcmp(call->outMerged[self].data() + end, before.data() + end, before.size() - end) == 0);
    }
  }
  for (int sender = 0; sender < peers.size(); ++sender) {
    for (int receiver = 0; receiver < peers.size(); ++receiver) {
      REQUIRE(peers.packetsPublished(sender, receiver) == 0);
    }
  }
}

}  // namespace

TEST_CASE("Merges between peers equal fp64, back to back, with equal bits on all ranks") {
  const seqpar::test::Seed seed;
  std::mt19937_64 random(seed);
  for (const int size : {1, 2, 3, 4, 9}) {
    ThreadPeers peers(size, 2);
    std::vector<std::unique_ptr<Call>> calls;
    for (int i = 0; i < 24; ++i) calls.push_back(draw(random, size, 2, false));
    CAPTURE(size);
    runCalls(peers, size > 4 ? 1 : random() % 2 == 0 ? 3 : 7, calls);
  }
}

TEST_CASE("Merges larger than the rings") {
  const seqpar::test::Seed seed;
  std::mt19937_64 random(seed);
  for (const int size : {2, 3}) {
    ThreadPeers peers(size, 1);
    std::vector<std::unique_ptr<Call>> calls;
    for (int i = 0; i < 10; ++i) calls.push_back(draw(random, size, 1, true));
    CAPTURE(size);
    runCalls(peers, 2, calls);
    CHECK(peers.creditSent(0, 1) > 0);
  }
}

TEST_CASE("A merge whose peer is absent ends at the timeout without a result") {
  ThreadPeers peers(2, 1, std::chrono::milliseconds(50));
  std::mt19937_64 random(1);
  auto call = draw(random, 2, 1, false);
  while (call->rowCount == 0 || call->shape.kind == MergeKind::Heads) call = draw(random, 2, 1, false);
  std::atomic<bool> ok = true;
  Shared shared;
  const auto before = call->lseMerged[0];
  peers.run(2, [&](const ChannelThread& thread) { run(call->tasks[0], thread, shared, ok); }, {0});
  CHECK_FALSE(ok);
  CHECK(peers.timedOut(0) == 2);
  CHECK(std::memcmp(call->lseMerged[0].data(), before.data(), before.size() * sizeof(float)) == 0);
}
