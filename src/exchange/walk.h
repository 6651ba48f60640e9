// The bytes of regions, one contiguous part after the other.
#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <optional>
#include <span>
#include <vector>

#include "exchange/route.h"

namespace seqpar {

/// The same bytes in the same order, with as few and as long runs as possible.
StridedRegion simplified(const StridedRegion& region);

/// Bytes from the first to the last byte of a region that is not empty; nothing if they are no number of bytes.
std::optional<size_t> extentOf(const StridedRegion& region);

/// Iterates once over a list of regions.
template <typename Byte>
class RegionWalk {
 public:
  /// Appends a region of `buffer`.
  void add(const StridedRegion& region, Byte* buffer) {
    if (region.bytes() == 0) return;
    regions_.push_back({simplified(region), buffer});
    left_ += region.bytes();
  }

  /// Starts again, with the regions in `buffers`, which their StridedRegion::buffer indexes.
  void restart(std::span<Byte* const> buffers) {
    left_ = 0;
    for (Placed& placed : regions_) {
      placed.buffer = buffers[static_cast<size_t>(placed.region.buffer)];
      left_ += placed.region.bytes();
    }
    current_ = at_ = taken_ = 0;
    index_ = {};
  }

  size_t left() const { return left_; }

  struct Placed {
    StridedRegion region;
    Byte* buffer;
  };
  /// All regions so far, simplified.
  std::span<const Placed> placed() const { return regions_; }

  /// Bytes of the next contiguous part; 0 at the end.
  size_t contiguous() const { return left_ == 0 ? 0 : regions_[current_].region.run - taken_; }

  /// Address of the next bytes; null at the end.
  const Byte* ahead() const {
    if (left_ == 0) return nullptr;
    const Placed& placed = regions_[current_];
    return placed.buffer + placed.region.offset + at_ + taken_;
  }

  /// The next bytes, contiguous: 1 to `most`, none at the end.
  std::span<Byte> next(size_t most) {
    if (left_ == 0) return {};
    const Placed& placed = regions_[current_];
    const size_t bytes = std::min(most, placed.region.run - taken_);
    const std::span<Byte> part(placed.buffer + placed.region.offset + at_ + taken_, bytes);
    left_ -= bytes;
    taken_ += bytes;
    if (taken_ == placed.region.run) nextRun(placed.region);
    return part;
  }

 private:
  void nextRun(const StridedRegion& region) {
    taken_ = 0;
    for (size_t axis = index_.size(); axis-- > 0;) {
      at_ += region.stride[axis];
      if (++index_[axis] < region.count[axis]) return;
      at_ -= region.stride[axis] * region.count[axis];
      index_[axis] = 0;
    }
    ++current_;
  }

  std::vector<Placed> regions_;
  size_t left_ = 0;
  size_t current_ = 0;  ///< region
  std::array<size_t, 3> index_{};
  size_t at_ = 0;     ///< offset of the run in its region
  size_t taken_ = 0;  ///< bytes consumed from the run
};

}  // namespace seqpar
