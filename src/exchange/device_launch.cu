#include "exchange/device_launch.h"

#include <algorithm>
#include <cstring>
#include <memory>

#include "device/cuda.h"
#include "exchange/route_kernel.cuh"
#include "exchange/string_kernel.cuh"

namespace seqpar {
namespace {

using device::PieceArg;

/// Parameters are copied at every launch: short lists, the usual ones, get small ones.
constexpr int kFewPieces = 16;
/// CTAs for what a rank copies to itself.
constexpr std::size_t kSelfPart = 64 << 10;

/// A list of pieces that is too long for a parameter, in memory that lives as long as the launch needs it.
class FarPieces {
 public:
  FarPieces(std::span<const PieceArg> pieces, cudaStream_t stream) : stream_(stream) {
    if (pieces.size() <= kMostInlinePieces) return;
    if (capturing(stream)) {
      fail(seqparInvalidUsage, "an exchange of ", pieces.size(), " pieces during a capture; expected at most ",
           kMostInlinePieces);
    }
    checkCuda(cudaMallocAsync(&memory_, pieces.size_bytes(), stream), "cudaMallocAsync");
    checkCuda(cudaMemcpyAsync(memory_, pieces.data(), pieces.size_bytes(), cudaMemcpyHostToDevice, stream),
              "cudaMemcpyAsync");
  }
  FarPieces(const FarPieces&) = delete;
  FarPieces& operator=(const FarPieces&) = delete;
  ~FarPieces() {
    if (memory_ != nullptr) cudaFreeAsync(memory_, stream_);
  }

  const PieceArg* get() const { return static_cast<const PieceArg*>(memory_); }

 private:
  cudaStream_t stream_;
  void* memory_ = nullptr;
};

template <typename Args>
void fillPieces(Args& args, const FarPieces& far, std::span<const PieceArg> pieces) {
  args.far = far.get();
  if (args.far == nullptr) std::copy(pieces.begin(), pieces.end(), args.near);
}

template <int kInline>
void launchRouteWith(const PeerView& view, const DeviceStrings& sends, const DeviceStrings& receives,
                     std::span<const PieceArg> pieces, cudaStream_t stream) {
  const FarPieces far(pieces, stream);
  // Kilobytes: not on the stack of a caller that we do not know.
  const auto args = std::make_unique<device::RouteArgs<kInline>>();
  args->view = view;
  std::copy(sends.others.begin(), sends.others.end(), args->sends);
  std::copy(receives.others.begin(), receives.others.end(), args->receives);
  args->sendCount = static_cast<int>(sends.others.size());
  args->receiveCount = static_cast<int>(receives.others.size());
  args->selfSend = sends.self;
  args->selfReceive = receives.self;
  fillPieces(*args, far, pieces);

  int ctas = static_cast<int>(
      std::min<std::size_t>((sends.self.bytes + kSelfPart - 1) / kSelfPart, static_cast<std::size_t>(view.lanes)));
  for (const auto* strings : {&sends.others, &receives.others}) {
    for (const auto& string : *strings) ctas = std::max(ctas, string.lanes);
  }
  if (ctas == 0) return;
  device::routeKernel<kInline><<<ctas, device::kRouteThreads, 0, stream>>>(*args);
}

template <bool kGather, int kInline>
void launchStringsWith(std::span<const device::StringArg> strings, std::span<std::byte* const> memory,
                       std::span<const PieceArg> pieces, cudaStream_t stream) {
  const FarPieces far(pieces, stream);
  const auto args = std::make_unique<device::StringArgs<kInline>>();
  fillPieces(*args, far, pieces);
  for (std::size_t first = 0; first < strings.size(); first += device::kMostStrings) {
    const auto part = strings.subspan(first, std::min<std::size_t>(strings.size() - first, device::kMostStrings));
    int ctas = 0;
    for (std::size_t i = 0; i < part.size(); ++i) {
      args->copies[i] = {part[i], memory[first + i]};
      ctas = std::max(ctas, part[i].lanes);
    }
    args->count = static_cast<int>(part.size());
    if (ctas > 0) device::stringKernel<kGather, kInline><<<ctas, device::kStringThreads, 0, stream>>>(*args);
  }
}

}  // namespace

void launchRoute(const PeerView& view, const DeviceStrings& sends, const DeviceStrings& receives, DeviceStream stream) {
  std::vector<PieceArg> pieces = sends.pieces;
  pieces.insert(pieces.end(), receives.pieces.begin(), receives.pieces.end());
  const auto on = static_cast<cudaStream_t>(stream);
  if (pieces.size() <= kFewPieces) return launchRouteWith<kFewPieces>(view, sends, receives, pieces, on);
  launchRouteWith<kMostInlinePieces>(view, sends, receives, pieces, on);
}

void launchStrings(bool gather, std::span<const device::StringArg> strings, std::span<std::byte* const> memory,
                   std::span<const PieceArg> pieces, DeviceStream stream) {
  const auto on = static_cast<cudaStream_t>(stream);
  if (gather) return launchStringsWith<true, kMostInlinePieces>(strings, memory, pieces, on);
  launchStringsWith<false, kMostInlinePieces>(strings, memory, pieces, on);
}

}  // namespace seqpar
