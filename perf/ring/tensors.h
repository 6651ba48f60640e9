// The tensors of ring_perf.
#pragma once

#include <memory>
#include <vector>

#include "common/buffer.h"
#include "common/group.h"

namespace seqpar::perf {

/// One rank's tensors, and where those of the others arrive: set 0 is home, the others are for arrivals.
class Tensors {
 public:
  /// `bytes` cut into `count` tensors, in `sets` sets; home is filled with what tells ranks, tensors and places apart.
  Tensors(size_t bytes, int count, int sets, Group& group);

  int count() const { return static_cast<int>(sizes_.size()); }
  const std::vector<size_t>& sizes() const { return sizes_; }
  void* const* set(int number) const { return pointers_.data() + static_cast<size_t>(number) * sizes_.size(); }

  /// Overwrites all sets but home.
  void spoil();
  /// Copies home to memory of the same kind elsewhere.
  void copyHome(void* const* pointers) const;
  /// Bytes that are not what the rank `source` has at home.
  size_t wrong(void* const* pointers, int source) const;

  Group& group() const { return group_; }
  /// The rank so far after this one, going round.
  int rankAfter(int distance) const { return (group_.rank() + distance + group_.size()) % group_.size(); }

 private:
  Group& group_;
  std::vector<size_t> sizes_;
  std::vector<std::unique_ptr<Buffer>> buffers_;
  std::vector<void*> pointers_;
};

}  // namespace seqpar::perf
