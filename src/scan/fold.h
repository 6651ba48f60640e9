// The composition of the maps of neighboring positions, kept in fp32.
#pragma once

#include <optional>

#include "scan/message.h"

namespace seqpar {

/// One block of the composition. It begins with start() and grows to the right, by then(), or to the left, when another
/// fold is continued with it.
class Fold {
 public:
  Fold(Affine& affine, Block block);

  /// Becomes the map (coefficients, state); coefficients == nullptr: absolute.
  void start(const float* coefficients, Values state);
  void start(const Fold& other) { start(other.coefficients(), other.state()); }
  void start(const MapLayout& layout, const std::byte* message) {
    start(layout.coefficients(message), layout.state(message));
  }

  /// Appends the map of the positions that follow.
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

  /// Writes the map in `layout`, which has coefficients if and only if this map does.
  void write(const MapLayout& layout, Target message) const;

 private:
  Affine* affine_;
  Block block_;
  bool absolute_ = true;
  MessageBuffer state_;
  std::optional<MessageBuffer> coefficients_;
};

}  // namespace seqpar
