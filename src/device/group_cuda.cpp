#include <algorithm>
#include <cstring>
#include <mutex>
#include <numeric>

#include "device/arena.h"
#include "device/cuda.h"
#include "device/device.h"
#include "device/group.h"
#include "device/place.h"
#include "device/setup_stream.h"
#include "device/stream_order.h"
#include "device/watchdog.h"
#include "device/window_pool.h"
#include "kernels/byte_fifo_layout.h"
#include "kernels/fifo_layout.h"
#include "seqpar/seqpar.h"
#ifdef SEQPAR_NCCL
#include "device/nccl_comm.h"
#include "device/nccl_window.h"
#endif

namespace seqpar {
namespace {

/// Offsets of the words of host memory that kernels and the host share, each in a separate cache line.
constexpr std::size_t kAbortWord = 0;
constexpr std::size_t kTimedOutWord = 64;
constexpr std::size_t kWordBytes = 128;

void requireDevice(int device) {
  int count = 0;
  const cudaError_t result = cudaGetDeviceCount(&count);
  (void)cudaGetLastError();
  if (result != cudaSuccess || device >= count) {
    fail(seqparInvalidUsage, "device ", device, " was asked for, but there is: ", deviceReport());
  }
}

/// The first rank's non-empty reason, among ranks where `counts` is true; "" if there is none. Collective.
template <typename Counts>
std::string firstReason(Allgather& control, const std::string& mine, Counts counts) {
  struct Text {
    char text[256];
  };
  Text sent{};
  std::memcpy(sent.text, mine.data(), std::min(mine.size(), sizeof(sent.text) - 1));
  std::vector<Text> all(static_cast<std::size_t>(control.size()));
  control.gatherValues(sent, std::span(all));
  for (std::size_t rank = 0; rank < all.size(); ++rank) {
    if (all[rank].text[0] != '\0' && counts(static_cast<int>(rank))) return concat("rank ", rank, ": ", all[rank].text);
  }
  return "";
}

class GroupCuda : public DeviceGroup {
 public:
  GroupCuda(Allgather& control, const DeviceOptions& options, Health& health)
      : control_(control), options_(options), health_(health) {
    requireDevice(options.device);
    const CurrentDevice current(options.device);
    checkCuda(cudaDeviceGetAttribute(&smCount_, cudaDevAttrMultiProcessorCount, options.device),
              "cudaDeviceGetAttribute");
    setup_ = setupStream();
    words_ = allocateMapped(kWordBytes, "flags of a communicator");
    std::memset(words_.get(), 0, kWordBytes);
    pool_ = std::make_shared<WindowPool>();

    countSharing();
    connectPeers();
    connectNccl();
    describeTransport();
    watchdog_ = std::make_unique<Watchdog>(
        health_, [this] { checkGroup(); }, [this] { giveUp(); });
  }

  ~GroupCuda() override {
    watchdog_.reset();
    pool_->unmapAll();
  }

  int rank() const override { return control_.rank(); }
  int size() const override { return control_.size(); }
  int device() const override { return options_.device; }
  int smCount() const override { return smCount_; }
  GpuKind slowest() const override { return slowest_; }
  int sharing() const override { return sharing_; }
  bool shared() const override { return shared_; }
  int sharedBlocks() const override { return sharedBlocks_; }
  const std::vector<int>& peerRanks() const override { return peerRanks_; }
  const PeerView& peers() const override { return view_; }
  const std::string& transport() const override { return transport_; }
  const std::string& reason() const override { return reason_; }

  DeviceArena& arena() override { return arena_; }

  NcclComm* nccl() const override {
#ifdef SEQPAR_NCCL
    return nccl_.get();
#else
    return nullptr;
#endif
  }

  std::unique_ptr<PeerWindow> makeWindow(std::size_t bytes) override {
    const CurrentDevice current(options_.device);
    try {
      std::string problem;
      auto window = lend(bytes, problem);
      const std::string first = firstReason(control_, problem, [](int) { return true; });
      if (!first.empty()) fail(seqparSystemError, "a window of ", bytes, " bytes: ", first);
      return window;
    } catch (const Error& error) {
      health_.fail(seqparRemoteError, concat("rank ", rank(), " failed in a collective step: ", error.what()));
      throw;
    }
  }

