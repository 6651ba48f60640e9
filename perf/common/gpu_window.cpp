#include "gpu_window.h"

#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <exception>

namespace seqpar::perf {
namespace {

/// The driver's page size: an allocation of whole pages starts at its handle's address.
constexpr size_t kPage = size_t{2} << 20;

/// A rank's description of its memory for the others.
struct Offer {
  char host[256] = {};
  double pid = 0;
  int device = 0;
  void* memory = nullptr;
  cudaIpcMemHandle_t handle = {};
};

class MappedWindow : public Window {
 public:
  MappedWindow(Group& group, size_t bytes) : group_(group) {
    Offer mine;
    gethostname(mine.host, sizeof mine.host - 1);
    mine.pid = getpid();
    checkCuda(cudaGetDevice(&mine.device), "cudaGetDevice");
    own_ = allocateDevice((std::max<size_t>(bytes, 1) + kPage - 1) / kPage * kPage);
    mine.memory = own_.get();
    if (cudaIpcGetMemHandle(&mine.handle, own_.get()) != cudaSuccess) (void)cudaGetLastError();
    std::vector<Offer> all(static_cast<size_t>(group.size()));
    group.gather(std::as_bytes(std::span(&mine, 1)), std::as_writable_bytes(std::span(all)));
    pointers_.resize(all.size());
    for (size_t rank = 0; rank < all.size(); ++rank) pointers_[rank] = map(mine, all[rank]);
  }

  ~MappedWindow() override {
    for (void* pointer : opened_) cudaIpcCloseMemHandle(pointer);
    // A rank must not free its memory while other ranks map it; after a failure there is no barrier.
    if (std::uncaught_exceptions() > 0) return;
    try {
      group_.barrier();
    } catch (const std::exception&) {
    }
  }

  bool complete() const { return std::find(pointers_.begin(), pointers_.end(), nullptr) == pointers_.end(); }
  void* at(int rank) const override { return pointers_[static_cast<size_t>(rank)]; }

 private:
  void* map(const Offer& mine, const Offer& other) {
    if (std::strcmp(mine.host, other.host) != 0) return nullptr;
    if (mine.pid == other.pid) return mine.device == other.device || reach(other.device) ? other.memory : nullptr;
    void* pointer = nullptr;
    if (cudaIpcOpenMemHandle(&pointer, other.handle, cudaIpcMemLazyEnablePeerAccess) != cudaSuccess) {
      (void)cudaGetLastError();
      return nullptr;
    }
    opened_.push_back(pointer);
    return pointer;
  }

  static bool reach(int device) {
    const cudaError_t result = cudaDeviceEnablePeerAccess(device, 0);
    if (result != cudaSuccess) (void)cudaGetLastError();
    return result == cudaSuccess || result == cudaErrorPeerAccessAlreadyEnabled;
  }

  Group& group_;
  DeviceMemory own_;
  std::vector<void*> pointers_, opened_;
};

}  // namespace

std::unique_ptr<Window> makeWindow(Group& group, size_t bytes) {
  auto window = std::make_unique<MappedWindow>(group, bytes);
  const double complete = window->complete() ? 1 : 0;
  const std::vector<double> all = group.gather(std::span(&complete, 1));
  if (*std::min_element(all.begin(), all.end()) == 0) return nullptr;
  return window;
}

}  // namespace seqpar::perf
