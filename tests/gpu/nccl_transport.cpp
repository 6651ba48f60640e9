// NCCL under a communicator: exchanges, gathers, groups, graphs, borrowed communicators, deadlines and abort. Needs two
// GPUs; exit status 77 without.
#include <cstdint>
#include <random>

#include "common/draw_seed.h"
#include "device/nccl_library.h"
#include "seqpar/seqpar.h"
#include "support/nccl_ranks.h"

using namespace seqpar;
using namespace seqpar::test;

namespace {

using Bytes = std::vector<std::uint8_t>;
/// Plays no part.
std::chrono::milliseconds timeout() {
  return patience(std::chrono::seconds(60));
}
/// Ends waits.
std::chrono::milliseconds deadline() {
  return patience(std::chrono::seconds(4));
}

/// The bytes of message `number` from one rank to another: every rank can compute the expected bytes.
Bytes message(std::uint64_t seed, int from, int to, std::size_t number, std::size_t bytes) {
  std::mt19937_64 random(seed ^
                         (number * 1000003 + static_cast<std::size_t>(from) * 64 + static_cast<std::size_t>(to)));
  Bytes values(bytes);
  for (auto& value : values) value = static_cast<std::uint8_t>(random());
  return values;
}

/// Every rank sends every rank, itself too, a few messages of random lengths, several steps without a wait.
void exchangeRandomly(NcclComm& nccl, std::uint64_t seed) {
  constexpr int kSteps = 6;
  const StreamHandle stream = makeStream();
  struct Incoming {
    DeviceArray<std::uint8_t> memory;
    Bytes expected;
  };
  std::vector<DeviceArray<std::uint8_t>> outgoing;
  std::vector<Incoming> incoming;
  std::mt19937_64 lengths(seed);
  for (std::size_t step = 0; step < kSteps; ++step) {
    std::vector<NcclSend> sends;
    std::vector<NcclReceive> receives;
    for (int from = 0; from < nccl.size(); ++from) {
      for (int to = 0; to < nccl.size(); ++to) {
        const auto count = lengths() % 3;
        for (std::size_t i = 0; i < count; ++i) {
          const std::size_t number = step * 8 + i;
          const std::size_t bytes = lengths() % (lengths() % 4 == 0 ? std::size_t{3} << 20 : std::size_t{500});
          if (from == nccl.rank()) {
            outgoing.emplace_back(message(seed, from, to, number, bytes));
            sends.push_back({to, outgoing.back().data(), bytes});
          }
          if (to == nccl.rank()) {
            incoming.push_back({DeviceArray<std::uint8_t>(bytes), message(seed, from, to, number, bytes)});
            receives.push_back({from, incoming.back().memory.data(), bytes});
          }
        }
      }
    }
    nccl.exchange(sends, receives, stream.get());
  }
  nccl.wait(stream.get());
  for (std::size_t i = 0; i < incoming.size(); ++i) {
    expect(incoming[i].memory.get() == incoming[i].expected, "message ", i, " of ", incoming[i].expected.size(),
           " bytes came wrong, seed ", seed);
  }
}

void gather(NcclComm& nccl) {
  const StreamHandle stream = makeStream();
  const auto size = static_cast<std::size_t>(nccl.size());
  const auto rank = static_cast<std::size_t>(nccl.rank());
  for (const std::size_t bytes : {std::size_t{1}, std::size_t{1000}, std::size_t{1} << 20}) {
    Bytes expected, expectedOfAll;
    for (int from = 0; from < nccl.size(); ++from) {
      const Bytes part = message(7, from, 0, bytes, bytes);
      expected.insert(expected.end(), part.begin(), part.end());
      const Bytes mine = message(8, from, nccl.rank(), bytes, bytes);
      expectedOfAll.insert(expectedOfAll.end(), mine.begin(), mine.end());
    }
    const DeviceArray<std::uint8_t> own(message(7, nccl.rank(), 0, bytes, bytes));
    const DeviceArray<std::uint8_t> apart(size * bytes);
    nccl.allGather(own.data(), apart.data(), bytes, stream.get());
    DeviceArray<std::uint8_t> inPlace(size * bytes);
    Bytes begin(size * bytes);
    std::copy_n(expected.begin() + static_cast<std::ptrdiff_t>(rank * bytes), bytes,
                begin.begin() + static_cast<std::ptrdiff_t>(rank * bytes));
    inPlace.set(begin);
    nccl.allGather(inPlace.data() + rank * bytes, inPlace.data(), bytes, stream.get());
    Bytes toAll;
    for (int to = 0; to < nccl.size(); ++to) {
      const Bytes part = message(8, nccl.rank(), to, bytes, bytes);
      toAll.insert(toAll.end(), part.begin(), part.end());
    }
    const DeviceArray<std::uint8_t> out(toAll);
    const DeviceArray<std::uint8_t> in(size * bytes);
    nccl.allToAll(out.data(), in.data(), bytes, stream.get());
    nccl.wait(stream.get());
    expect(apart.get() == expected, "an all-gather of ", bytes, " bytes");
    expect(inPlace.get() == expected, "an all-gather in place of ", bytes, " bytes");
    expect(in.get() == expectedOfAll, "an all-to-all of ", bytes, " bytes");
  }
}

struct DestroyGraph {
  void operator()(cudaGraphExec_t graph) const noexcept { cudaGraphExecDestroy(graph); }
};
using Graph = std::unique_ptr<CUgraphExec_st, DestroyGraph>;

Graph capture(cudaStream_t stream, const std::function<void()>& work) {
  expectCuda(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal), "cudaStreamBeginCapture");
  work();
  cudaGraph_t graph = nullptr;
  expectCuda(cudaStreamEndCapture(stream, &graph), "cudaStreamEndCapture");
  cudaGraphExec_t ready = nullptr;
  expectCuda(cudaGraphInstantiate(&ready, graph, 0), "cudaGraphInstantiate");
  cudaGraphDestroy(graph);
  return Graph(ready);
}

