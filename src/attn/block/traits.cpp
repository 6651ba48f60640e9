#include "attn/block/traits.h"

namespace seqpar::attn {
namespace {

// Of a processor core: measured on a Xeon with AMX, blocks of 256 to 2048 rows. Rows include their sums in memory.
constexpr PassTraits kHostForward{0.72e11, 0, 40, 11}, kHostBackward{0.88e11, 0, 120, 17};
constexpr PassTraits kHostForwardBf16{2.25e11, 0, 230, 84}, kHostBackwardBf16{2.8e11, 0, 150, 130};

/// Rates of one SM: large blocks of softmax attention in bf16, and memory. Measured: 8.0 (A100, published kernels), 9.0
/// (H200, cuDNN). The others are scaled by the vendor's numbers.
struct SmRates {
  int arch;
  double flops, bytesPerSecond;
};
constexpr SmRates kSmRates[] = {
    {80, 1.9e12, 1.2e10}, {86, 1.0e12, 0.7e10}, {90, 4.6e12, 1.9e10}, {100, 8.5e12, 3.3e10}, {120, 1.2e12, 0.7e10}};

/// The rates of the newest architecture that is not newer than the GPU's.
const SmRates& ratesOf(int arch) {
  const SmRates* found = &kSmRates[0];
  for (const auto& rates : kSmRates) {
    if (rates.arch <= arch) found = &rates;
  }
  return *found;
}

// Of an H200 with cuDNN: differences of blocks of 512 to 8192 rows from the rate of large ones, 32 heads.
constexpr int kMeasuredArch = 90;
constexpr double kStartForwardUs = 8, kStartBackwardUs = 22, kEdgeScores = 530;
// Channels of NCCL.
constexpr double kSmsOfTransfers = 0.18;

}  // namespace

BlockTraits blockTraits(const seqparCommInfo_t& info, const seqparPlanInfo_t& plan, seqparDataType_t type,
                        const seqparAttnKernel_t& kernel) {
  const bool device = info.device != SEQPAR_HOST_DEVICE;
  BlockTraits traits;
  traits.forward = type == seqparFloat32 ? kHostForward : kHostForwardBf16;
  traits.backward = type == seqparFloat32 ? kHostBackward : kHostBackwardBf16;
  if (device) {
    const auto& rates = ratesOf(plan.gpuArch);
    const double flops = rates.flops * plan.gpuSms;
    const double slower = ratesOf(kMeasuredArch).flops / rates.flops;  // the last thread blocks take as much longer
    traits.forward = {flops, kStartForwardUs * slower, kEdgeScores, 0};
    traits.backward = {flops, kStartBackwardUs * slower, kEdgeScores, 0};
    traits.addBandwidth = rates.bytesPerSecond * plan.gpuSms;
    traits.smsOfTransfers = kSmsOfTransfers;
  }
  traits.transfersTakeSms = device;
  traits.readsOut = kernel.forward != nullptr || (device && type != seqparFloat32);  // cuDNN
  traits.roundsGradients = device;
  return traits;
}

}  // namespace seqpar::attn
