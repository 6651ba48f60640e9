// The arrays of a scan, under the same names from the call to the kernel.
#pragma once

#include <cstddef>

namespace seqpar {

/// One rank's arrays. `Unit`: element type of state, initial, prefix and total; void if a separate field has the type.
template <typename Unit>
struct ScanArrays {
  const Unit* state = nullptr;
  const float* transition = nullptr;  ///< null: ones
  const Unit* initial = nullptr;      ///< null: zeros. Used at position 0 only
  Unit* prefix = nullptr;             ///< null: not written
  Unit* total = nullptr;              ///< null: not written

  /// The arrays advanced by `bytes` of states and `numbers` elements of the transition, with another element type.
  template <typename Other>
  ScanArrays<Other> from(std::size_t bytes, std::size_t numbers) const {
    const auto in = [bytes](const void* data) {
      return data == nullptr ? nullptr : static_cast<const std::byte*>(data) + bytes;
    };
    const auto out = [bytes](void* data) { return data == nullptr ? nullptr : static_cast<std::byte*>(data) + bytes; };
    ScanArrays<Other> result;
    result.state = reinterpret_cast<const Other*>(in(state));
    result.transition = transition == nullptr ? nullptr : transition + numbers;
    result.initial = reinterpret_cast<const Other*>(in(initial));
    result.prefix = reinterpret_cast<Other*>(out(prefix));
    result.total = reinterpret_cast<Other*>(out(total));
    return result;
  }
};

}  // namespace seqpar
