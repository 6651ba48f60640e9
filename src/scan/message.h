// Payloads of the algorithms: the state of a block, or its whole map with the coefficients before the state.
#pragma once

#include <cstddef>
#include <memory>
#include <new>

#include "base/convert.h"
#include "base/memory.h"
#include "scan/affine/affine.h"

namespace seqpar {

/// Uninitialized memory with the alignment of a message.
class MessageBuffer {
 public:
  static constexpr size_t kAlignment = 64;

  explicit MessageBuffer(size_t bytes)
      : data_(allocateFor("a message of All-Scan", bytes, [&] {
          return static_cast<std::byte*>(::operator new(bytes, std::align_val_t(kAlignment)));
        })) {}

  std::byte* data() { return data_.get(); }
  const std::byte* data() const { return data_.get(); }

 private:
  struct Free {
    void operator()(std::byte* data) const { ::operator delete(data, std::align_val_t(kAlignment)); }
  };
  std::unique_ptr<std::byte, Free> data_;
};

/// Whether combining a map with its predecessors needs coefficients. A map that starts at position 0 needs none: it is
/// absolute, a state.
enum class MapKind { Relative, Absolute };

/// The layout of one block's map in a message: coefficients in fp32 | pad to 64 | state in the wire type. An absolute
/// map contains only the state.
class MapLayout {
 public:
  MapLayout(const Affine& affine, const ScanProblem& problem, Block block, MapKind kind = MapKind::Relative);
  /// For a block of known size.
  MapLayout(BlockSize size, seqparDataType_t wireType, MapKind kind = MapKind::Relative);

  /// Size of the message.
  size_t bytes() const { return stateOffset_ + stateBytes_; }
  seqparDataType_t wireType() const { return wireType_; }
  /// Size of the state only.
  size_t stateBytes() const { return stateBytes_; }

  Target state(Target message) const { return message.after(stateOffset_); }
  Values state(const std::byte* message) const { return {message + stateOffset_, wireType_}; }

  /// nullptr for an absolute map.
  float* coefficients(std::byte* message) const { return absolute_ ? nullptr : reinterpret_cast<float*>(message); }
  const float* coefficients(const std::byte* message) const {
    return absolute_ ? nullptr : reinterpret_cast<const float*>(message);
  }

  /// Writes this rank's own map of `block` to `message`.
  void pack(Affine& affine, Block block, Target message) const;

 private:
  seqparDataType_t wireType_;
  bool absolute_;
  size_t stateBytes_;
  size_t stateOffset_;
};

/// Size of a block's state in the wire type.
inline size_t stateBytes(const Affine& affine, const ScanProblem& problem, Block block) {
  return affine.stateElements(block) * sizeOf(problem.wireType);
}

}  // namespace seqpar
