#include "exchange/device_launch.h"

#include <algorithm>
#include <cstring>
#include <memory>

#include "device/launch.h"
#include "exchange/device_route.h"
#include "exchange/string_kernel.cuh"

namespace seqpar {
namespace {

using device::PieceArg;

/// CTAs for what a rank copies to itself.
constexpr std::uint64_t kSelfPart = 32 << 10;
/// The most that a communicator has.
constexpr std::uint64_t kMostLanes = 128;

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
    if (memory_ != nullptr) noteCuda(cudaFreeAsync(memory_, stream_), "cudaFreeAsync");
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

/// Warps that find something to do in lane 0, which has most, if all strings go in lines.
int warpsFor(std::span<const device::StringArg> strings) {
  std::uint64_t blocks = 0;
  for (const auto& string : strings) {
    blocks += (std::min(string.each, string.bytes) + PipeLayout::kBlockBytes - 1) / PipeLayout::kBlockBytes;
  }
  return static_cast<int>(std::clamp<std::uint64_t>(blocks, 1, device::kLinesWarps));
}

template <typename Args>
void launchRouteWith(const PeerView& view, const DeviceStrings& sends, const DeviceStrings& receives,
                     std::span<const PieceArg> pieces, cudaStream_t stream) {
  const FarPieces far(pieces, stream);
  const auto args = makeRouteArgs<Args>(view, sends, receives);
  fillPieces(*args, far, pieces);

  const auto strings = std::span(args->strings).first(static_cast<std::size_t>(args->sends + args->receives));
  const int ctas = lanesOf(strings);
  const bool chunks = std::any_of(strings.begin(), strings.end(), [](const auto& string) { return string.chunk != 0; });
  const auto wanted = std::min<std::uint64_t>((sends.self.bytes + kSelfPart - 1) / kSelfPart, kMostLanes);
  const int own = std::min(static_cast<int>(wanted), view.pipeLanes - ctas);
  if (ctas + own == 0) return;
  constexpr int kThreads = device::kRouteWarps * 32;
  if (args->far != nullptr) {
    if constexpr (Args::kMostPieces == kMostInlinePieces) {
      launchKernel("routeKernel", device::routeKernel<Args, true>, {std::max(ctas, own), kThreads, 0, stream}, *args);
    }
  } else if (chunks) {
    launchKernel("routeKernel", device::routeKernel<Args, false>, {ctas, kThreads, 0, stream}, *args);
  } else {
    args->linesCtas = ctas;
    const auto out = static_cast<std::size_t>(args->sends);
    const int most = std::max(warpsFor(strings.first(out)), warpsFor(strings.subspan(out)));
    const int warps = sends.self.bytes > 0 ? device::kLinesWarps : most;
    launchKernel("linesKernel", device::linesKernel<Args>, {ctas + own, warps * 32, 0, stream}, *args);
  }
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
    if (ctas == 0) continue;
    launchKernel("stringKernel", device::stringKernel<kGather, kInline>, {ctas, device::kStringThreads, 0, stream},
                 *args);
  }
}

}  // namespace

void launchRoute(const PeerView& view, const DeviceStrings& sends, const DeviceStrings& receives, DeviceStream stream) {
  std::vector<PieceArg> pieces = sends.pieces;
  pieces.insert(pieces.end(), receives.pieces.begin(), receives.pieces.end());
  const auto on = static_cast<cudaStream_t>(stream);
  if (areFew(sends, receives)) return launchRouteWith<FewArgs>(view, sends, receives, pieces, on);
  launchRouteWith<ManyArgs>(view, sends, receives, pieces, on);
}

void launchStrings(bool gather, std::span<const device::StringArg> strings, std::span<std::byte* const> memory,
                   std::span<const PieceArg> pieces, DeviceStream stream) {
  const auto on = static_cast<cudaStream_t>(stream);
  if (gather) return launchStringsWith<true, kMostInlinePieces>(strings, memory, pieces, on);
  launchStringsWith<false, kMostInlinePieces>(strings, memory, pieces, on);
}

}  // namespace seqpar