  bool inCapture(DeviceStream stream) const override {
    const CurrentDevice current(options_.device);
    return capturing(static_cast<cudaStream_t>(stream));
  }

  void checkCapture(const char* name, DeviceStream stream) const override {
    if (sharers_.empty() || !inCapture(stream)) return;
    fail(seqparInvalidUsage, name, ": the stream is being captured, and ", sharers_,
         "; expected a GPU for each rank, or no capture");
  }

  bool enqueue(const char*, DeviceStream given, const std::function<void()>& launch) override {
    const auto stream = static_cast<cudaStream_t>(given);
    const CurrentDevice current(options_.device);
    const std::lock_guard lock(mutex_);
    // The thread that launches a captured graph orders it against other work; work inside the graph is ordered here.
    const bool captured = order_.begin(stream);
    arena_.reset();
    launch();
    order_.end();
    return captured;
  }

  void drain() override {
    const CurrentDevice current(options_.device);
    const std::lock_guard lock(mutex_);
    const RelaxedCapture relaxed;
    checkCuda(order_.synchronize(), "cudaEventSynchronize");
  }

  void notice() override {
    const std::uint32_t waited = *word(kTimedOutWord);
    if (waited == 0 || !health_.ok()) return;
    const auto peer = std::min<std::size_t>(waited - 1, peerRanks_.size() - 1);
    const std::string behind = options_.behind ? options_.behind() : "";
    health_.fail(seqparRemoteError, concat("rank ", rank(), ": the GPU waited ", options_.timeout.count(),
                                           " ms for rank ", peerRanks_[peer], behind.empty() ? "" : "; ", behind));
  }

  void release() noexcept override {
    pool_->unmapAll();
  }

  DeviceAllocation allocate(std::size_t bytes) override {
    const CurrentDevice current(options_.device);
    void* memory = nullptr;
    checkAllocation(cudaMalloc(&memory, bytes), "cudaMalloc", bytes, "the caller");
    return {memory, [memory] { FreeDevice()(static_cast<std::byte*>(memory)); }};
  }

 private:
  void countSharing() {
    Place mine;
    mine.device = options_.device;
    cudaDeviceProp properties{};
    checkCuda(cudaGetDeviceProperties(&properties, options_.device), "cudaGetDeviceProperties");
    mine.blocks = properties.maxBlocksPerMultiProcessor * smCount_;
    mine.multiprocessors = smCount_;
    static_assert(sizeof(properties.uuid.bytes) == sizeof(mine.uuid));
    std::memcpy(mine.uuid.data(), properties.uuid.bytes, sizeof(mine.uuid));
    mine.arch = 10 * properties.major + properties.minor;
    std::vector<Place> all(static_cast<std::size_t>(size()));
    control_.gatherValues(mine, std::span(all));
    slowest_ = slowestOf(all);
    const auto at = [&](const Place& place) {
      return std::count_if(all.begin(), all.end(), [&](const Place& other) { return shareSms(place, other); });
    };
    sharing_ = static_cast<int>(at(mine));
    sharedBlocks_ = mine.blocks;
    for (const Place& place : all) {
      const auto sharing = static_cast<int>(at(place));
      shared_ = shared_ || sharing > 1;
      sharedBlocks_ = std::min(sharedBlocks_, place.blocks / sharing);
      // CTAs of scans wait for those of other ranks, so all of them must be resident; those of MATRIX fill an SM.
      if (sharing > 1) options_.ctas = std::min(options_.ctas, std::max(1, place.multiprocessors / sharing));
    }
    if (sharing_ > 1) separateStreams();
    sharers_ = sharersOf(all);
  }

  /// Disables the allocator's reuse of memory across streams before it is free: such reuse inserts a wait of one stream
  /// for another, which may belong to a rank that waits for this one.
  void separateStreams() const {
    cudaMemPool_t pool = nullptr;
    checkCuda(cudaDeviceGetDefaultMemPool(&pool, options_.device), "cudaDeviceGetDefaultMemPool");
    int no = 0;
    checkCuda(cudaMemPoolSetAttribute(pool, cudaMemPoolReuseAllowInternalDependencies, &no), "cudaMemPoolSetAttribute");
  }

