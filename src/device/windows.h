// Directly mapped windows: plain pointers between ranks of one process, CUDA IPC between processes of one host.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "bootstrap/allgather.h"
#include "device/cuda.h"
#include "device/group.h"

namespace seqpar {

/// A random token that is unique to this process: process ids repeat between containers.
std::uint64_t processToken();

/// A directly mapped window. The group owns the memory, which outlives the mapping, so that a late access of a peer is
/// valid.
class MappedWindow {
 public:
  MappedWindow(DeviceMemory memory, std::size_t bytes) : memory_(std::move(memory)), bytes_(bytes) {}
  MappedWindow(const MappedWindow&) = delete;
  MappedWindow& operator=(const MappedWindow&) = delete;
  ~MappedWindow() { unmap(); }

  /// Collective over `control`: maps the memory of the ranks `peers`, which include this rank. Returns the failure as
  /// text, or "" on success. All ranks must call it, even if another rank has failed.
  std::string map(Allgather& control, const std::vector<int>& peers);
  /// Unmaps the peers' memory; this rank's memory stays valid.
  void unmap() noexcept;

  std::size_t bytes() const { return bytes_; }
  std::byte* at(int peer) const { return pointers_[static_cast<std::size_t>(peer)]; }
  std::byte* own() const { return memory_.get(); }

 private:
  DeviceMemory memory_;
  std::size_t bytes_;
  std::vector<std::byte*> pointers_;  ///< by peer number
  std::vector<void*> opened_;         ///< IPC mappings to close
};

}  // namespace seqpar
