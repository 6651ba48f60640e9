#include "exchange/clear.h"

#include <cstring>

#include "exchange/walk.h"

namespace seqpar {

void clearOnHost(std::span<const StridedRegion> regions, std::span<std::byte* const> buffers) {
  RegionWalk<std::byte> walk;
  for (const StridedRegion& region : regions) walk.add(region, buffers[static_cast<size_t>(region.buffer)]);
  while (walk.left() > 0) {
    const auto part = walk.next(walk.left());
    std::memset(part.data(), 0, part.size());
  }
}

}  // namespace seqpar