  std::unique_ptr<PeerWindow> lend(std::size_t bytes, std::string& problem) {
#ifdef SEQPAR_NCCL
    if (throughNccl_) return makeNcclWindow(*nccl_, bytes, problem);
#endif
    return pool_->lend(control_, peerRanks_, bytes, setup_, problem);
  }

  volatile std::uint32_t* word(std::size_t offset) const {
    return reinterpret_cast<volatile std::uint32_t*>(words_.get() + offset);
  }

  /// The ranks of this node; only this rank, with `reason_` set, if peers are disabled or impossible.
  std::vector<int> requestedPeers() {
    std::vector<int> found;
    for (int other = 0; other < size(); ++other) {
      if (sameNode(other)) found.push_back(other);
    }
    if (options_.transport == seqparTransportNetwork) {
      reason_ = "the transport is network";
    } else if (found.size() > static_cast<std::size_t>(kMostPeers)) {
      reason_ = concat(found.size(), " ranks are on one node, and at most ", kMostPeers, " reach each other directly");
    } else {
      return found;
    }
    return {rank()};
  }

  bool sameNode(int other) const {
    return options_.nodes[static_cast<std::size_t>(other)] == options_.nodes[static_cast<std::size_t>(rank())];
  }

  void connectPeers() {
    const auto peers = requestedPeers();
    std::string problem;
    openWindow(peers, pool_->lend(control_, peers, windowBytes(peers.size()), setup_, problem));
    const auto ofMyNode = firstReason(control_, problem, [this](int other) { return sameNode(other); });
    const auto ofAny = firstReason(control_, problem, [](int) { return true; });
    if (ofAny.empty()) return;
    // All ranks retry together: nodes that mapped successfully keep their peers, ranks of other nodes use no peers.
    const auto again = ofMyNode.empty() ? peers : std::vector<int>{rank()};
    if (!ofMyNode.empty()) reason_ = ofMyNode;
    problem.clear();
    openWindow(again, pool_->lend(control_, again, windowBytes(again.size()), setup_, problem));
    const auto still = firstReason(control_, problem, [](int) { return true; });
    if (!still.empty()) fail(seqparSystemError, "GPU memory could not be mapped: ", still);
  }

  /// More channels do not speed up exchanges, and their memory would be several times the FIFOs'.
  int byteFifoChannels() const {
    return std::min(options_.ctas, 64);
  }

  /// Layout of the window of a kernel's view: the FIFOs, then the byte FIFOs.
  std::size_t byteFifosOffset(std::size_t peers) const {
    constexpr std::size_t kAlignment = 4096;
    const auto fifos = FifoLayout::windowBytes(static_cast<int>(peers), options_.ctas);
    return (fifos + kAlignment - 1) / kAlignment * kAlignment;
  }
  std::size_t windowBytes(std::size_t peers) const {
    return byteFifosOffset(peers) + ByteFifoLayout::windowBytes(static_cast<int>(peers), byteFifoChannels());
  }