/// A graph of two exchanges and a gather, replayed with other contents each time, back to back.
void replay(NcclComm& nccl) {
  constexpr std::size_t kBytes = 100000;
  constexpr std::size_t kReplays = 20;
  const StreamHandle stream = makeStream();
  const int next = (nccl.rank() + 1) % nccl.size();
  const int previous = (nccl.rank() + nccl.size() - 1) % nccl.size();
  const DeviceArray<std::uint8_t> own(kBytes), between(kBytes), back(kBytes);
  const DeviceArray<std::uint8_t> all(kBytes * static_cast<std::size_t>(nccl.size()));
  const Graph graph = capture(stream.get(), [&] {
    const NcclStep step(nccl, stream.get());
    const NcclSend first{next, own.data(), kBytes}, second{previous, between.data(), kBytes};
    const NcclReceive there{previous, between.data(), kBytes}, here{next, back.data(), kBytes};
    nccl.exchange({&first, 1}, {&there, 1}, stream.get());
    nccl.exchange({&second, 1}, {&here, 1}, stream.get());
    nccl.allGather(back.data(), all.data(), kBytes, stream.get());
  });
  std::vector<Bytes> mine;
  std::vector<std::unique_ptr<DeviceArray<std::uint8_t>>> results;
  for (std::size_t i = 0; i < kReplays; ++i) {
    mine.push_back(message(9, nccl.rank(), 0, i, kBytes));
    results.push_back(std::make_unique<DeviceArray<std::uint8_t>>(kBytes * static_cast<std::size_t>(nccl.size())));
  }
  for (std::size_t i = 0; i < kReplays; ++i) {
    expectCuda(cudaMemcpyAsync(own.data(), mine[i].data(), kBytes, cudaMemcpyHostToDevice, stream.get()),
               "cudaMemcpyAsync");
    expectCuda(cudaGraphLaunch(graph.get(), stream.get()), "cudaGraphLaunch");
    expectCuda(cudaMemcpyAsync(results[i]->data(), all.data(), kBytes * static_cast<std::size_t>(nccl.size()),
                               cudaMemcpyDeviceToDevice, stream.get()),
               "cudaMemcpyAsync");
  }
  nccl.wait(stream.get());
  for (std::size_t i = 0; i < kReplays; ++i) {
    Bytes expected;
    for (int from = 0; from < nccl.size(); ++from) {
      const Bytes part = message(9, from, 0, i, kBytes);
      expected.insert(expected.end(), part.begin(), part.end());
    }
    expect(results[i]->get() == expected, "replay ", i, " of a graph");
  }
}

