// Control plane, topology, device group and pointers of a simulated rank.
#include "library/communicator.h"

#include <algorithm>

#include "api/handles.h"
#include "bootstrap/control.h"
#include "bootstrap/lineage.h"
#include "device/arena.h"
#include "device/device.h"
#include "device/group.h"
#include "library/recorder.h"
#include "plan/link.h"
#include "plan/topology.h"

namespace seqpar {
namespace {

using sim::Recorder;

/// Gathers as if all ranks had passed this rank's values: a simulated machine's ranks are equal, and the library
/// gathers nothing else on GPUs.
class EqualRanks final : public Control {
 public:
  int rank() const override { return Recorder::current().rank(); }
  int size() const override { return Recorder::current().ranks(); }
  void gather(std::span<const std::byte> mine, std::span<std::byte> all) override {
    for (size_t at = 0; at + mine.size() <= all.size() && !mine.empty(); at += mine.size()) {
      std::copy(mine.begin(), mine.end(), all.begin() + static_cast<std::ptrdiff_t>(at));
    }
  }
  std::optional<Token> secret() const override { return Token{}; }
  void announce(const std::string&) noexcept override {}
  void leave() override {}
  void report(const CallChain&) noexcept override {}
  void countCall() noexcept override {}
  void nextCall() noexcept override {}
  void communicate() noexcept override {}
  void refuseCall(const std::string& why) override { fail(seqparInternalError, why); }
  std::string behind() override { return ""; }
};

/// Records the order of a communicator's operations as events.
class SimulatedGroup final : public DeviceGroup {
 public:
  explicit SimulatedGroup(int ctas) {
    auto& recorder = Recorder::current();
    rank_ = recorder.rank();
    size_ = recorder.ranks();
    if (recorder.direct()) {
      for (int rank = 0; rank < size_; ++rank) peers_.push_back(rank);
    } else {
      peers_.push_back(rank_);
    }
    view_.self = recorder.direct() ? rank_ : 0;
    view_.size = static_cast<int>(peers_.size());
    view_.channels = view_.byteFifoChannels = ctas;
  }
  int rank() const override { return rank_; }
  int size() const override { return size_; }
  int device() const override { return rank_ % Recorder::current().machine().gpus; }
  int smCount() const override { return static_cast<int>(Recorder::current().machine().gpu.sms); }
  GpuKind slowest() const override { return {Recorder::current().machine().gpu.arch, smCount()}; }
  int sharing() const override { return 1; }
  bool shared() const override { return false; }
  int sharedBlocks() const override { return smCount(); }
  const std::vector<int>& peerRanks() const override { return peers_; }
  const PeerView& peers() const override { return view_; }
  std::unique_ptr<PeerWindow> makeWindow(std::size_t) override { refuse("a window of peers' memory"); }
  NcclComm* nccl() const override { return nullptr; }
  DeviceArena& arena() override { refuse("scratch memory of a device"); }
  const std::string& transport() const override { return transport_; }
  const std::string& reason() const override { return reason_; }
  void checkCapture(const char*, DeviceStream) const override {}
  bool enqueue(const char*, DeviceStream stream, const std::function<void()>& launch) override {
    auto& recorder = Recorder::current();
    if (ran_) recorder.wait(stream, last_);
    launch();
    last_ = recorder.record(stream);
    ran_ = true;
    return false;
  }
  bool inCapture(DeviceStream) const override { return false; }
  void drain() override {}
  void notice() override {}
  void release() noexcept override {}
  DeviceAllocation allocate(std::size_t bytes) override {
    return {Recorder::current().allocate(bytes), [] {}};
  }

 private:
  [[noreturn]] static void refuse(const char* what) { fail(seqparInternalError, "a simulated rank has no ", what); }

  int rank_ = 0, size_ = 1;
  std::vector<int> peers_;
  PeerView view_;
  std::string transport_ = "simulated", reason_;
  uint32_t last_ = 0;
  bool ran_ = false;
};

}  // namespace

std::unique_ptr<Control> Control::connect(Allgather&, const ControlOptions&, Health&) {
  return std::make_unique<EqualRanks>();
}

// Simulated ranks do not fail: no sockets and no votes.
Lineage::Lineage(int rank, int size, const ControlOptions& options) : rank_(rank), size_(size), options_(options) {}
Lineage::~Lineage() = default;
LineageCard Lineage::card() const {
  return {};
}
void Lineage::connect(const std::vector<LineageCard>&, const Token&) {}
void Lineage::serve() noexcept {}
Successor Lineage::agree(uint32_t, std::chrono::milliseconds) {
  fail(seqparInvalidUsage, "a simulated communicator has no successor");
}
void Lineage::enter(uint32_t, std::function<void(const std::string&)>) {}
void Lineage::leave(uint32_t) {}

std::unique_ptr<DeviceGroup> makeDeviceGroup(Allgather&, const DeviceOptions& options, Health&) {
  return std::make_unique<SimulatedGroup>(options.ctas);
}

Topology discoverTopology(Allgather& control, const std::string&) {
  const auto& recorder = Recorder::current();
  Topology out;
  for (int rank = 0; rank < control.size(); ++rank) {
    out.hostIds.push_back("node" + std::to_string(recorder.nodeOf(rank)));
    out.nodes.push_back(recorder.nodeOf(rank));
    out.processes.push_back(rank);
  }
  out.nodeCount = out.nodes.back() + 1;
  out.models.assign(static_cast<size_t>(out.nodeCount), "simulated");
  const auto& machine = recorder.machine();
  if (machine.onHosts()) {
    const double ranks = std::min(machine.gpus, control.size());
    out.contention = std::max(1.0, ranks / machine.host.processors);
    out.coresPerRank = machine.host.processors / ranks;
  }
  out.threads.assign(out.nodes.size(), std::max(1, static_cast<int>(out.coresPerRank)));
  return out;
}

bool isDevicePointer(const void* pointer, std::int64_t) noexcept {
  return pointer != nullptr && !Recorder::current().machine().onHosts();
}

bool isKnownToDriver(const void* pointer) noexcept {
  return isDevicePointer(pointer, 0);
}

LinkModel planLinks(Mailbox&, Allgather&, const Topology& topology, const std::string&) {
  const auto& machine = Recorder::current().machine();
  const bool shared = topology.contention > 1;
  LinkModel model;
  model.contention = topology.contention;
  model.node = {(machine.host.alphaUs + (shared ? machine.host.switchUs : 0)) * 1e-6,
                topology.contention * 1e-9 / machine.host.linkGbs, topology.contention * machine.host.messageUs * 1e-6};
  model.process = model.network = model.node;
  if (topology.nodeCount > 1) {
    model.network = {machine.net.alphaUs * 1e-6, 1e-9 / machine.net.most(), machine.net.overheadUs * 1e-6};
  }
  return model;
}

namespace sim {

seqparComm_t makeCommunicator() {
  EqualRanks ranks;
  CommConfig config;
  const auto& machine = Recorder::current().machine();
  if (!machine.onHosts()) config.device = ranks.rank() % machine.gpus;
  config.hostId = "simulated";
  return comms().add(std::make_shared<CommEntry>(std::make_shared<Communicator>(ranks, config)));
}

}  // namespace sim
}  // namespace seqpar
