#include "device/window_pool.h"

#include <algorithm>

namespace seqpar {
namespace {

/// Maximum number of reusable windows: the ranks exchange the free ones as bits of one word. Later windows are not
/// reused.
constexpr std::size_t kKnown = 64;
/// Exported memory shares pages of this size with other allocations of the process unless it fills them.
constexpr std::size_t kPage = std::size_t{2} << 20;

}  // namespace

std::unique_ptr<PeerWindow> WindowPool::lend(Allgather& control, const std::vector<int>& peers, std::size_t bytes,
                                             cudaStream_t stream, std::string& reason) {
  const std::size_t size = std::max<std::size_t>(1, (bytes + kPage - 1) / kPage) * kPage;
  std::size_t number = choose(control, size);
  const bool fresh = number == entries_.size();
  if (fresh) {
    auto made = std::make_unique<MappedWindow>(allocateDevice(size, "a window that peers map"), size);
    const std::lock_guard lock(mutex_);
    entries_.push_back({std::move(made), true});
  }
  MappedWindow& found = window(number);
  checkCuda(cudaMemsetAsync(found.own(), 0, found.bytes(), stream), "cudaMemsetAsync");
  checkCuda(cudaStreamSynchronize(stream), "cudaStreamSynchronize");
  // Both branches synchronize the ranks, so that no rank writes into a window that is still being cleared.
  if (fresh) {
    reason = found.map(control, peers);
    if (!reason.empty()) return nullptr;
  } else {
    std::vector<int> ranks(static_cast<std::size_t>(control.size()));
    control.gatherValues(control.rank(), std::span(ranks));
  }
  return std::make_unique<WindowLease>(shared_from_this(), number);
}

/// The smallest window that is free on all ranks and large enough; a new index if there is none.
std::size_t WindowPool::choose(Allgather& control, std::size_t bytes) {
  std::uint64_t mine = 0;
  {
    const std::lock_guard lock(mutex_);
    for (std::size_t i = 0; i < std::min(entries_.size(), kKnown); ++i) {
      if (!entries_[i].inUse && entries_[i].window->bytes() >= bytes) mine |= std::uint64_t{1} << i;
    }
  }
  std::vector<std::uint64_t> all(static_cast<std::size_t>(control.size()));
  control.gatherValues(mine, std::span(all));
  for (const auto other : all) mine &= other;

  const std::lock_guard lock(mutex_);
  std::size_t best = entries_.size();
  for (std::size_t i = 0; i < std::min(entries_.size(), kKnown); ++i) {
    if ((mine >> i & 1) == 0) continue;
    if (best == entries_.size() || entries_[i].window->bytes() < entries_[best].window->bytes()) best = i;
  }
  if (best < entries_.size()) entries_[best].inUse = true;
  return best;
}

MappedWindow& WindowPool::window(std::size_t number) {
  const std::lock_guard lock(mutex_);
  return *entries_[number].window;
}

void WindowPool::giveBack(std::size_t number) noexcept {
  const std::lock_guard lock(mutex_);
  entries_[number].inUse = false;
}

void WindowPool::unmapAll() noexcept {
  const std::lock_guard lock(mutex_);
  for (auto& entry : entries_) entry.window->unmap();
}

}  // namespace seqpar
