// Executes recorded programs of all ranks on virtual time: streams, events, SMs, messages and links.
#pragma once

#include <cstdint>
#include <deque>
#include <string>
#include <unordered_map>
#include <vector>

#include "engine/events.h"
#include "engine/network.h"
#include "engine/program.h"
#include "machine.h"

namespace seqpar::sim {

/// An executed operation, for timelines.
struct Span {
  int rank = 0, stream = 0;
  uint16_t label = 0;
  double begin = 0, end = 0;  ///< us
};

struct RankResult {
  double end = 0;                           ///< us
  double computed = 0;                      ///< us of kernels on the caller's stream, each alone on the GPU
  double localBytes = 0, networkBytes = 0;  ///< sent
  struct Mark {
    double us = 0, computed = 0, localBytes = 0, networkBytes = 0;  ///< at one of Program::marks
  };
  std::vector<Mark> marks;
};

struct Result {
  std::vector<RankResult> ranks;
  uint64_t events = 0;
};

class Player {
 public:
  /// Spans of ranks below `traced` are recorded.
  Player(const Machine& machine, std::vector<Program> programs, int traced = 0);
  /// Throws std::runtime_error that names a waiting operation if the programs wait for each other in a circle.
  Result run();
  const std::vector<Span>& spans() const { return spans_; }

 private:
  static constexpr uint32_t kNone = UINT32_MAX;
  enum Kind : uint32_t { kWake, kBegin, kJob, kStep, kOpen, kFlow, kLeave, kArrive, kBulk };

  struct Stream {
    size_t next = 0;
    bool busy = false;
    Time begin = 0;
  };
  struct Job {
    uint32_t rank = 0, stream = 0;
    double left = 0;          ///< ps on all SMs, or on one processor
    double demand = 1;        ///< processors
    uint32_t active = kNone;  ///< not an operation: work of these steps
  };
  /// A GPU, or the processors of a node.
  struct Gpu {
    std::vector<Job> jobs;
    double ctas = 0;
    Time since = 0;
    uint32_t version = 0;
  };
  struct Active {
    uint32_t rank = 0, stream = 0;
    uint32_t pending = 0;         ///< exchange: parts under way
    uint32_t step = 0, last = 0;  ///< steps: the next, and the end
    uint32_t lane = 0, messages = 0, sends = 0;
    float ctas = 0;
    Engine engine = Engine::Kernel;
    bool steps = false;
  };
  struct Parcel {
    uint32_t sender = kNone, receiver = kNone, next = kNone;
    int from = 0, to = 0;
    double bytes = 0;
    bool isSend = false, started = false, arrived = false, shared = false;
    Engine engine = Engine::Kernel;
    uint32_t bulk = kNone;  ///< not a message: a share of an exchange with many peers
  };
  /// A queue of halves of messages. The common cases need no parcel: one receiver that waits, and messages that have
  /// arrived before their receivers. With either, there are no parcels.
  struct Pair {
    uint32_t head = kNone, tail = kNone;
    uint32_t receiver = kNone, arrived = 0;
  };
  struct Path {
    double alpha = 0, delay = 0, cap = 0;  ///< us, us, GB/s; cap 0: no time for bytes
    bool local = false;
  };

  bool sameNode(int a, int b) const { return a / machine_.gpus == b / machine_.gpus; }
  Path pathOf(const Parcel& parcel) const;
  uint32_t streamId(uint32_t rank, uint32_t stream) const { return firstStream_[rank] + stream; }

  void advance(uint32_t rank, uint32_t stream);
  void finishOp(uint32_t rank, uint32_t stream);
  uint32_t gpuOf(uint32_t rank) const;
  void startJob(const Job& job);
  void useCtas(uint32_t rank, double ctas);
  void progress(Gpu& gpu);
  void schedule(uint32_t gpu);
  double rateOf(const Gpu& gpu, const Job& job) const;
  void jobsDone(uint32_t gpu, uint32_t version);

  uint32_t newActive(const Active& active);
  void startExchange(uint32_t rank, uint32_t stream, const ExchangeOp& op);
  void startBulk(uint32_t active, const Program& program, const ExchangeOp& op);
  void runSteps(uint32_t active);
  void part(uint32_t active);
  void endActive(uint32_t active);

  uint32_t newParcel();
  Pair& pairOf(int from, int to, uint32_t lane);
  void append(Pair& pair, uint32_t parcel);
  void toParcels(Pair& pair);
  uint32_t match(Pair& pair, bool send);
  void deliver(Pair& pair);
  void post(uint32_t active, int from, int to, uint32_t lane, double bytes, bool send, bool eager, bool shared = false);
  void launch(uint32_t parcel);
  void open(uint32_t parcel);
  void leave(uint32_t parcel);
  void arrive(uint32_t parcel);
  void bulkSent(uint32_t parcel);
  void handle(const Event& event);
  [[noreturn]] void explainDeadlock() const;

  const Machine& machine_;
  std::vector<Program> programs_;
  int traced_;
  EventQueue queue_;
  Network network_;
  std::vector<uint32_t> firstStream_;
  std::vector<Stream> streams_;
  std::vector<uint32_t> rankOfStream_;
  std::vector<Gpu> gpus_;
  std::vector<std::vector<Time>> eventTimes_;
  std::unordered_map<uint64_t, std::vector<uint32_t>> waiters_;
  std::vector<Active> actives_;
  std::vector<uint32_t> freeActives_;
  std::vector<Parcel> parcels_;
  std::vector<uint32_t> freeParcels_;
  std::vector<std::vector<Pair>> pairs_;  ///< of lane 0, [from][to]; a rank that sends nothing has none
  std::unordered_map<uint64_t, Pair> pairsOfLanes_;
  std::vector<int> localOut_, localIn_, netOut_, netIn_, leafUp_, leafDown_;
  std::vector<uint32_t> ready_;  ///< streams to advance
  std::vector<Span> spans_;
  Result result_;
};

}  // namespace seqpar::sim
