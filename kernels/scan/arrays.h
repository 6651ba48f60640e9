// The arrays of a scan, under one name each from the call to the kernel.
#pragma once

#include <cstddef>

namespace seqpar {

/// One rank's arrays. `Unit`: what state, initial, prefix and total are taken for; void where a type beside them says.
template <typename Unit>
struct ScanArrays {
  const Unit* state = nullptr;
  const float* transition = nullptr;  ///< null: ones
  const Unit* initial = nullptr;      ///< null: zeros, also where position 0 is not this one
  Unit* prefix = nullptr;             ///< null: not wanted
  Unit* total = nullptr;              ///< null: not wanted

  /// The arrays from `bytes` of states and `numbers` of the transition on, as units of another kind.
  template <typename Other>
  ScanArrays<Other> from(std::size_t bytes, std::size_t numbers) const {
    const auto in = [bytes](const void* data) {
      return data == nullptr ? nullptr : static_cast<const std::byte*>(data) + bytes;
    };
    const auto out = [bytes](void* data) { return data == nullptr ? nullptr : static_cast<std::byte*>(data) + bytes; };
    ScanArrays<Other> there;
    there.state = reinterpret_cast<const Other*>(in(state));
    there.transition = transition == nullptr ? nullptr : transition + numbers;
    there.initial = reinterpret_cast<const Other*>(in(initial));
    there.prefix = reinterpret_cast<Other*>(out(prefix));
    there.total = reinterpret_cast<Other*>(out(total));
    return there;
  }
};

}  // namespace seqpar
