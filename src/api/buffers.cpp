#include "api/buffers.h"

#include "device/device.h"

namespace seqpar {

void requireMemory(const char* call, const Buffer& buffer, const Communicator& comm) {
  requireArray(call, buffer.name, buffer.data, buffer.bytes, buffer.alignment);
  if (buffer.bytes == 0 || buffer.data == nullptr) return;
  CallScope::addBytes(buffer.bytes);
  if (comm.device() == nullptr) {
    if (isDevicePointer(buffer.data)) {
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
