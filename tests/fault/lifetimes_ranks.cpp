#include <algorithm>
#include <chrono>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "common/ranks.h"
#include "fault/lifetimes.h"
#include "seqpar/exchange.h"
#include "seqpar/ring.h"
#include "seqpar/shrink.h"

namespace seqpar::test {
namespace {

enum class Fault { None, Function, Fail, Abort, Revoke, Count };

/// A random program, the same on all ranks.
struct Program {
  explicit Program(unsigned number) : seed(number) {
    Random random(number * 31 + 5);
    ranks = 1 + draw(random, 4);
    comms = 1 + draw(random, 3);
    streams = 1 + draw(random, 3);
    steps = 10 + draw(random, 25);
    if (draw(random, 5) < 3) fault = static_cast<Fault>(draw(random, static_cast<int>(Fault::Count)));
    faultRank = draw(random, ranks);
    faultStep = draw(random, steps);
    faultComm = draw(random, comms);
  }
  unsigned seed;
  int ranks, comms, streams, steps, faultRank, faultStep, faultComm;
  Fault fault = Fault::None;
};

/// The buffers of a collective on a stream, which must stay until it is done.
struct Pending {
  std::vector<float> sent, received, expected;
  int stream;
};

void failFunction(void* stream) {
  seqparStreamFail(static_cast<seqparStream_t>(stream), seqparSystemError, "a function failed");
}

class Rank {
 public:
  Rank(const Program& program, int rank, std::vector<seqparComm_t> comms)
      : program_(program),
        rank_(rank),
        comms_(std::move(comms)),
        rings_(comms_.size()),
        home_(comms_.size(), std::vector<float>(kRing)),
        shared_(program.seed),
        own_(program.seed * 101 + static_cast<unsigned>(rank)) {
    streams_.resize(static_cast<size_t>(program.streams));
    for (auto& stream : streams_) expectSuccess(seqparStreamCreate(&stream), "seqparStreamCreate");
    expectSuccess(seqparEventCreate(&event_), "seqparEventCreate");
  }
  Rank(const Rank&) = delete;
  Rank& operator=(const Rank&) = delete;

  void run() {
    try {
      for (int step = 0; step < program_.steps; ++step) runStep(step);
      end();
    } catch (...) {
      for (auto* comm : comms_) seqparCommFail(comm, "the test failed on this rank");
      for (auto* stream : streams_) seqparStreamDestroy(stream);  // their work uses the buffers
      throw;
    }
  }

 private:
  static constexpr size_t kRing = 64;

  void runStep(int step) {
    if (rank_ == program_.faultRank && step == program_.faultStep) fail();
    const auto comm = static_cast<size_t>(draw(shared_, program_.comms));
    const int kind = draw(shared_, 8), count = 1 + draw(shared_, draw(shared_, 5) == 0 ? 20000 : 50);
    const int number = draw(shared_, 3);
    const bool last = draw(shared_, 3) == 0;
    const int stream = draw(own_, program_.streams + 1) - 1;
    if (kind < 4) return shift(comms_[comm], 1 + number, count, step, stream);
    if (kind == 4) return gather(comms_[comm], count, step, stream);
    if (kind == 5) return join();
    if (kind == 6) return stream < 0 ? void() : synchronize(stream);
    rotate(comm, number, stream);
    if (last) destroyRing(comm);
  }

  void fail() {
    const seqparComm_t comm = comms_[static_cast<size_t>(program_.faultComm)];
    const auto later = [this](auto call, int microseconds) {
      helpers_.emplace_back([call, microseconds] {
        std::this_thread::sleep_for(std::chrono::microseconds(microseconds));
        call();
      });
    };
    const int pause = draw(own_, 300);
    if (program_.fault == Fault::Function) {
      expectSuccess(seqparStreamLaunch(streams_[0], failFunction, streams_[0]), "seqparStreamLaunch");
    } else if (program_.fault == Fault::Fail) {
      later([comm] { seqparCommFail(comm, "a rank gave up"); }, pause);
    } else if (program_.fault == Fault::Abort) {
      comms_[static_cast<size_t>(program_.faultComm)] = nullptr;  // later calls on it are refused on this rank
      later([comm] { seqparCommAbort(comm); }, pause);
    } else if (program_.fault == Fault::Revoke) {
      later([comm] { seqparCommRevoke(comm); }, pause);
    }
  }

