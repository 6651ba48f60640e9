// The numbers that the kernels of one dk are built for.
#pragma once

namespace seqpar::attn {

constexpr int kStageTokens =
    32;  ///< tokens that are in shared memory together, and what one step of the recurrence takes

/// dk rounded up to 64, 128 or 256. Each warp has 16 columns of v and, where it prepares q and k, a group of channels.
template <int Dk>
struct KernelShape {
  static constexpr int kDk = Dk;
  static constexpr int kWarps = Dk == 64 ? 4 : 8;
  static constexpr int kThreads = 32 * kWarps;
  static constexpr int kCtas = Dk == 64 ? 4 : (Dk == 128 ? 2 : 1);  ///< on an SM, at least
  static constexpr int kWarpValues = 16;
  static constexpr int kValues = kWarps * kWarpValues;  ///< of a CTA
  static constexpr int kKeyTiles = Dk / 8;              ///< tiles of S^T
  static constexpr int kSteps = Dk / 16;                ///< of products along dk
  static constexpr int kGroup = Dk / kWarps;            ///< channels that one warp prepares, two a lane
  static constexpr int kPairs = kGroup / 2;             ///< lanes for a token; the others have later tokens
  static constexpr int kLaneTokens = kPairs;            ///< of the 32, next to each other
};

}  // namespace seqpar::attn
