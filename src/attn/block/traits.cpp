#include "attn/block/traits.h"

namespace seqpar::attn {
namespace {

// The tensor cores of an H200, and one processor core. Estimates of different algorithms are compared, so the rates
// matter only where transfers are not hidden.
constexpr double kDeviceFlops = 5e14, kHostFlops = 1e11;
constexpr double kDeviceBytesPerSecond = 2.5e12;

}  // namespace

BlockTraits blockTraits(const seqparCommInfo_t& info, seqparDataType_t type, const seqparAttnKernel_t& kernel) {
  const bool device = info.device != SEQPAR_HOST_DEVICE;
  BlockTraits traits;
  traits.flops = device ? kDeviceFlops : kHostFlops;
  traits.addBandwidth = device ? kDeviceBytesPerSecond : 0;
  traits.transfersTakeSms = device;
  traits.readsOut = kernel.forward != nullptr || (device && type != seqparFloat32);  // cuDNN
  traits.roundsGradients = device;
  return traits;
}

}  // namespace seqpar::attn
