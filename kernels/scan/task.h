// Kernel argument of an element-wise All-Scan, passed by value.
#pragma once

#include <cstddef>
#include <cstdint>

#include "kernels/fifo_layout.h"
#include "kernels/peers.h"
#include "kernels/scan/arrays.h"
#include "seqpar/seqpar.h"

namespace seqpar {

/// Division of values below 2^31 by a constant divisor.
class Divider {
 public:
  Divider() = default;
  /// 1 <= divisor < 2^31.
  explicit Divider(std::uint32_t divisor) : divisor_(divisor) {
    while ((std::uint64_t{1} << (shift_ - 31)) < divisor) ++shift_;
    factor_ = ((std::uint64_t{1} << shift_) + divisor - 1) / divisor;
  }

  SEQPAR_BOTH std::uint32_t quotient(std::uint32_t number) const {
    return static_cast<std::uint32_t>(number * factor_ >> shift_);
  }
  SEQPAR_BOTH std::uint32_t divisor() const { return divisor_; }

 private:
  std::uint64_t factor_ = std::uint64_t{1} << 31;  // at most 2^32
  std::uint32_t divisor_ = 1;
  std::uint32_t shift_ = 31;
};

/// A half-open range of vecs, or of packets.
struct VecRange {
  std::uint32_t begin = 0, end = 0;
  SEQPAR_BOTH std::uint32_t size() const { return end - begin; }
};

struct ScanTask : ScanArrays<std::byte> {
  /// Limits of one kernel: heads with flags, and elements.
  static constexpr std::uint32_t kMostHeads = 4096;
  static constexpr std::uint32_t kMostElements = (1U << 31) - 1;

  std::uint32_t elements = 0;
  Divider span;  ///< elements of a factor
  Divider head;  ///< elements of a head
  seqparDataType_t stateType = seqparFloat32;
  seqparDataType_t wireType = seqparFloat32;
  seqparDecayForm_t decayForm = seqparDecayLinear;
  bool aligned = false;               ///< all buffers are aligned to 16 bytes
  bool flags = false;                 ///< some head has a flag
  int channels = 1;                   ///< CTAs of this call
  std::uint32_t channelElements = 0;  ///< of every channel except the last; see cut()
  int position = 0;
  int positions = 1;
  std::int8_t peerAt[kMostPeers] = {};          ///< the peer at each position
  std::int8_t positionOf[kMostPeers] = {};      ///< the position of each peer; -1: not in this scan
  std::uint32_t forgets[kMostHeads / 32] = {};  ///< bits: the head has a flag
  std::uint32_t resets[kMostHeads / 32] = {};   ///< bits: the head has RESET_IN

  SEQPAR_BOTH bool first() const { return position == 0; }
  SEQPAR_BOTH bool last() const { return position + 1 == positions; }

  /// Divides the elements among at most `count` channels, on the host, since divisions are slow in kernels. Parts are
  /// nearly equal and start at cache line boundaries.
  void cut(int count) {
    constexpr std::uint32_t kUnit = 128;
    const std::uint32_t units = (elements + kUnit - 1) / kUnit;
    const auto parts = static_cast<std::uint32_t>(count);
    const std::uint32_t each = units == 0 ? 1 : (units + parts - 1) / parts;
    channelElements = each * kUnit;
    channels = units == 0 ? 1 : static_cast<int>((units + each - 1) / each);
  }
  /// A channel's part, in vecs of `vec` elements.
  SEQPAR_BOTH VecRange part(int channel, std::uint32_t vec) const {
    const std::uint32_t vecs = (elements + vec - 1) / vec;
    const std::uint32_t begin = channelElements / vec * static_cast<std::uint32_t>(channel);
    const std::uint32_t end = begin + channelElements / vec;
    return {begin < vecs ? begin : vecs, end < vecs ? end : vecs};
  }
};

}  // namespace seqpar
