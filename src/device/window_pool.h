// The windows of a group. A released window is kept and reused, since memory that other ranks have mapped must not be
// freed before all of them have unmapped it.
#pragma once

#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "device/windows.h"

namespace seqpar {

class WindowPool : public std::enable_shared_from_this<WindowPool> {
 public:
  /// Returns the window to the pool in the destructor.
  class WindowLease : public PeerWindow {
   public:
    WindowLease(std::shared_ptr<WindowPool> pool, std::size_t number) : pool_(std::move(pool)), number_(number) {}
    ~WindowLease() override { pool_->giveBack(number_); }
    std::size_t bytes() const override { return pool_->window(number_).bytes(); }
    std::byte* at(int peer) const override { return pool_->window(number_).at(peer); }

   private:
    std::shared_ptr<WindowPool> pool_;
    std::size_t number_;
  };

  /// Collective over `control`, with the device current: a window of at least `bytes` between `peers`. Null, with
  /// `reason` as text, if this rank could not map it; all ranks then discard the window.
  std::unique_ptr<PeerWindow> lend(Allgather& control, const std::vector<int>& peers, std::size_t bytes,
                                   cudaStream_t stream, std::string& reason);

  /// Unmaps the memory of other ranks; no window may be used afterwards.
  void unmapAll() noexcept;

 private:
  struct Entry {
    std::unique_ptr<MappedWindow> window;
    bool inUse = false;
  };

  std::size_t choose(Allgather& control, std::size_t bytes);
  MappedWindow& window(std::size_t number);
  void giveBack(std::size_t number) noexcept;

  std::mutex mutex_;
  std::vector<Entry> entries_;  ///< equal indices on all ranks: windows are allocated collectively
};

}  // namespace seqpar