/// A group with the ranks the other way round, and one of a single rank.
void subsets(NcclRank& mine) {
  std::vector<int> reversed;
  for (int rank = mine.nccl->size() - 1; rank >= 0; --rank) reversed.push_back(rank);
  Health health;
  const auto group = mine.nccl->subset(reversed, health);
  expect(group->rank() == mine.nccl->size() - 1 - mine.rank, "rank ", group->rank(), " in the reversed group");
  exchangeRandomly(*group, 11);
  gather(*group);
  const auto alone = mine.nccl->subset({mine.rank}, health);
  expect(alone->size() == 1, "a group of one");
  gather(*alone);
}

/// The caller's blocking communicator: borrowed, returned, and borrowed again.
void borrowed(int ranks) {
  const NcclLibrary& nccl = requireNccl();
  const auto initAll = nccl.file.find<decltype(&ncclCommInitAll)>("ncclCommInitAll");
  const auto destroy = nccl.file.find<decltype(&ncclCommDestroy)>("ncclCommDestroy");
  std::vector<ncclComm_t> comms(static_cast<std::size_t>(ranks));
  nccl.check(initAll(comms.data(), ranks, nullptr), "ncclCommInitAll");
  for (int round = 0; round < 2; ++round) {
    const auto problem = onThreads(ranks, [&](int rank) {
      const ncclComm_t comm = comms[static_cast<std::size_t>(rank)];
      expectCuda(cudaSetDevice(rank), "cudaSetDevice");
      Health health;
      const auto group = NcclComm::borrow(comm, timeout(), health);
      expect(group->rank() == rank && group->size() == ranks && group->device() == rank, "what a borrowed one tells");
      exchangeRandomly(*group, 12);
      gather(*group);
      group->abort();
      bool refused = false;
      try {
        gather(*group);
      } catch (const Error& error) {
        refused = error.result() == seqparRemoteError;
      }
      expect(refused, "a borrowed communicator is not used after abort()");
    });
    expect(problem.empty(), problem);
  }
  const auto problem = onThreads(ranks, [&](int rank) {
    const ncclComm_t remote = comms[static_cast<std::size_t>(rank)];
    seqparComm_t comm = nullptr;
    expectSuccess(seqparCommInitNccl(&comm, remote, nullptr), "seqparCommInitNccl");
    int count = 0, device = -1, number = -1;
    expectSuccess(seqparCommCount(comm, &count), "seqparCommCount");
    expectSuccess(seqparCommUserRank(comm, &number), "seqparCommUserRank");
    expectSuccess(seqparCommDevice(comm, &device), "seqparCommDevice");
    expect(count == ranks && number == rank && device == rank, "rank ", number, " of ", count, " on device ", device);
    expectSuccess(seqparCommDestroy(comm), "seqparCommDestroy");
    nccl.check(destroy(remote), "ncclCommDestroy");
  });
  expect(problem.empty(), problem);
}

