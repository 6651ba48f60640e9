#include "exchange/device_clear.h"
#include "device/cuda.h"
#include "exchange/walk.h"

namespace seqpar {

void clearOnDevice(std::span<const StridedRegion> regions, std::span<std::byte* const> buffers, DeviceStream stream) {
  for (const StridedRegion& given : regions) {
    if (given.bytes() == 0) continue;
    const StridedRegion region = simplified(given);
    std::byte* const begin = buffers[static_cast<size_t>(region.buffer)] + region.offset;
    for (size_t i = 0; i < region.count[0]; ++i) {
      for (size_t j = 0; j < region.count[1]; ++j) {
        const size_t pitch = region.count[2] > 1 ? region.stride[2] : region.run;
        checkCuda(cudaMemset2DAsync(begin + i * region.stride[0] + j * region.stride[1], pitch, 0, region.run,
                                    region.count[2], static_cast<cudaStream_t>(stream)),
                  "cudaMemset2DAsync");
      }
    }
  }
}

}  // namespace seqpar
