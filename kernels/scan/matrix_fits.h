// Which heads the kernels of the MATRIX scan support. Kernels differ in how many of a head's matrices a CTA holds in
// shared memory: 0 if only states are sent, 1 if maps are sent, 2 if maps are composed.
#pragma once

#include "kernels/scan/matrix_maps.h"

namespace seqpar {

/// The most CTAs of a call. Each fills an SM: two communicators, or two ranks, fit an H100 or H200.
constexpr int kMostMatrixChannels = 64;

/// Dynamic shared memory of the kernels that send maps: the architecture's limit per CTA, less the static part.
constexpr std::size_t kMapBytes = 220 << 10;

SEQPAR_BOTH constexpr std::size_t matrixBytes(int dk) {
  return static_cast<std::size_t>(dk) * matrixStride(dk) * sizeof(float);
}
constexpr std::size_t mapBytes(int dk, int panels, int matrices) {
  return static_cast<std::size_t>(panels + 2) * pairsOf(dk) * sizeof(SplitPair) + matrices * matrixBytes(dk);
}

/// The most panels of a group that a kernel with `matrices` matrices supports with `channels` channels; 0: it does not
/// support the shape.
constexpr int mostMapPanels(int matrices, std::size_t dk, int channels) {
  if (dk > 128) return 0;  // a matrix must fit registers, and shared memory
  const int rows = static_cast<int>(dk);
  int panels = 0;
  while (panels < 32 && mapBytes(rows, panels + 1, matrices) <= kMapBytes &&
         mapPackets(rows, panels + 1, cursorWays(channels)) <= kSurePackets) {
    ++panels;
  }
  return panels;
}

/// True if several ranks with `channels` channels support heads of dk rows. Without matrices a panel of 16 columns must
/// fit a ring: dk up to 752 in fp32 on the wire, and up to 1520 in 16 bits. With matrices a whole matrix must fit
/// shared memory and the rings of two channels: dk up to 128, or 80 with one channel. The result is the same on all
/// ranks.
/// on all ranks.
constexpr bool matrixScanFits(int matrices, std::size_t dk, seqparDataType_t wireType, int channels) {
  if (matrices > 0) return mostMapPanels(matrices, dk, channels) > 0;
  return dk <= kSurePackets && packetsOf(static_cast<int>(dk), wireType) <= static_cast<int>(kSurePackets);
}

/// True if a panel of a matrix, which is fp32 on the wire, fits a ring: dk up to 752.
constexpr bool matrixPanelFits(std::size_t dk) {
  return matrixScanFits(0, dk, seqparFloat32, 1);
}

// The limits that the comment and the error text state.
static_assert(matrixScanFits(0, 752, seqparFloat32, 1) && !matrixScanFits(0, 753, seqparFloat32, 1));
static_assert(matrixScanFits(0, 1520, seqparFloat16, 1) && !matrixScanFits(0, 1521, seqparFloat16, 1));
static_assert(mapPackets(128, 1, 2) <= kSurePackets);
static_assert(mapPackets(80, 1, 1) <= kSurePackets && mapPackets(81, 1, 1) > kSurePackets);

}  // namespace seqpar
