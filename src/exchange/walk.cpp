#include "exchange/walk.h"

namespace seqpar {

StridedRegion simplified(const StridedRegion& region) {
  if (region.count == std::array<size_t, 3>{1, 1, 1}) return region;
  StridedRegion out;
  out.buffer = region.buffer;
  out.offset = region.offset;
  out.run = region.run;
  size_t axis = out.count.size();  // the outermost used so far
  for (size_t from = region.count.size(); from-- > 0;) {
    if (region.count[from] == 1) continue;
    const bool outermost = axis == out.count.size();
    const size_t inside = outermost ? out.run : out.count[axis] * out.stride[axis];
    if (region.stride[from] == inside) {
      (outermost ? out.run : out.count[axis]) *= region.count[from];
    } else {
      --axis;
      out.count[axis] = region.count[from];
      out.stride[axis] = region.stride[from];
    }
  }
  return out;
}

}  // namespace seqpar
