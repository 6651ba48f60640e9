#include "device/cuda.h"
#include "exchange/clear.h"
#include "exchange/walk.h"

namespace seqpar {

void clearOnDevice(std::span<const Piece> pieces, std::span<std::byte* const> buffers, DeviceStream stream) {
  for (const Piece& given : pieces) {
    if (given.bytes() == 0) continue;
    const Piece piece = simplified(given);
    std::byte* const begin = buffers[static_cast<size_t>(piece.buffer)] + piece.offset;
    for (size_t i = 0; i < piece.count[0]; ++i) {
      for (size_t j = 0; j < piece.count[1]; ++j) {
        const size_t pitch = piece.count[2] > 1 ? piece.stride[2] : piece.run;
        checkCuda(cudaMemset2DAsync(begin + i * piece.stride[0] + j * piece.stride[1], pitch, 0, piece.run,
                                    piece.count[2], static_cast<cudaStream_t>(stream)),
                  "cudaMemset2DAsync");
      }
    }
  }
}

}  // namespace seqpar
