// Backends of exchanges, rings and meshes: the library's routes, schedules and reductions as recorded messages.
#include <algorithm>
#include <set>

#include "base/convert.h"
#include "exchange/backend.h"
#include "exchange/flows.h"
#include "library/mailbox.h"
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

const void* streamOf(const CallerStream& stream) {
  return stream.host != nullptr ? stream.host.get() : static_cast<const void*>(stream.device);
}

double totalBytes(const std::vector<Transfer>& transfers) {
  double bytes = 0;
  for (const auto& transfer : transfers) bytes += static_cast<double>(transfer.region.bytes());
  return bytes;
}

/// The library's neighbor exchange on hosts: its messages and copies.
void flowsOnHost(const void* stream, std::span<const seqpar::Flow> flows, const char* call) {
  auto& recorder = Recorder::current();
  double bytes = 0;
  for (const auto& flow : flows) {
    for (const auto& tensor : flow.out) bytes += flow.to == SEQPAR_NO_PEER ? 0 : static_cast<double>(tensor.size());
    for (const auto& tensor : flow.in) bytes += flow.from == SEQPAR_NO_PEER ? 0 : static_cast<double>(tensor.size());
  }
  recorder.setCopiedBytes(bytes);
  sim::RecordingMailbox mail;
  recorder.steps(stream, 0, Engine::Kernel, 0, call, [&] {
    recorder.step(sim::StepKind::Work, 0, recorder.machine().host.callUs);
    exchangeFlows(mail, flows);
  });
}

class SimulatedExchanges final : public ExchangeBackend {
 public:
  void shift(Communicator& comm, const char* call, const Flow& flow, const CallerStream& stream) const override {
    auto& recorder = Recorder::current();
    if (recorder.machine().onHosts() && flow.to != comm.rank()) {
      return recorder.inOrder(&comm, stream.host.get(),
                              [&] { flowsOnHost(stream.host.get(), std::span(&flow, 1), call); });
    }
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
    Recorder::current().memory(streamOf(stream), zeros, "clear");
    run(comm, call, exchange.route->sends, exchange.route->receives, stream, 0, areMapped(exchange.sends));
  }

  void reduce(Communicator& comm, const char* call, BufferedReduction reduction,
              const CallerStream& stream) const override {
    std::vector<Transfer> receives;
    for (const auto& sum : reduction.reduction->sums) {
      for (const int from : sum.from) receives.push_back({from, sum.region});
    }
    run(comm, call, reduction.reduction->sends, receives, stream, totalBytes(receives), areMapped(reduction.sends));
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
  static bool areMapped(const std::vector<const std::byte*>& buffers) {
    return std::all_of(buffers.begin(), buffers.end(), [](const auto* each) { return Recorder::isMapped(each); });
  }

  /// `added`: bytes that are summed after they have been received; from mapped buffers, while they are received.
  static void run(Communicator& comm, const char* call, const std::vector<Transfer>& sends,
                  const std::vector<Transfer>& receives, const CallerStream& stream, double added,
                  bool mapped = false) {
    auto& recorder = Recorder::current();
    if (recorder.machine().onHosts()) {
      const void* const host = stream.host.get();
      return recorder.inOrder(&comm, host, [&] {
        recorder.exchangeOnHost(host, {sends, receives}, call, mapped);
        recorder.memory(host, added * (mapped && recorder.machine().host.maps ? 1 : 2), "sum");
      });
    }
    comm.enqueue(call, stream.device, [&](DeviceGroup&) {
      recorder.exchange(stream.device, sends, receives, 0, engineOfExchanges(), call);
      if (recorder.direct() && added > 0) return recorder.compute(stream.device, 0, "sum");  // while it receives
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
                                       : static_cast<std::byte*>(recorder.allocateMapped(buffers_.mostBytes[tensor])));
      }
    }
  }
  const char* name() const override { return copies_ ? "copy engines, no SM" : "kernels or NCCL on a stream"; }
  std::byte* buffer(int set, size_t tensor) const override { return sets_[static_cast<size_t>(set)][tensor]; }
  void post(const std::vector<RingTransfer>& transfers, const CallerStream& stream) override {
    auto& recorder = Recorder::current();
    if (recorder.machine().onHosts()) return postOnHost(transfers, stream);
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
        recorder.exchange(this, sends, receives, lane_, engineOfExchanges(), "ring", true);
      });
    }
    latest_ = recorder.record(this);
  }
  void wait(const CallerStream& stream) override { Recorder::current().wait(streamOf(stream), latest_); }

 private:
  /// As the ring's thread of the library: messages, next to the caller's work.
  void postOnHost(const std::vector<RingTransfer>& transfers, const CallerStream& stream) {
    auto& recorder = Recorder::current();
    std::vector<std::vector<std::span<const std::byte>>> out(transfers.size());
    std::vector<std::vector<std::span<std::byte>>> in(transfers.size());
    std::vector<Flow> flows;
    for (size_t i = 0; i < transfers.size(); ++i) {
      for (const auto& part : transfers[i].out) {
        out[i].emplace_back(part.source == nullptr ? buffer(part.set, part.tensor) : part.source, part.bytes);
      }
      for (const auto& part : transfers[i].in) in[i].emplace_back(buffer(part.set, part.tensor), part.bytes);
      flows.push_back({transfers[i].to, out[i], transfers[i].from, in[i]});
    }
    recorder.wait(this, recorder.record(stream.host.get()));
    recorder.inOrder(comm_.get(), this, [&] {
      recorder.compute(this, recorder.machine().host.threadUs, "thread");
      flowsOnHost(this, flows, "ring");
    });
    latest_ = recorder.record(this);
  }

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
    inOrder(comm, call, stream, [&] {
      const auto elements = static_cast<double>(step.shape.elements());
      add(elements, step, streamOf(stream));
      if (!step.last()) send(shiftOf(step, step.o), step.group, streamOf(stream), call);
    });
  }
  void reduceSums(Communicator& comm, const char* call, SumStep step, const CallerStream& stream) const override {
    inOrder(comm, call, stream, [&] {
      MeshShift shift;
      for (const auto& part : step.parts) {
        add(static_cast<double>(part.count), step, streamOf(stream));
        shift.add(part.data, part.count * sizeOf(step.types.wire), part.carry,
                  part.carryCount * sizeOf(step.types.wire));
      }
      if (!step.last()) send(shift, step.group, streamOf(stream), call);
    });
  }

 private:
  template <typename Body>
  static void inOrder(Communicator& comm, const char* call, const CallerStream& stream, const Body& body) {
    auto& recorder = Recorder::current();
    if (recorder.machine().onHosts()) return recorder.inOrder(&comm, stream.host.get(), body);
    comm.enqueue(call, stream.device, [&](DeviceGroup&) { body(); });
  }
  static void add(double elements, const MergeStep& step, const void* stream) {
    const auto data = static_cast<double>(sizeOf(step.types.data)), wire = static_cast<double>(sizeOf(step.types.wire));
    const double bytes = data + static_cast<double>(sizeOf(step.result())) + (step.merges() ? wire : 0);
    if (step.merges() || step.result() != step.types.data)
      Recorder::current().memory(stream, elements * bytes, "merge");
  }
  static void send(const MeshShift& shift, const MeshGroup& group, const void* stream, const char* call) {
    const Route route = shift.route(group);
    if (Recorder::current().machine().onHosts()) return Recorder::current().exchangeOnHost(stream, route, call);
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
  if (comm.device() == nullptr) return {false, false, "the ranks' memory is the host's"};
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
