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

std::optional<size_t> extentOf(const StridedRegion& region) {
  size_t extent = region.run;
  for (size_t axis = 0; axis < region.count.size(); ++axis) {
    size_t steps = 0;
    if (region.count[axis] == 0 || __builtin_mul_overflow(region.count[axis] - 1, region.stride[axis], &steps) ||
        __builtin_add_overflow(extent, steps, &extent)) {
      return std::nullopt;
    }
  }
  return extent;
}

}  // namespace seqpar
