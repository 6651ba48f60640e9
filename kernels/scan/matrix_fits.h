// Which heads the kernels of the MATRIX scan can do. Kernels differ in how many of a head's matrices a CTA has in
// shared memory: 0 where states travel alone, 1 where maps do, 2 where they are composed.
#pragma once

#include "kernels/scan/matrix_maps.h"

namespace seqpar {

/// The most CTAs of a call, each of which fills an SM: two communicators, or two ranks, fit an H100 or H200.
constexpr int kMostMatrixChannels = 64;

/// What kernels to which maps travel have in shared memory: the largest amount that a CTA of this architecture gets,
/// less what is static.
constexpr std::size_t kMapBytes = 220 << 10;

SEQPAR_BOTH constexpr std::size_t matrixBytes(int dk) {
  return static_cast<std::size_t>(dk) * matrixStride(dk) * sizeof(float);
}
constexpr std::size_t mapBytes(int dk, int panels, int matrices) {
  return static_cast<std::size_t>(panels + 2) * pairsOf(dk) * sizeof(SplitPair) + matrices * matrixBytes(dk);
}

/// The most panels of a group that a kernel with so many matrices can work on where there are so many channels; 0: it
/// cannot do the shape.
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

/// True if heads of dk rows can be done among several ranks with so many channels. Without matrices that takes a panel
/// of 16 columns in a ring: dk up to 752 in fp32 on the wire, and up to 1520 in 16 bits. With them it takes a whole
/// matrix in shared memory and in the rings of two channels: dk up to 128, or 80 where there is one channel. The same
/// on all ranks.
constexpr bool matrixScanFits(int matrices, std::size_t dk, seqparDataType_t wireType, int channels) {
  if (matrices > 0) return mostMapPanels(matrices, dk, channels) > 0;
  return dk <= kSurePackets && packetsOf(static_cast<int>(dk), wireType) <= static_cast<int>(kSurePackets);
}

// What the comment and the error text say.
static_assert(matrixScanFits(0, 752, seqparFloat32, 1) && !matrixScanFits(0, 753, seqparFloat32, 1));
static_assert(matrixScanFits(0, 1520, seqparFloat16, 1) && !matrixScanFits(0, 1521, seqparFloat16, 1));
static_assert(mapPackets(128, 1, 2) <= kSurePackets);
static_assert(mapPackets(80, 1, 1) <= kSurePackets && mapPackets(81, 1, 1) > kSurePackets);

}  // namespace seqpar
