// In a build without CUDA there are no device groups.
#include "base/error.h"
#include "exchange/device_exchange.h"

namespace seqpar {

void exchangeOnDevice(DeviceGroup&, const Route&, std::span<const std::byte* const>, std::span<std::byte* const>,
                      DeviceStream) {
  fail(seqparInternalError, "an exchange on a device in a build without CUDA");
}

}  // namespace seqpar
