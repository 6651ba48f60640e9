#include "api/buffers.h"

#include <cstdint>

#include "base/checked.h"
#include "device/device.h"

namespace seqpar {

void requireMemory(const char* call, const Buffer& buffer, const Communicator& comm) {
  requireArray(call, buffer.name, buffer.data, buffer.bytes, buffer.alignment);
  if (buffer.bytes == 0 || buffer.data == nullptr) return;
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

void requireApart(const char* call, const Buffer& a, const Buffer& b, bool sameIsFine) {
  if (a.data == nullptr || b.data == nullptr || a.bytes == 0 || b.bytes == 0) return;
  if (sameIsFine && a.data == b.data) return;
  const auto beginA = reinterpret_cast<uintptr_t>(a.data);
  const auto beginB = reinterpret_cast<uintptr_t>(b.data);
  if (beginA < beginB + b.bytes && beginB < beginA + a.bytes) {
    fail(seqparInvalidArgument, call, ": ", a.name, " (", a.data, ", ", a.bytes, " bytes) overlaps ", b.name, " (",
         b.data, ", ", b.bytes, " bytes); expected ", sameIsFine ? "the same address or no overlap" : "no overlap");
  }
}

}  // namespace seqpar
