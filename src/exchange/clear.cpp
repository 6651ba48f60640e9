#include "exchange/clear.h"

#include <cstring>

#include "exchange/walk.h"

namespace seqpar {

void clearOnHost(std::span<const Piece> pieces, std::span<std::byte* const> buffers) {
  PieceWalk<std::byte> walk;
  for (const Piece& piece : pieces) walk.add(piece, buffers[static_cast<size_t>(piece.buffer)]);
  while (walk.left() > 0) {
    const auto part = walk.next(walk.left());
    std::memset(part.data(), 0, part.size());
  }
}

}  // namespace seqpar