/// Work without a matching operation, enqueued or replayed from a graph, is ended by `end`, and refused afterwards.
void stuck(NcclRank& mine, bool inGraph, const std::function<void(NcclRank&)>& end) {
  NcclComm& nccl = *mine.nccl;
  char here = 0;
  std::vector<char> all(static_cast<std::size_t>(nccl.size()));
  if (mine.rank == 0) {
    const StreamHandle stream = makeStream();
    const DeviceArray<std::uint8_t> memory(1000);
    const NcclReceive receive{1, memory.data(), 1000};
    Graph graph;
    if (inGraph) {
      graph = capture(stream.get(), [&] { nccl.exchange({}, {&receive, 1}, stream.get()); });
      expectCuda(cudaGraphLaunch(graph.get(), stream.get()), "cudaGraphLaunch");
    } else {
      nccl.exchange({}, {&receive, 1}, stream.get());
    }
    end(mine);
    expectCuda(cudaStreamSynchronize(stream.get()), "cudaStreamSynchronize");
    bool refused = false;
    try {
      nccl.exchange({}, {&receive, 1}, stream.get());
    } catch (const Error& error) {
      refused = error.result() == seqparRemoteError;
    }
    expect(refused, "an operation after the end is a RemoteError");
  }
  mine.control.gatherValues(here, std::span(all));
}

void abortFromElsewhere(NcclRank& mine) {
  std::jthread([&mine] {
    std::this_thread::sleep_for(std::chrono::milliseconds(200));
    mine.nccl->abort();
  }).join();
}

/// A thread whose launches wait for space in the GPU's queue, behind work without a matching operation, is freed.
void abortCallInProgress(NcclRank& mine) {
  char here = 0;
  std::vector<char> all(static_cast<std::size_t>(mine.nccl->size()));
  if (mine.rank == 0) {
    const StreamHandle stream = makeStream();
    const DeviceArray<std::uint8_t> memory(1000);
    const NcclReceive receive{1, memory.data(), 1000};
    std::jthread ender([&mine] {
      std::this_thread::sleep_for(std::chrono::milliseconds(500));
      mine.nccl->abort();
    });
    bool refused = false;
    try {
      while (true) mine.nccl->exchange({}, {&receive, 1}, stream.get());
    } catch (const Error& error) {
      refused = error.result() == seqparRemoteError;
    }
    expect(refused, "an operation during abort() is a RemoteError");
    expectCuda(cudaStreamSynchronize(stream.get()), "cudaStreamSynchronize");
  }
  mine.control.gatherValues(here, std::span(all));
}

void awaitFailure(NcclRank& mine) {
  while (mine.health.ok()) std::this_thread::sleep_for(std::chrono::milliseconds(5));
  expect(mine.health.result() == seqparRemoteError, "a missed deadline is a RemoteError");
  expect(mine.health.text().find("not done after") != std::string::npos, mine.health.text());
}

int failures = 0;

void report(const char* what, const std::string& problem) {
  std::printf("%s: %s\n", what, problem.empty() ? "ok" : problem.c_str());
  std::fflush(stdout);
  if (!problem.empty()) ++failures;
}

}  // namespace

int main() {
  limitSeconds(240);
  const int gpus = requireNcclRanks();
  std::printf("%s, %d ranks\n", ncclReport().c_str(), gpus);
  const std::uint64_t seed = seqpar::test::drawSeed();
  report("exchanges, gathers, groups, graphs", onNcclRanks(gpus, timeout(), [seed](NcclRank& mine) {
           exchangeRandomly(*mine.nccl, seed);
           gather(*mine.nccl);
           replay(*mine.nccl);
           subsets(mine);
         }));
  std::string problem;
  try {
    borrowed(gpus);
  } catch (const std::exception& error) {
    problem = error.what();
  }
  report("borrowed communicators", problem);
  report("abort from another thread",
         onNcclRanks(gpus, timeout(), [](NcclRank& mine) { stuck(mine, false, abortFromElsewhere); }));
  report("abort during a call", onNcclRanks(gpus, timeout(), abortCallInProgress));
  report("deadline", onNcclRanks(gpus, deadline(), [](NcclRank& mine) { stuck(mine, false, awaitFailure); }));
  report("deadline of a graph", onNcclRanks(gpus, deadline(), [](NcclRank& mine) { stuck(mine, true, awaitFailure); }));
  report("a new communicator after all that",
         onNcclRanks(gpus, timeout(), [seed](NcclRank& mine) { exchangeRandomly(*mine.nccl, seed + 1); }));
  return failures == 0 ? 0 : 1;
}
