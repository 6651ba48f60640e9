// The bytes of pieces, one contiguous part after the other.
#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <span>
#include <vector>

#include "exchange/route.h"

namespace seqpar {

/// The same bytes in the same order as few and long runs.
Piece simplified(const Piece& piece);

/// Goes through a list of pieces once.
template <typename Byte>
class PieceWalk {
 public:
  /// Appends a piece of `buffer`.
  void add(const Piece& piece, Byte* buffer) {
    if (piece.bytes() == 0) return;
    pieces_.push_back({simplified(piece), buffer});
    left_ += piece.bytes();
  }

  size_t left() const { return left_; }

  struct Region {
    Piece piece;
    Byte* buffer;
  };
  /// All that was added, simplified.
  std::span<const Region> regions() const { return pieces_; }

  /// Bytes of the contiguous part that comes next; 0 at the end.
  size_t contiguous() const { return left_ == 0 ? 0 : pieces_[current_].piece.run - taken_; }

  /// Where the next bytes are; null at the end.
  const Byte* ahead() const {
    if (left_ == 0) return nullptr;
    const Region& region = pieces_[current_];
    return region.buffer + region.piece.offset + at_ + taken_;
  }

  /// The next bytes, contiguous: 1 to `most`, none at the end.
  std::span<Byte> next(size_t most) {
    if (left_ == 0) return {};
    const Region& region = pieces_[current_];
    const size_t bytes = std::min(most, region.piece.run - taken_);
    const std::span<Byte> part(region.buffer + region.piece.offset + at_ + taken_, bytes);
    left_ -= bytes;
    taken_ += bytes;
    if (taken_ == region.piece.run) nextRun(region.piece);
    return part;
  }

 private:
  void nextRun(const Piece& piece) {
    taken_ = 0;
    for (size_t axis = index_.size(); axis-- > 0;) {
      at_ += piece.stride[axis];
      if (++index_[axis] < piece.count[axis]) return;
      at_ -= piece.stride[axis] * piece.count[axis];
      index_[axis] = 0;
    }
    ++current_;
  }

  std::vector<Region> pieces_;
  size_t left_ = 0;
  size_t current_ = 0;  ///< piece
  std::array<size_t, 3> index_{};
  size_t at_ = 0;     ///< where the run begins, from the piece's begin
  size_t taken_ = 0;  ///< bytes of the run
};

}  // namespace seqpar
