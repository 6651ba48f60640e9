#include "device/arena.h"

#include <algorithm>

namespace seqpar {
namespace {

constexpr std::size_t kAlignment = 256;
constexpr std::size_t kLeastChunk = std::size_t{1} << 20;

}  // namespace

void DeviceArena::reset() noexcept {
  current_ = 0;
  used_ = 0;
}

std::byte* DeviceArena::take(std::size_t bytes) {
  const std::size_t room = std::max<std::size_t>(1, (bytes + kAlignment - 1) / kAlignment) * kAlignment;
  while (current_ < chunks_.size() && chunks_[current_].bytes - used_ < room) {
    ++current_;
    used_ = 0;
  }
  if (current_ == chunks_.size()) {
    std::size_t total = 0;
    for (const Chunk& chunk : chunks_) total += chunk.bytes;
    const std::size_t size = std::max({room, kLeastChunk, total});
    const RelaxedCapture relaxed;
    chunks_.push_back({allocateDevice(size, "scratch memory of collectives"), size});
    used_ = 0;
  }
  std::byte* const taken = chunks_[current_].memory.get() + used_;
  used_ += room;
  return taken;
}

}  // namespace seqpar
