// In a build without CUDA there are no device groups.
#include "base/error.h"
#include "exchange/device_exchange.h"
#include "exchange/device_reduction.h"

namespace seqpar {

void exchangeOnDevice(DeviceGroup&, const Route&, std::span<const std::byte* const>, std::span<std::byte* const>,
                      DeviceStream) {
  fail(seqparInternalError, "an exchange on a device in a build without CUDA");
}

void reduceOnDevice(DeviceGroup&, const Reduction&, seqparDataType_t, std::span<const std::byte* const>,
                    std::span<std::byte* const>, DeviceStream) {
  fail(seqparInternalError, "a reduction on a device in a build without CUDA");
}

void reduceLseOnDevice(DeviceGroup&, const LseShards&, std::size_t, const std::byte*, const float*, std::byte*, float*,
                       DeviceStream) {
  fail(seqparInternalError, "a reduction on a device in a build without CUDA");
}

}  // namespace seqpar
