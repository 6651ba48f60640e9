#include "api/buffers.h"

namespace seqpar {

void requireKind(const char* call, const Buffer& buffer, const Communicator& comm) {
  if (comm.device() == nullptr) {
    if (isDevicePointer(buffer.data, CallScope::began())) {
      fail(seqparInvalidArgument, call, ": ", buffer.name, " is ", buffer.data,
           ", which is device memory; expected host memory, as comm is a host communicator");
    }
  } else if (!isKnownToDriver(buffer.data)) {
    fail(seqparInvalidArgument, call, ": ", buffer.name, " is ", buffer.data,
         ", which is pageable host memory; expected device, managed or pinned memory, as comm is on device ",
         comm.config().device);
  }
}

}  // namespace seqpar
