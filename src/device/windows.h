// Windows by our own mapping: plain pointers between ranks of one process, CUDA IPC between processes of one host.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "bootstrap/allgather.h"
#include "device/cuda.h"
#include "device/group.h"

namespace seqpar {

/// A number that no other process has: a process id repeats between containers.
std::uint64_t processToken();

/// A window of our own mapping. The memory is the group's: it outlives the mapping, so that a peer that is late finds
/// something there.
class MappedWindow {
 public:
  MappedWindow(DeviceMemory memory, std::size_t bytes) : memory_(std::move(memory)), bytes_(bytes) {}
  MappedWindow(const MappedWindow&) = delete;
  MappedWindow& operator=(const MappedWindow&) = delete;
  ~MappedWindow() { unmap(); }

  /// Collective over `control`: maps the memory of the ranks `peers` (this one among them). What could not be mapped is
  /// told in words; "" if all went well. All ranks must come here, whatever happens to any.
  std::string map(Allgather& control, const std::vector<int>& peers);
  /// Forgets the peers' memory; the own one stays.
  void unmap() noexcept;

  std::size_t bytes() const { return bytes_; }
  std::byte* at(int peer) const { return pointers_[static_cast<std::size_t>(peer)]; }
  std::byte* own() const { return memory_.get(); }

 private:
  DeviceMemory memory_;
  std::size_t bytes_;
  std::vector<std::byte*> pointers_;  ///< by number among the peers
  std::vector<void*> opened_;         ///< what has to be closed
};

}  // namespace seqpar
