// The composition of the maps of consecutive positions, in fp32.
#pragma once

#include <optional>

#include "scan/message.h"

namespace seqpar {

/// One block of the composition. It is initialized by start(), and extended to the right by then(), or to the left when
/// another fold calls then() with it.
class Fold {
 public:
  Fold(Affine& affine, Block block);

  /// Sets the fold to the map (coefficients, state); coefficients == nullptr: absolute.
  void start(const float* coefficients, Values state);
  void start(const Fold& other) { start(other.coefficients(), other.state()); }
  void start(const MapLayout& layout, const std::byte* message) {
    start(layout.coefficients(message), layout.state(message));
  }

  /// Appends the map of the following positions.
  void then(const float* coefficients, Values state);
  void then(const Fold& later) { then(later.coefficients(), later.state()); }
  void then(const MapLayout& layout, const std::byte* message) {
    then(layout.coefficients(message), layout.state(message));
  }

  /// nullptr: absolute.
  const float* coefficients() const {
    return absolute_ ? nullptr : reinterpret_cast<const float*>(coefficients_->data());
  }
  Values state() const { return {state_.data(), seqparFloat32}; }

  /// Writes the map in `layout`, which has coefficients if and only if this map has.
  void write(const MapLayout& layout, Target message) const;

 private:
  Affine* affine_;
  Block block_;
  bool absolute_ = true;
  MessageBuffer state_;
  std::optional<MessageBuffer> coefficients_;
};

}  // namespace seqpar
