#include "exchange/walk.h"

namespace seqpar {

Piece simplified(const Piece& piece) {
  Piece out;
  out.buffer = piece.buffer;
  out.offset = piece.offset;
  out.run = piece.run;
  size_t axis = out.count.size();  // the outermost that is used so far
  for (size_t from = piece.count.size(); from-- > 0;) {
    if (piece.count[from] == 1) continue;
    const bool outermost = axis == out.count.size();
    const size_t inside = outermost ? out.run : out.count[axis] * out.stride[axis];
    if (piece.stride[from] == inside) {
      (outermost ? out.run : out.count[axis]) *= piece.count[from];
    } else {
      --axis;
      out.count[axis] = piece.count[from];
      out.stride[axis] = piece.stride[from];
    }
  }
  return out;
}

}  // namespace seqpar
