#include "exchange/device_combine.h"

#include <algorithm>
#include <memory>

#include "base/convert.h"
#include "device/cuda.h"
#include "kernels/exchange/launch.h"

namespace seqpar {
namespace {

using device::CombineArgs;

/// CTAs per SM: enough to saturate memory.
constexpr std::uint64_t kCtas = 4;

/// The bytes from the start of a region to the end of its last run, including gaps.
std::uint64_t extent(const device::RegionArg& region) {
  if (region.run.by == 0) return region.bytes;
  const std::uint64_t run = std::uint64_t{region.run.by} << region.shift;
  const std::uint64_t count0 = region.bytes / run / region.count1.by / region.count2.by;
  return (count0 - 1) * region.stride[0] + (region.count1.by - 1) * region.stride[1] +
         (region.count2.by - 1) * region.stride[2] + run;
}

/// The sums of one launch.
class Batch {
 public:
  Batch(seqparDataType_t type, int smCount, DeviceStream stream, const device::LseArgs& lse)
      : args_(std::make_unique<CombineArgs>()),
        type_(type),
        most_(kCtas * static_cast<std::uint64_t>(smCount)),
        stream_(static_cast<cudaStream_t>(stream)) {
    args_->lse = lse;
  }

  void add(const ReadySum& sum) {
    const int terms = static_cast<int>(sum.terms.size());
    const bool full = args_->count == CombineArgs::kMostSums || terms_ + terms > CombineArgs::kMostTerms;
    if (args_->count > 0 && (full || overlaps(sum.region))) launch();
    device::SumArg& arg = args_->sums[args_->count++];
    arg = {sum.region, terms_, terms, sum.existing ? 1 : 0};
    std::uint64_t bits = args_->lse.rowBytes | sum.region.bytes;
    for (const auto* term : sum.terms) bits |= reinterpret_cast<std::uint64_t>(term);
    if (bits % 16 != 0) arg.region.width = std::min<std::uint16_t>(arg.region.width, 8);
    std::copy(sum.terms.begin(), sum.terms.end(), args_->terms + terms_);
    terms_ += terms;
    const std::uint64_t access = arg.region.width == 16 ? 16 : sizeOf(type_);
    accesses_ = std::max(accesses_, sum.region.bytes / access);
  }

  void launch() {
    const std::uint64_t work = std::max(accesses_, args_->lse.rows);
    if (work == 0) return;
    checkCuda(device::launchCombine(*args_, type_, work, most_, stream_), "combineKernel");
    args_->count = terms_ = 0;
    accesses_ = 0;
  }

 private:
  bool overlaps(const device::RegionArg& region) const {
    return std::any_of(args_->sums, args_->sums + args_->count, [&](const device::SumArg& other) {
      return region.base < other.region.base + extent(other.region) && other.region.base < region.base + extent(region);
    });
  }

  std::unique_ptr<CombineArgs> args_;
  seqparDataType_t type_;
  std::uint64_t most_;  ///< CTAs
  cudaStream_t stream_;
  int terms_ = 0;
  std::uint64_t accesses_ = 0;  ///< of the largest sum
};

}  // namespace

void launchSums(std::span<const ReadySum> sums, seqparDataType_t type, int smCount, DeviceStream stream,
                const device::LseArgs& lse) {
  Batch batch(type, smCount, stream, lse);
  for (const auto& sum : sums) batch.add(sum);
  batch.launch();
}

}  // namespace seqpar
