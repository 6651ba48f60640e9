// Arguments of the MATRIX scan's kernels, and the division of the work among channels: panels of 16 columns of a head's
// state.
#pragma once

#include <cstddef>
#include <cstdint>

#include "kernels/fifo_layout.h"
#include "kernels/peers.h"
#include "kernels/scan/arrays.h"
#include "seqpar/seqpar.h"

namespace seqpar {

constexpr int kPanelColumns = 16;
/// Rows of one tensor core product.
constexpr int kPanelRows = 16;
/// The most heads of a launch: the kernel's parameter contains their flags.
constexpr int kMatrixHeads = 4096;

struct HeadBits {
  std::uint32_t words[kMatrixHeads / 32] = {};

  SEQPAR_BOTH bool operator[](int head) const { return (words[head / 32] >> (head % 32) & 1U) != 0; }
  void set(int head) { words[head / 32] |= std::uint32_t{1} << (head % 32); }
};

/// Adjacent panels of a head that a channel processes together.
struct PanelGroup {
  int head, first, count;
};

/// ScanProblem for a kernel. Pointers are to the first head of the launch.
struct MatrixScan : ScanArrays<void> {
  int heads = 0, dk = 0, dv = 0;
  int stateType = seqparFloat32, wireType = seqparFloat32;
  bool reverse = false;
  bool paired = false;  ///< two adjacent columns, the first one even, may be loaded and stored as one
  int position = 0, positions = 1;
  std::int8_t order[kMostPeers] = {};  ///< the peer at each position
  int group = 1;                       ///< panels of a PanelGroup
  HeadBits resets, cuts;

  SEQPAR_BOTH bool first() const { return position == 0; }
  SEQPAR_BOTH bool last() const { return position == positions - 1; }
  SEQPAR_BOTH int panels() const { return (dv + kPanelColumns - 1) / kPanelColumns; }
  SEQPAR_BOTH int groupsOfHead() const { return (panels() + group - 1) / group; }
  SEQPAR_BOTH int groups() const { return heads * groupsOfHead(); }
  SEQPAR_BOTH PanelGroup at(int number) const {
    const int begin = number % groupsOfHead() * group;
    const int left = panels() - begin;
    return {number / groupsOfHead(), begin, left < group ? left : group};
  }

  /// Whether this rank's map of the head is independent of the incoming state.
  SEQPAR_BOTH bool forgets(int head) const { return resets[head] || cuts[head]; }
};

/// A channel's half-open range of groups.
struct GroupRange {
  int begin, end;
};

/// Division of a scan's groups among channels, the same on all ranks and for all kernels. Computed by the host, because
/// divisions are slow in kernels.
class ChannelShares {
 public:
  ChannelShares(int groups, int channels) : each_(groups / channels), more_(groups % channels) {}

  SEQPAR_BOTH GroupRange of(int channel) const {
    const int begin = channel * each_ + (channel < more_ ? channel : more_);
    return {begin, begin + each_ + (channel < more_ ? 1 : 0)};
  }

 private:
  int each_, more_;
};

}  // namespace seqpar
