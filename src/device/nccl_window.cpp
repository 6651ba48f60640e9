#include "device/nccl_window.h"

#include <nccl.h>
#if NCCL_VERSION_CODE >= NCCL_VERSION(2, 28, 0)
#include <nccl_device.h>
#endif

#include <algorithm>
#include <optional>
#include <vector>

#include "device/nccl_group.h"
#include "kernels/nccl/window.h"

namespace seqpar {
namespace {

#if NCCL_VERSION_CODE >= NCCL_VERSION(2, 28, 0)

/// Window functions; their structures differ between versions of NCCL.
struct WindowLibrary {
  explicit WindowLibrary(const NcclLibrary& library)
      : memAlloc(library.file.find<decltype(memAlloc)>("ncclMemAlloc")),
        memFree(library.file.find<decltype(memFree)>("ncclMemFree")),
        registerWindow(library.file.find<decltype(registerWindow)>("ncclCommWindowRegister")),
        deregisterWindow(library.file.find<decltype(deregisterWindow)>("ncclCommWindowDeregister")),
        devCommCreate(library.file.find<decltype(devCommCreate)>("ncclDevCommCreate")),
        devCommDestroy(library.file.find<decltype(devCommDestroy)>("ncclDevCommDestroy")),
        teamLsa(library.file.find<decltype(teamLsa)>("ncclTeamLsa")) {}

  bool complete() const {
    return memAlloc != nullptr && memFree != nullptr && registerWindow != nullptr && deregisterWindow != nullptr &&
           devCommCreate != nullptr && devCommDestroy != nullptr && teamLsa != nullptr;
  }

  decltype(&ncclMemAlloc) memAlloc;
  decltype(&ncclMemFree) memFree;
  decltype(&ncclCommWindowRegister) registerWindow;
  decltype(&ncclCommWindowDeregister) deregisterWindow;
  ncclResult_t (*devCommCreate)(ncclComm_t, const ncclDevCommRequirements_t*, ncclDevComm_t*);
  ncclResult_t (*devCommDestroy)(ncclComm_t, const ncclDevComm_t*);
  ncclTeam_t (*teamLsa)(ncclComm_t);
};

/// A window in a separate communicator, since NCCL fails the whole communicator when it refuses a call.
class NcclWindow final : public PeerWindow {
 public:
  NcclWindow(NcclGroup& group, const WindowLibrary& library, std::size_t bytes)
      : library_(library), device_(group.device()), bytes_(bytes) {
    split(group);
    try {
      probe(group);
      open(group);
    } catch (...) {
      handle_->abort();
      close();
      throw;
    }
  }
  ~NcclWindow() override {
    const CurrentDevice current(device_);
    if (window_ != nullptr) {
      try {
        handle_->call("ncclCommWindowDeregister", unwatched_,
                      [this](ncclComm_t comm) { return library_.deregisterWindow(comm, window_); });
      } catch (const Error&) {
        // The communicator has failed; destroying it frees the window.
      }
    }
    close();
  }

  std::size_t bytes() const override { return bytes_; }
  std::byte* at(int peer) const override {
    return static_cast<std::byte*>(pointers_.at(static_cast<std::size_t>(peer)));
  }

 private:
  void split(NcclGroup& group) {
    ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
    config.blocking = 0;
    ncclComm_t comm = nullptr;
    group.handle().call("ncclCommSplit", group.health(), [&](ncclComm_t parent) {
      return group.handle().library().commSplit(parent, 0, group.rank(), &comm, &config);
    });
    if (comm == nullptr) fail(seqparInvalidUsage, "ncclCommSplit returned no communicator");
    handle_.emplace(group.handle().library(), comm, true, group.timeout());
    handle_->finish("ncclCommSplit", group.health());
  }

  /// Probes for symmetric memory by requesting a device communicator without resources: NCCL refuses it otherwise.
  void probe(NcclGroup& group) {
    int covered = 0;
    handle_->call("ncclTeamLsa", group.health(), [&](ncclComm_t comm) {
      covered = library_.teamLsa(comm).nRanks;
      return ncclSuccess;
    });
    if (covered != group.size()) {
      fail(seqparInvalidUsage, "NCCL sees ", covered, " of ", group.size(), " ranks in one domain of load and store");
    }
    ncclDevCommRequirements_t nothing{};
    ncclDevComm_t made{};
    handle_->call("ncclDevCommCreate", group.health(),
                  [&](ncclComm_t comm) { return library_.devCommCreate(comm, &nothing, &made); });
    handle_->call("ncclDevCommDestroy", group.health(),
                  [&](ncclComm_t comm) { return library_.devCommDestroy(comm, &made); });
  }

