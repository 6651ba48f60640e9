// The numbers that the kernels of one (dk, dv tile) are built for.
#pragma once

namespace seqpar::attn {

constexpr int kWarps = 4;
constexpr int kThreads = 32 * kWarps;
constexpr int kStageTokens = 32;  ///< tokens that are in shared memory together: two blocks

/// dk rounded up to 64, 128 or 256, and the columns of v that a CTA has.
template <int Dk>
struct KernelShape {
  static constexpr int kDk = Dk;
  static constexpr int kValues = Dk == 128 ? 128 : 64;    ///< of a CTA
  static constexpr int kWarpValues = kValues / kWarps;    ///< of a warp: 16 or 32
  static constexpr int kValueTiles = kWarpValues / 16;    ///< rows of tiles of S^T
  static constexpr int kKeyTiles = Dk / 8;                ///< columns of tiles of S^T
  static constexpr int kHalf = Dk / 2;                    ///< channels that one warp prepares in one block
  static constexpr int kGroup = kHalf < 64 ? kHalf : 64;  ///< of them at once, two a lane
  static constexpr int kGroups = Dk / kGroup;             ///< in dk
  static constexpr int kGroupsOfWarp = kHalf / kGroup;
};

}  // namespace seqpar::attn
