#include "exchange/device_combine.h"

#include <algorithm>
#include <memory>

#include "device/cuda.h"
#include "exchange/combine_kernel.cuh"

namespace seqpar {
namespace {

using device::CombineArgs;

/// Bytes that pay for another CTA.
constexpr std::uint64_t kPart = 32 << 10;

/// The bytes from the begin of a region to the end of its last run, whether all in between belong to it or not.
std::uint64_t extent(const device::PieceArg& piece) {
  if (piece.run.by == 0) return piece.bytes;
  const std::uint64_t run = std::uint64_t{piece.run.by} << piece.shift;
  const std::uint64_t count0 = piece.bytes / run / piece.count1.by / piece.count2.by;
  return (count0 - 1) * piece.stride[0] + (piece.count1.by - 1) * piece.stride[1] +
         (piece.count2.by - 1) * piece.stride[2] + run;
}

/// Sums of one launch.
class Batch {
 public:
  Batch(seqparDataType_t type, std::size_t rowBytes, int processors, cudaStream_t stream)
      : args_(std::make_unique<CombineArgs>()), type_(type), processors_(processors), stream_(stream) {
    args_->rowBytes = rowBytes;
  }

  void add(const ReadySum& sum) {
    const int terms = static_cast<int>(sum.terms.size());
    const bool full = args_->count == device::kMostSums || terms_ + terms > device::kMostTerms;
    if (args_->count > 0 && (full || overlaps(sum.piece))) launch();
    device::SumArg& arg = args_->sums[args_->count++];
    arg = {sum.piece, terms_, terms, sum.existing ? 1 : 0, sum.row};
    std::uint64_t bits = args_->rowBytes | sum.piece.bytes;
    for (const auto* term : sum.terms) bits |= reinterpret_cast<std::uint64_t>(term);
    if (bits % 16 != 0) arg.piece.width = std::min<std::uint16_t>(arg.piece.width, 8);
    std::copy(sum.terms.begin(), sum.terms.end(), args_->terms + terms_);
    std::copy(sum.factors.begin(), sum.factors.end(), args_->factors + terms_);
    terms_ += terms;
    most_ = std::max(most_, sum.piece.bytes);
  }

  void launch() {
    if (args_->count == 0) return;
    const auto wanted = std::max<std::uint64_t>(1, (most_ + kPart - 1) / kPart);
    const auto ctas =
        static_cast<unsigned>(std::min<std::uint64_t>(wanted, static_cast<std::uint64_t>(processors_) * 4));
    const auto run = [&](auto kernel) { kernel<<<ctas, device::kCombineThreads, 0, stream_>>>(*args_); };
    switch (type_) {
      case seqparFloat32:
        run(device::combineKernel<float>);
        break;
      case seqparFloat16:
        run(device::combineKernel<__half>);
        break;
      default:
        run(device::combineKernel<__nv_bfloat16>);
    }
    args_->count = terms_ = 0;
    most_ = 0;
  }

 private:
  bool overlaps(const device::PieceArg& piece) const {
    return std::any_of(args_->sums, args_->sums + args_->count, [&](const device::SumArg& other) {
      return piece.base < other.piece.base + extent(other.piece) && other.piece.base < piece.base + extent(piece);
    });
  }

  std::unique_ptr<CombineArgs> args_;
  seqparDataType_t type_;
  int processors_;
  cudaStream_t stream_;
  int terms_ = 0;
  std::uint64_t most_ = 0;
};

}  // namespace

void launchSums(std::span<const ReadySum> sums, seqparDataType_t type, std::size_t rowBytes, int processors,
                DeviceStream stream) {
  Batch batch(type, rowBytes, processors, static_cast<cudaStream_t>(stream));
  for (const auto& sum : sums) batch.add(sum);
  batch.launch();
}

void launchLseMerge(const float* parts, float* merged, float* factors, int members, std::size_t outer,
                    std::size_t heads, std::size_t tokens, DeviceStream stream) {
  constexpr unsigned kThreads = 256;
  const device::LseArgs args{parts, merged, factors, members, outer * heads * tokens, tokens, heads};
  const auto ctas = static_cast<unsigned>((args.rows + kThreads - 1) / kThreads);
  if (ctas > 0) device::lseKernel<<<ctas, kThreads, 0, static_cast<cudaStream_t>(stream)>>>(args);
}

}  // namespace seqpar
