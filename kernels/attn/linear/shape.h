// Template constants of the kernels of one dk.
#pragma once

namespace seqpar::attn {

constexpr int kStageTokens =
    32;  ///< tokens that are in shared memory together, and what one step of the recurrence takes

/// dk rounded up to 64, 128 or 256. Each warp has 16 columns of v and, when it prepares q and k, a group of channels.
template <int Dk>
struct KernelShape {
  static constexpr int kDk = Dk;
  static constexpr int kWarps = Dk == 64 ? 4 : 8;
  static constexpr int kThreads = 32 * kWarps;
  static constexpr int kCtas = Dk == 64 ? 4 : (Dk == 128 ? 2 : 1);  ///< per SM, at least
  static constexpr int kWarpValues = 16;
  static constexpr int kValues = kWarps * kWarpValues;  ///< per CTA
  static constexpr int kKeyTiles = Dk / 8;              ///< tiles of S^T
  static constexpr int kSteps = Dk / 16;                ///< of products over dk
  static constexpr int kGroup = Dk / kWarps;            ///< channels that one warp prepares, two per lane
  static constexpr int kPairs = kGroup / 2;             ///< lanes per token; the other lanes have later tokens
  static constexpr int kLaneTokens = kPairs;            ///< adjacent tokens of the 32
};

}  // namespace seqpar::attn
