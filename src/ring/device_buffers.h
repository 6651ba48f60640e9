// The buffers of a ring on a GPU.
#pragma once

#include <cstddef>
#include <functional>
#include <vector>

#include "device/cuda.h"
#include "ring/backend.h"

namespace seqpar {

/// Indexes all tensors of all sets; owns the memory that the caller did not provide, on the current device.
class DeviceRingBuffers {
 public:
  explicit DeviceRingBuffers(const RingBuffers& buffers) : tensors_(buffers.mostBytes.size()) {
    for (int set = 0; set < buffers.sets; ++set) {
      const auto& given = set == 0 ? buffers.home : givenScratch(buffers, set);
      for (std::size_t tensor = 0; tensor < tensors_; ++tensor) {
        const std::size_t bytes = buffers.mostBytes[tensor];
        if (!given.empty()) {
          pointers_.push_back(given[tensor]);
        } else if (bytes == 0) {
          pointers_.push_back(nullptr);
        } else {
          own_.push_back(allocateDevice(bytes, "a buffer of a ring"));
          pointers_.push_back(own_.back().get());
        }
      }
    }
  }

  std::byte* at(int set, std::size_t tensor) const { return pointers_[static_cast<std::size_t>(number(set, tensor))]; }
  int number(int set, std::size_t tensor) const { return set * static_cast<int>(tensors_) + static_cast<int>(tensor); }
  const std::vector<std::byte*>& all() const { return pointers_; }

 private:
  static const std::vector<std::byte*>& givenScratch(const RingBuffers& buffers, int set) {
    static const std::vector<std::byte*> none;
    return buffers.scratch.empty() ? none : buffers.scratch[static_cast<std::size_t>(set) - 1];
  }

  std::size_t tensors_;
  std::vector<std::byte*> pointers_;  ///< by index
  std::vector<DeviceMemory> own_;
};

}  // namespace seqpar
