// Backends of exchanges, rings and meshes: the library's routes, schedules and reductions as recorded messages.
#include <algorithm>
#include <set>

#include "base/convert.h"
#include "exchange/backend.h"
#include "library/recorder.h"
#include "mesh/backend.h"
#include "ring/backend.h"
#include "ring/copy_rule.h"

namespace seqpar {
namespace {

using sim::Engine;
using sim::Recorder;

Engine engineOfExchanges() {
  return Recorder::current().direct() ? Engine::Kernel : Engine::Nccl;
}

StridedRegion whole(size_t bytes) {
  return {.run = bytes};
}

double totalBytes(const std::vector<Transfer>& transfers) {
  double bytes = 0;
  for (const auto& transfer : transfers) bytes += static_cast<double>(transfer.region.bytes());
  return bytes;
}

class SimulatedExchanges final : public ExchangeBackend {
 public:
  void shift(Communicator& comm, const char* call, const Flow& flow, const CallerStream& stream) const override {
    Route route;
    for (const auto& tensor : flow.out) {
      if (flow.to != SEQPAR_NO_PEER) route.sends.push_back({flow.to, whole(tensor.size())});
    }
    for (const auto& tensor : flow.in) {
      if (flow.from != SEQPAR_NO_PEER) route.receives.push_back({flow.from, whole(tensor.size())});
    }
    run(comm, call, route.sends, route.receives, stream, 0);
  }

  void exchange(Communicator& comm, const char* call, Exchange exchange, const CallerStream& stream) const override {
    double zeros = 0;
    for (const auto& region : exchange.zeros) zeros += static_cast<double>(region.bytes());
    Recorder::current().memory(stream.device, zeros, "clear");
    run(comm, call, exchange.route->sends, exchange.route->receives, stream, 0);
  }

  void reduce(Communicator& comm, const char* call, BufferedReduction reduction,
              const CallerStream& stream) const override {
    std::vector<Transfer> receives;
    for (const auto& sum : reduction.reduction->sums) {
      for (const int from : sum.from) receives.push_back({from, sum.region});
    }
    run(comm, call, reduction.reduction->sends, receives, stream, totalBytes(receives));
  }

  void reduceLse(Communicator& comm, const char* call, LseReduction given, const CallerStream& stream) const override {
    const auto& shards = given.shards.out;
    std::vector<Transfer> sends, receives;
    const auto bytes = [&](size_t member) {
      const size_t rows = shards.outer * shards.tokens[member];
      return rows * (shards.inner + given.shards.heads * sizeof(float));
    };
    for (size_t member = 0; member < shards.members(); ++member) {
      sends.push_back({shards.ranks[member], whole(bytes(member))});
      receives.push_back({shards.ranks[member], whole(bytes(given.member))});
    }
    run(comm, call, sends, receives, stream, totalBytes(receives));
  }

  void mergeLse(Communicator&, const char* call, const LseMerge&, const CallerStream&) const override {
    fail(seqparInvalidUsage, call, ": merges over a sharded KV cache are not simulated");
  }

 private:
  /// `added`: bytes that are summed after they have been received.
  static void run(Communicator& comm, const char* call, const std::vector<Transfer>& sends,
                  const std::vector<Transfer>& receives, const CallerStream& stream, double added) {
    comm.enqueue(call, stream.device, [&](DeviceGroup&) {
      auto& recorder = Recorder::current();
      recorder.exchange(stream.device, sends, receives, 0, engineOfExchanges(), call);
      recorder.memory(stream.device, added * 2, "sum");
    });
  }
};

class SimulatedRing final : public RingBackend {
 public:
  SimulatedRing(std::shared_ptr<Communicator> comm, RingBuffers buffers, bool copies)
      : comm_(std::move(comm)), buffers_(std::move(buffers)), copies_(copies) {
    auto& recorder = Recorder::current();
    lane_ = copies_ ? recorder.laneOf("ring") : 0;
    sets_.resize(static_cast<size_t>(buffers_.sets));
    for (size_t set = 0; set < sets_.size(); ++set) {
      for (size_t tensor = 0; tensor < buffers_.mostBytes.size(); ++tensor) {
        const bool home = set == 0 && !buffers_.home.empty();
        const bool scratch = set > 0 && !buffers_.scratch.empty();
        sets_[set].push_back(home      ? buffers_.home[tensor]
                             : scratch ? buffers_.scratch[set - 1][tensor]
                                       : static_cast<std::byte*>(recorder.allocate(buffers_.mostBytes[tensor])));
      }
    }
  }
  const char* name() const override { return copies_ ? "copy engines, no SM" : "kernels or NCCL on a stream"; }
  std::byte* buffer(int set, size_t tensor) const override { return sets_[static_cast<size_t>(set)][tensor]; }
  void post(const std::vector<RingTransfer>& transfers, const CallerStream& stream) override {
    auto& recorder = Recorder::current();
    std::vector<Transfer> sends, receives;
    for (const auto& transfer : transfers) {
      for (const auto& part : transfer.out) sends.push_back({transfer.to, whole(part.bytes)});
      for (const auto& part : transfer.in) receives.push_back({transfer.from, whole(part.bytes)});
    }
    recorder.wait(this, recorder.record(stream.device));
    if (copies_) {
      recorder.exchange(this, sends, receives, lane_, Engine::Copy, "ring");
    } else {
      comm_->enqueue("seqparRingPost", this, [&](DeviceGroup&) {
        recorder.exchange(this, sends, receives, lane_, engineOfExchanges(), "ring");
      });
    }
    latest_ = recorder.record(this);
  }
  void wait(const CallerStream& stream) override { Recorder::current().wait(stream.device, latest_); }