  seqparStream_t at(int stream) const { return stream < 0 ? nullptr : streams_[static_cast<size_t>(stream)]; }

  bool succeeded(seqparResult_t result, const char* call) const {
    if (result == seqparSuccess) return true;
    expect(program_.fault != Fault::None, "rank ", rank_, ": ", call, ": ", seqparGetLastError(nullptr));
    return false;
  }

  void add(Pending pending, seqparResult_t result, const char* call) {
    if (!succeeded(result, call)) {
      failed_.push_back(std::move(pending));  // a part of it may still run
    } else if (pending.stream < 0) {
      expect(pending.received == pending.expected, "rank ", rank_, ": ", call, " succeeded with a wrong result");
    } else {
      pending_.push_back(std::move(pending));
    }
  }

  void shift(seqparComm_t comm, int distance, int count, int step, int stream) {
    const int to = (rank_ + distance) % program_.ranks;
    const int from = (rank_ + program_.ranks - distance % program_.ranks) % program_.ranks;
    const auto elements = static_cast<size_t>(count);
    Pending made{std::vector<float>(elements), std::vector<float>(elements, -1), std::vector<float>(elements), stream};
    for (int i = 0; i < count; ++i) {
      made.sent[static_cast<size_t>(i)] = static_cast<float>(rank_ * 1000 + step + i);
      made.expected[static_cast<size_t>(i)] = static_cast<float>(from * 1000 + step + i);
    }
    const size_t bytes = elements * sizeof(float);
    const auto result =
        seqparSendRecv(made.sent.data(), bytes, to, made.received.data(), bytes, from, comm, at(stream));
    add(std::move(made), result, "seqparSendRecv");
  }

  void gather(seqparComm_t comm, int count, int step, int stream) {
    const auto elements = static_cast<size_t>(count), all = elements * static_cast<size_t>(program_.ranks);
    Pending made{
        std::vector<float>(elements, static_cast<float>(rank_ + step)), std::vector<float>(all, -1), {}, stream};
    for (int from = 0; from < program_.ranks; ++from) {
      made.expected.insert(made.expected.end(), elements, static_cast<float>(from + step));
    }
    seqparShards_t shards = SEQPAR_SHARDS_INITIALIZER;
    shards.tokens = count;
    const auto result = seqparAllGather(made.sent.data(), made.received.data(), &shards, comm, at(stream));
    add(std::move(made), result, "seqparAllGather");
  }

  void join() {
    const auto any = [this] { return streams_[static_cast<size_t>(draw(own_, program_.streams))]; };
    expectSuccess(seqparEventRecord(event_, any()), "seqparEventRecord");
    expectSuccess(seqparStreamWaitEvent(any(), event_), "seqparStreamWaitEvent");
  }

  void synchronize(int stream) {
    const bool good = succeeded(seqparStreamSynchronize(at(stream)), "seqparStreamSynchronize");
    std::vector<Pending> others;
    for (auto& each : pending_) {
      if (each.stream != stream) {
        others.push_back(std::move(each));
      } else {
        expect(!good || each.received == each.expected, "rank ", rank_, ": a stream succeeded with a wrong result");
      }
    }
    pending_ = std::move(others);
  }

