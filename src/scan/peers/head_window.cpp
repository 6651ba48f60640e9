// Device memory for kernels that pass heads between ranks (seqpar_device.cuh).
#include <algorithm>
#include <cstdint>
#include <vector>

#include "device/cuda.h"
#include "scan/peers/backend.h"

namespace seqpar {
namespace {

constexpr std::size_t kPacketBytes = 16;
constexpr std::size_t kSets = 2;         // equals the number in seqpar_device.cuh
constexpr std::size_t kCountBytes = 16;  // of a head

std::size_t whole(std::size_t bytes) {
  return (bytes + kPacketBytes - 1) / kPacketBytes * kPacketBytes;
}

/// Two sets of packets for all heads, then one count per head that the next peer writes, then this rank's own counts.
/// All of it is in the window, which is returned to the communicator: destroying a handle must not free memory, because
/// freeing waits for the whole device, where kernels of other ranks that share it may be waiting for kernels that this
/// would delay.
struct WindowLayout {
  std::size_t packets, credits, own;
  WindowLayout(int64_t heads, int64_t elements)
      : packets(kSets * static_cast<std::size_t>(heads) * ((static_cast<std::size_t>(elements) + 3) / 4) *
                kPacketBytes),
        credits(whole(static_cast<std::size_t>(heads) * sizeof(std::uint64_t))),
        own(static_cast<std::size_t>(heads) * kCountBytes + kPacketBytes) {}
  std::size_t bytes() const { return packets + credits + own; }
};

class HeadWindowCuda : public HeadWindow {
 public:
  HeadWindowCuda(Communicator& comm, int64_t heads, int64_t elements, seqparDirection_t direction)
      : layout_(heads, elements) {
    DeviceGroup& group = *comm.device();
    const CurrentDevice current(group.device());
    window_ = group.makeWindow(layout_.bytes());
    agree(comm, prepare(group.rank()));

    // All ranks are peers, so a peer's index is its rank.
    const bool forward = direction == seqparForward;
    view_.heads = heads;
    view_.elements = elements;
    view_.positions = group.size();
    view_.position = forward ? group.rank() : group.size() - 1 - group.rank();
    const int step = forward ? 1 : -1;
    const auto clamped = [&](int rank) { return std::clamp(rank, 0, group.size() - 1); };
    view_.before = clamped(group.rank() - step);
    view_.after = clamped(group.rank() + step);
    view_.inbox = window_->at(group.rank());
    view_.outbox = window_->at(view_.after);
    view_.creditIn = window_->at(group.rank()) + layout_.packets;
    view_.creditOut = window_->at(view_.before) + layout_.packets;
    view_.counts = window_->at(group.rank()) + layout_.packets + layout_.credits;
    view_.abortWord = const_cast<std::uint32_t*>(group.peers().waits.abort);
    view_.timedOutWord = const_cast<std::uint32_t*>(group.peers().waits.timedOut);
    view_.timeoutNs = group.peers().waits.timeoutNs;
  }

  seqparScanDevice_t view() const override { return view_; }

 private:
  /// Initializes this rank's memory as kernels expect it; returns the error text, or an empty string.
  std::string prepare(int rank) {
    try {
      const StreamHandle stream = makeStream();
      checkCuda(cudaMemsetAsync(window_->at(rank), 0xff, layout_.packets, stream.get()), "cudaMemsetAsync");
      checkCuda(cudaStreamSynchronize(stream.get()), "cudaStreamSynchronize");
      return "";
    } catch (const Error& error) {
      return error.what();
    }
  }

  /// Succeeds or fails together on all ranks, after all have prepared.
  static void agree(Communicator& comm, const std::string& problem) {
    std::vector<int> fine(static_cast<std::size_t>(comm.size()));
    comm.control().gatherValues(problem.empty() ? 1 : 0, std::span(fine));
    const auto found = std::find(fine.begin(), fine.end(), 0);
    if (found == fine.end()) return;
    if (!problem.empty()) fail(seqparSystemError, problem);
    fail(seqparSystemError, "rank ", found - fine.begin(), " has no memory for the heads");
  }

  WindowLayout layout_;
  std::unique_ptr<PeerWindow> window_;
  seqparScanDevice_t view_ = SEQPAR_SCAN_DEVICE_INITIALIZER;
};

}  // namespace

std::unique_ptr<HeadWindow> makePeerHeadWindow(Communicator& comm, int64_t heads, int64_t elements,
                                               seqparDirection_t direction) {
  return std::make_unique<HeadWindowCuda>(comm, heads, elements, direction);
}

}  // namespace seqpar
