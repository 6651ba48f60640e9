// Records the work that the library enqueues for one rank. The library's host code runs unmodified; the files of this
// folder replace, at link time, the functions that create its backends, streams and memory.
#pragma once

#include <cstddef>
#include <map>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "engine/program.h"
#include "exchange/route.h"
#include "machine.h"

namespace seqpar::sim {

/// Contents of messages between ranks of hosts that announce tensors. A first recording of all ranks collects them; a
/// second one receives them. They depend only on their senders, so both recordings send the same messages, apart from
/// empty ones.
struct Announcements {
  using Messages = std::map<uint32_t, std::vector<std::byte>>;  ///< by number, empty messages not counted
  std::map<std::pair<int, int>, Messages> sent;                 ///< by sender and receiver
  bool complete = false;
};

class Recorder {
 public:
  Recorder(const Machine& machine, int rank, int ranks, Announcements* announcements = nullptr);
  Recorder(const Recorder&) = delete;
  Recorder& operator=(const Recorder&) = delete;
  ~Recorder();

  /// The recorder of the rank that runs now.
  static Recorder& current();

  const Machine& machine() const { return machine_; }
  int rank() const { return rank_; }
  int ranks() const { return ranks_; }
  int nodeOf(int rank) const { return rank / machine_.gpus; }
  bool oneNode() const { return ranks_ <= machine_.gpus; }
  /// Kernels load and store the memory of all ranks.
  bool direct() const { return oneNode() && machine_.local.direct; }

  /// `stream` is any address that identifies a stream; null: the caller's.
  void compute(const void* stream, double us, const char* label);
  /// A kernel that reads and writes this many bytes of the GPU's memory.
  void memory(const void* stream, double bytes, const char* label);
  uint32_t record(const void* stream);
  void wait(const void* stream, uint32_t event);
  /// An event at this point with a reported time.
  void mark(const void* stream);

  void exchange(const void* stream, const std::vector<Transfer>& sends, const std::vector<Transfer>& receives,
                uint32_t lane, Engine engine, const char* label, bool ofRing = false);
  /// An exchange by messages of the rank's processor, on hosts: the library's own messages and copies in their order.
  /// `mapped`: the sent buffers are those of allocateMapped().
  void exchangeOnHost(const void* stream, const Route& route, const char* label, bool mapped = false);
  /// Records operations of a communicator in their order, whatever their streams.
  template <typename Body>
  void inOrder(const void* communicator, const void* stream, const Body& body) {
    const auto last = last_.find(communicator);
    if (last != last_.end()) wait(stream, last->second);
    body();
    last_[communicator] = record(stream);
  }
  /// GB/s of copies between messages and tensors in the current operation on a host.
  double copyGbs() const { return copyGbs_; }
  /// GB/s of reading tensors in place there.
  double readGbs() const { return readGbs_; }
  /// `bytes`: of all tensors that the operation reads and writes.
  void setCopiedBytes(double bytes);

  /// One operation that runs the steps that `body` adds with step().
  template <typename Body>
  void steps(const void* stream, uint32_t lane, Engine engine, double ctas, const char* label, const Body& body) {
    const auto first = static_cast<uint32_t>(program_.steps.size());
    body();
    endSteps(stream, first, lane, engine, ctas, label);
  }
  void step(StepKind kind, int peer, double amount);

  /// Counts a message to a rank, and keeps its contents if it has some.
  void sent(int to, std::span<const std::byte> contents);
  /// Counts a message from a rank, and writes its contents, or zeros, to the beginning of its memory.
  void received(int from, std::span<std::byte> memory);

  /// A number of a lane that is equal on all ranks that pass equal texts equally often.
  uint32_t laneOf(const std::string& group);

  /// Addresses that nothing may read or write.
  void* allocate(size_t bytes);
  /// The same in buffers that all ranks of a node map, such as those of seqparMemAlloc().
  void* allocateMapped(size_t bytes);
  static bool isTensor(const void* address);
  static bool isMapped(const void* address);

  Program take() { return std::move(program_); }
  static const std::vector<std::string>& labels();

 private:
  void endSteps(const void* stream, uint32_t first, uint32_t lane, Engine engine, double ctas, const char* label);
  void add(const void* stream, OpKind kind, uint32_t index, double us, const char* label);
  uint32_t streamOf(const void* stream);

  const Machine& machine_;
  int rank_, ranks_;
  Program program_;
  std::map<const void*, uint32_t> streams_;
  std::map<std::string, uint32_t> groups_;
  Announcements* announcements_;
  std::map<int, uint32_t> sent_, received_;  ///< messages by peer
  std::map<const void*, uint32_t> last_;     ///< of each communicator: the event after its latest operation
  double hostUs_ = 0, copyGbs_ = 1, readGbs_ = 1;
  size_t used_ = 0, usedMapped_ = 0;
};

/// Identifies the caller's stream of every rank.
void* callerStreamOfSimulation();

}  // namespace seqpar::sim