  /// The first `transfers` transfers of a round of a ring.
  void rotate(size_t comm, int transfers, int stream) {
    seqparRing_t& ring = rings_[comm];
    if (ring == nullptr) {
      const size_t bytes = kRing * sizeof(float);
      void* const home = home_[comm].data();
      seqparRingParams_t params = SEQPAR_RING_PARAMS_INITIALIZER;
      params.tensors = 1;
      params.bytes = &bytes;
      params.home = &home;
      if (!succeeded(seqparRingCreate(&ring, &params, comms_[comm]), "seqparRingCreate")) return;
    }
    if (!succeeded(seqparRingReset(ring), "seqparRingReset")) return;
    home_[comm].assign(kRing, static_cast<float>(rank_));
    for (int transfer = 0; transfer < std::min(transfers, program_.ranks - 1); ++transfer) {
      if (!succeeded(seqparRingPost(ring, at(stream)), "seqparRingPost")) return;
      if (!succeeded(seqparRingWait(ring, at(stream)), "seqparRingWait")) return;
    }
    if (stream >= 0 && !succeeded(seqparStreamSynchronize(at(stream)), "seqparStreamSynchronize")) {
      std::erase_if(pending_, [stream](const Pending& each) { return each.stream == stream; });
      return;
    }
    seqparRingInfo_t info = SEQPAR_RING_INFO_INITIALIZER;
    void* current = nullptr;
    if (seqparRingQuery(ring, &info) != seqparSuccess) return;
    if (seqparRingCurrent(ring, 0, &current, nullptr) != seqparSuccess) return;
    const auto* const values = static_cast<const float*>(current);
    const std::vector<float> expected(kRing, static_cast<float>(info.source));
    expect(std::vector<float>(values, values + kRing) == expected, "rank ", rank_, ": a ring has a wrong tensor");
  }

  void destroyRing(size_t comm) {
    seqparRing_t& ring = rings_[comm];
    if (ring != nullptr) expectSuccess(seqparRingDestroy(std::exchange(ring, nullptr)), "seqparRingDestroy");
  }

  /// In any order, and from several threads.
  void end() {
    if (draw(own_, 2) == 0) {
      for (int stream = 0; stream < program_.streams; ++stream) synchronize(stream);
    }
    const auto streams = [this] {
      for (auto* stream : streams_) expectSuccess(seqparStreamDestroy(stream), "seqparStreamDestroy");
    };
    const bool ringsFirst = draw(own_, 2) == 0;
    const auto comms = [&] {
      for (size_t comm = 0; comm < comms_.size(); ++comm) {
        if (ringsFirst) destroyRing(comm);
        succeeded(seqparCommDestroy(comms_[comm]), "seqparCommDestroy");
      }
    };
    const int order = draw(own_, 3);
    if (order == 0) streams();
    if (order < 2) comms();
    if (order == 1) streams();
    const auto wrong = onThreads(order == 2 ? 2 : 0, [&](int thread) { thread == 0 ? streams() : comms(); });
    expect(wrong.empty(), wrong);
    for (auto& helper : helpers_) helper.join();
    helpers_.clear();
    for (size_t comm = 0; comm < comms_.size(); ++comm) destroyRing(comm);
    expectSuccess(seqparEventDestroy(event_), "seqparEventDestroy");
  }

  const Program& program_;
  const int rank_;
  std::vector<seqparComm_t> comms_;
  std::vector<seqparRing_t> rings_;
  std::vector<std::vector<float>> home_;
  std::vector<seqparStream_t> streams_;
  seqparEvent_t event_ = nullptr;
  std::vector<Pending> pending_, failed_;
  std::vector<std::jthread> helpers_;
  Random shared_;  ///< draws the same numbers on all ranks
  Random own_;
};

}  // namespace

void shareCommunicators(unsigned seed) {
  const Program program(seed);
  const auto ranks = static_cast<size_t>(program.ranks);
  std::vector<std::vector<seqparComm_t>> ofRanks(ranks);
  for (int comm = 0; comm < program.comms; ++comm) {
    std::vector<seqparComm_t> made(ranks);
    expectSuccess(seqparCommInitAll(made.data(), program.ranks, nullptr), "seqparCommInitAll");
    for (size_t rank = 0; rank < ranks; ++rank) ofRanks[rank].push_back(made[rank]);
  }
  const auto wrong =
      onThreads(program.ranks, [&](int rank) { Rank(program, rank, ofRanks[static_cast<size_t>(rank)]).run(); });
  expect(wrong.empty(), wrong);
}

}  // namespace seqpar::test