  void open(NcclGroup& group) {
    const StreamHandle own = makeStream();
    const ncclResult_t allocated = library_.memAlloc(&memory_, bytes_);
    if (allocated != ncclSuccess) {
      fail(ncclResultAsOurs(allocated), group.handle().library().describe(allocated, "ncclMemAlloc", nullptr), ": ",
           bytes_, " bytes for a window that peers map; ", deviceMemoryLeft());
    }
    checkCuda(cudaMemsetAsync(memory_, 0, bytes_, own.get()), "cudaMemsetAsync");
    checkCuda(cudaStreamSynchronize(own.get()), "cudaStreamSynchronize");
    handle_->call("ncclCommWindowRegister", group.health(), [&](ncclComm_t comm) {
      return library_.registerWindow(comm, memory_, bytes_, &window_, NCCL_WIN_DEFAULT);
    });
    if (window_ == nullptr) fail(seqparInvalidUsage, "ncclCommWindowRegister returned no window");
    const auto count = static_cast<std::size_t>(group.size());
    const DeviceMemory found = allocateDevice(count * sizeof(void*), "addresses of peers' windows");
    checkCuda(launchFindPeers(window_, group.size(), reinterpret_cast<void**>(found.get()), own.get()), "findPeers");
    pointers_.resize(count);
    checkCuda(cudaMemcpyAsync(pointers_.data(), found.get(), count * sizeof(void*), cudaMemcpyDeviceToHost, own.get()),
              "cudaMemcpyAsync");
    checkCuda(cudaStreamSynchronize(own.get()), "cudaStreamSynchronize");
  }

  void close() noexcept {
    handle_.reset();
    if (memory_ != nullptr) (void)library_.memFree(memory_);
    memory_ = nullptr;
  }

  WindowLibrary library_;
  int device_;
  std::size_t bytes_;
  Health unwatched_;  ///< the window may outlive the failure of its communicator
  std::optional<NcclHandle> handle_;
  void* memory_ = nullptr;
  ncclWindow_t window_ = nullptr;
  std::vector<void*> pointers_;
};

std::unique_ptr<PeerWindow> tryWindow(NcclGroup& group, std::size_t bytes) {
  const NcclLibrary& nccl = group.handle().library();
  if (nccl.version != NCCL_VERSION_CODE) {
    fail(seqparInvalidUsage, "the library is NCCL ", ncclVersionInWords(nccl.version), ", and windows were built for ",
         ncclVersionInWords(NCCL_VERSION_CODE));
  }
  const WindowLibrary library(nccl);
  if (!library.complete()) fail(seqparInvalidUsage, "this libnccl.so.2 has no windows");
  const CurrentDevice current(group.device());
  return std::make_unique<NcclWindow>(group, library, bytes);
}

#else

std::unique_ptr<PeerWindow> tryWindow(NcclGroup&, std::size_t) {
  fail(seqparInvalidUsage, "built for NCCL ", ncclVersionInWords(NCCL_VERSION_CODE), ", which has no windows");
}

#endif

}  // namespace

std::unique_ptr<PeerWindow> makeNcclWindow(NcclComm& comm, std::size_t bytes, std::string& why) {
  NcclGroup& group = dynamic_cast<NcclGroup&>(comm);
  if (!group.whole()) {
    why = "NCCL windows need a whole communicator";
    return nullptr;
  }
  std::unique_ptr<PeerWindow> window;
  try {
    window = tryWindow(group, bytes);
  } catch (const Error& error) {
    why = concat("NCCL windows: ", error.what());
  }
  const auto made = group.gatherByte(window ? 1 : 0);
  const auto missing = std::find(made.begin(), made.end(), 0);
  if (missing == made.end()) return window;
  if (window) why = concat("NCCL windows: rank ", missing - made.begin(), " has none");
  return nullptr;
}

}  // namespace seqpar
