#include "base/error.h"
#include "exchange/clear.h"

namespace seqpar {

void clearOnDevice(std::span<const StridedRegion>, std::span<std::byte* const>, DeviceStream) {
  fail(seqparInternalError, "clearOnDevice: the library was built without CUDA");
}

}  // namespace seqpar