 private:
  std::shared_ptr<Communicator> comm_;
  RingBuffers buffers_;
  bool copies_;
  uint32_t lane_ = 0, latest_ = 0;
  std::vector<std::vector<std::byte*>> sets_;
};

/// The routes of a mesh's steps, and the memory traffic of their sums.
class SimulatedMeshes final : public MeshBackend {
 public:
  void reduceOutputs(Communicator& comm, const char* call, OutputStep step, const CallerStream& stream) const override {
    comm.enqueue(call, stream.device, [&](DeviceGroup&) {
      const auto elements = static_cast<double>(step.shape.elements());
      add(elements, step, stream.device);
      if (!step.last()) send(shiftOf(step, step.o), step.group, stream.device, call);
    });
  }
  void reduceSums(Communicator& comm, const char* call, SumStep step, const CallerStream& stream) const override {
    comm.enqueue(call, stream.device, [&](DeviceGroup&) {
      MeshShift shift;
      for (const auto& part : step.parts) {
        add(static_cast<double>(part.count), step, stream.device);
        shift.add(part.data, part.count * sizeOf(step.types.wire), part.carry,
                  part.carryCount * sizeOf(step.types.wire));
      }
      if (!step.last()) send(shift, step.group, stream.device, call);
    });
  }

 private:
  static void add(double elements, const MergeStep& step, const void* stream) {
    const auto data = static_cast<double>(sizeOf(step.types.data)), wire = static_cast<double>(sizeOf(step.types.wire));
    const double bytes = data + static_cast<double>(sizeOf(step.result())) + (step.merges() ? wire : 0);
    if (step.merges() || step.result() != step.types.data)
      Recorder::current().memory(stream, elements * bytes, "merge");
  }
  static void send(const MeshShift& shift, const MeshGroup& group, const void* stream, const char* call) {
    const Route route = shift.route(group);
    Recorder::current().exchange(stream, route.sends, route.receives, 0, engineOfExchanges(), call);
  }
};

}  // namespace

const ExchangeBackend& exchangesOf(const Communicator&) {
  static const SimulatedExchanges backend;
  return backend;
}

const MeshBackend& meshBackendOf(const Communicator&) {
  static const SimulatedMeshes backend;
  return backend;
}

RingChoice chooseRingBackend(Communicator& comm, const RingBuffers& buffers) {
  if (comm.size() == 1) return {false, false, "one rank"};
  if (!comm.device()->direct()) return {false, false, "not all ranks reach each other's memory"};
  if (!buffers.everybody) return {false, false, "not all ranks of the communicator are in the ring"};
  if (!copyEnginesPay(buffers.mostBytes)) return {false, false, "a step has few bytes"};
  return {true, !buffers.home.empty(), "a step has many bytes"};
}

std::unique_ptr<RingBackend> makeRingBackend(std::shared_ptr<Communicator> comm, const RingBuffers& buffers,
                                             const RingChoice& choice) {
  return std::make_unique<SimulatedRing>(std::move(comm), buffers, choice.copyEngines);
}

}  // namespace seqpar