  /// Prepares a zero-filled window (null: no window) for kernels. A barrier among the ranks must follow before use.
  void openWindow(const std::vector<int>& peers, std::unique_ptr<PeerWindow> window) {
    if (!window) return;
    const int count = static_cast<int>(peers.size());
    view_ = PeerView{};
    view_.self = static_cast<int>(std::find(peers.begin(), peers.end(), rank()) - peers.begin());
    view_.size = count;
    view_.channels = options_.ctas;
    view_.byteFifoChannels = byteFifoChannels();
    for (int peer = 0; peer < count; ++peer) {
      view_.windows[peer] = window->at(peer);
      view_.byteFifos[peer] = window->at(peer) + byteFifosOffset(peers.size());
    }
    view_.waits.abort = word(kAbortWord);
    view_.waits.timedOut = word(kTimedOutWord);
    view_.waits.timeoutNs = static_cast<std::uint64_t>(options_.timeout.count()) * 1000000;
    const auto fifoState = FifoLayout::stateBytes(count, options_.ctas);
    const auto stateBytes = fifoState + ByteFifoState::bytes(count, byteFifoChannels());
    state_ = allocateDevice(stateBytes, "the state of fifos between GPUs");
    view_.state = state_.get();
    view_.byteFifoState = state_.get() + fifoState;

    const auto rings = FifoLayout::ringsBytes(count, options_.ctas);
    std::byte* own = view_.windows[view_.self];
    checkCuda(cudaMemsetAsync(own, 0xff, rings, setup_), "cudaMemsetAsync");
    checkCuda(cudaMemsetAsync(state_.get(), 0, stateBytes, setup_), "cudaMemsetAsync");
    checkCuda(cudaStreamSynchronize(setup_), "cudaStreamSynchronize");
    peerRanks_ = peers;
    window_ = std::move(window);
  }

#ifdef SEQPAR_NCCL
  /// Connects NCCL if kernels do not reach every rank; uses NCCL's windows if mapping the memory directly failed.
  void connectNccl() {
    if (options_.borrowedNccl != nullptr) {
      nccl_ = NcclComm::borrow(options_.borrowedNccl, options_.timeout, health_);
    } else if (!direct()) {
      nccl_ = NcclComm::create(control_, options_.device, options_.timeout, health_);
    }
    const bool oneNode = std::all_of(options_.nodes.begin(), options_.nodes.end(),
                                     [this](int node) { return node == options_.nodes.front(); });
    if (direct() || !oneNode || options_.transport == seqparTransportNetwork || size() > kMostPeers) return;
    std::string why;
    auto window = makeNcclWindow(*nccl_, windowBytes(static_cast<std::size_t>(size())), why);
    if (!window) {
      reason_ = concat(reason_, "; ", why);
      return;
    }
    std::vector<int> everybody(static_cast<std::size_t>(size()));
    std::iota(everybody.begin(), everybody.end(), 0);
    openWindow(everybody, std::move(window));
    throughNccl_ = true;
    control_.gatherValues(rank(), std::span(everybody));
  }
#else
  void connectNccl() {
    if (direct()) return;
    fail(seqparInvalidUsage, "the GPUs of the ranks do not all reach each other (",
         reason_.empty() ? "several nodes" : reason_, "), and this library was built without NCCL");
  }
#endif

  void describeTransport() {
    if (options_.transport == seqparTransportShared && !direct()) {
      fail(seqparInvalidUsage, "transport shared was asked for, but the GPUs do not all reach each other: ",
           reason_.empty() ? "several nodes" : reason_);
    }
    transport_ = concat("load and store between GPUs (", throughNccl_ ? "NCCL windows" : "CUDA peer access and IPC",
                        "), ", view_.size - 1, " peers");
    if (!direct())
      transport_ = concat(view_.size > 1 ? concat(transport_, "; ") : "", "NCCL, ", size() - view_.size, " peers");
    if (size() == 1) transport_ = "none, a single rank";
  }

  void checkGroup() {
#ifdef SEQPAR_NCCL
    if (nccl_) nccl_->poll();
#endif
    notice();
  }

  void giveUp() {
    *word(kAbortWord) = 1;
#ifdef SEQPAR_NCCL
    if (nccl_) nccl_->abort();
#endif
  }

  Allgather& control_;
  DeviceOptions options_;
  Health& health_;
  int smCount_ = 0;
  GpuKind slowest_;
  int sharing_ = 1;
  bool shared_ = false;
  std::string sharers_;  ///< the first two ranks that share a GPU, also in different processes
  int sharedBlocks_ = 0;
  cudaStream_t setup_ = nullptr;
  MappedMemory words_;
  std::shared_ptr<WindowPool> pool_;
  std::unique_ptr<PeerWindow> window_;
  DeviceMemory state_;
  PeerView view_;
  std::vector<int> peerRanks_;
  bool throughNccl_ = false;
  std::string transport_, reason_;
#ifdef SEQPAR_NCCL
  std::shared_ptr<NcclComm> nccl_;
#endif
  DeviceArena arena_;
  std::mutex mutex_;
  StreamOrder order_;
  std::unique_ptr<Watchdog> watchdog_;
};

}  // namespace

std::unique_ptr<DeviceGroup> makeDeviceGroup(Allgather& control, const DeviceOptions& options, Health& health) {
  return std::make_unique<GroupCuda>(control, options, health);
}

}  // namespace seqpar
