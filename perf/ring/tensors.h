// The tensors of ring_perf.
#pragma once

#include <memory>
#include <vector>

#include "common/buffer.h"
#include "common/group.h"

namespace seqpar::perf {

/// One rank's tensors, and buffers for received ones: set 0 is home, the other sets receive.
class Tensors {
 public:
  /// `bytes` divided into `count` tensors, in `sets` sets; home holds values that identify rank, tensor and index.
  Tensors(size_t bytes, int count, int sets, Group& group);

  int count() const { return static_cast<int>(sizes_.size()); }
  const std::vector<size_t>& sizes() const { return sizes_; }
  void* const* set(int number) const { return pointers_.data() + static_cast<size_t>(number) * sizes_.size(); }

  /// Invalidates all sets except home.
  void corrupt();
  /// Copies home to memory of the same kind elsewhere.
  void copyHome(void* const* pointers) const;
  /// Bytes that differ from the home set of rank `source`.
  size_t wrong(void* const* pointers, int source) const;

  Group& group() const { return group_; }
  /// The rank at this distance after this one, with wrap-around.
  int rankAfter(int distance) const { return (group_.rank() + distance + group_.size()) % group_.size(); }

 private:
  Group& group_;
  std::vector<size_t> sizes_;
  std::vector<std::unique_ptr<Buffer>> buffers_;
  std::vector<void*> pointers_;
};

}  // namespace seqpar::perf
