// Shared memory of pass 1 (segment_states_sm90.cuh), and its gates per channel.
#pragma once

#include "kernels/attn/linear/forward_sm90/needed_pieces_sm90.cuh"

namespace seqpar::attn::forward_sm90 {

template <GateKind Kind>
struct StatesShared {
  static constexpr int kGateBytes = kChunk * Shape::kChannels * bytesOf(Kind);
  static constexpr int kKeys = 0;
  static constexpr int kValues = kKeyBytes;
  static constexpr int kGates = kKeyBytes + kValueBytes;
  static constexpr int kLoadedBytes = kGates + kGateBytes;                                   ///< by TMA
  static constexpr int kStageBytes = kLoadedBytes + (Kind == GateKind::Uniform ? 1024 : 0);  ///< TokenGates
  static constexpr int kStages = 202752 / kStageBytes;
  /// Channel decays: [2][2][128], of halves of chunks; others: NeededPieces.
  static constexpr int kTotals = kStages * kStageBytes;
  static constexpr int kMarks =
      kTotals + (Kind == GateKind::Uniform ? NeededPieces::kBytes : 4 * Shape::kChannels * 4);  ///< see Skip
  static constexpr int kBarriers = kMarks + 32;
  static constexpr int kBytes = kBarriers + Pipeline<kStages>::kBarrierBytes;
  static_assert(kStages >= 2);
  static_assert(kBytes <= ptx::kSharedBytesSm90);
};

/// Two adjacent channels of a token in a matrix [kChunk][Channels] of gates.
template <GateKind Kind, int Channels>
SEQPAR_DEVICE float2 readGates(const char* gates, int token, int channel) {
  const char* const at = gates + (token * Channels + channel) * bytesOf(Kind);
  if (Kind == GateKind::Full) return *reinterpret_cast<const float2*>(at);
  return Numbers<Bfloat16>::unpack(*reinterpret_cast<const uint32_t*>(at));
}

/// log2Decay() of two gates.
SEQPAR_DEVICE float2 log2Pair(float2 gates) {
  return make_float2(ptx::maxNan(gates.x * kLog2e, kLeastLog2), ptx::maxNan(gates.y * kLog2e, kLeastLog2));
}

/// Transform warpgroup: zero-fills the rows of a matrix of gates after the item's tokens.
SEQPAR_DEVICE void clearGates(char* gates, int rowBytes, int begin) {
  const int thread = static_cast<int>(threadIdx.x) % kGroupThreads;
  for (int at = begin * rowBytes + 16 * thread; at < kChunk * rowBytes; at += 16 * kGroupThreads) {
    *reinterpret_cast<uint4*>(gates + at) = make_uint4(0, 0, 0, 0);
  }
}

}  // namespace seqpar::attn::forward_sm90
