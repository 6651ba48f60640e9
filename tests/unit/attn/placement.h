// Memory of ranks' arguments in a test, and how their calls run.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <string>
#include <vector>

namespace seqpar::attn::test {

/// Memory and streams of ranks that are not on a host. Tests without one use host memory.
struct Placement {
  std::function<void*(int rank, size_t bytes)> allocate;                         ///< lives as long as the case
  std::function<void(int rank, void* to, const void* from, size_t bytes)> copy;  ///< in either direction, complete
  /// Runs calls(stream) on a stream and waits for its work.
  std::function<std::string(int rank, const std::function<std::string(void* stream)>& calls)> run;
  std::function<void()> barrier;  ///< all ranks
};

/// Host memory, and its copy in the memory of the rank's calls.
class Placed {
 public:
  Placed(void* host, size_t bytes, const Placement* placement, int rank)
      : host_(host), bytes_(bytes), placement_(placement), rank_(rank) {
    if (placement == nullptr) return;
    placed_ = placement->allocate(rank, bytes);
    placement->copy(rank, placed_, host, bytes);
  }
  void* data() const { return placement_ == nullptr ? host_ : placed_; }
  void fetch() const {
    if (placement_ != nullptr) placement_->copy(rank_, host_, placed_, bytes_);
  }

 private:
  void* host_;
  size_t bytes_;
  const Placement* placement_;
  int rank_;
  void* placed_ = nullptr;
};

/// A plan's reserve, with only the required alignment.
class Reserve {
 public:
  Reserve(size_t bytes, const Placement* placement, int rank) {
    if (bytes == 0) return;
    if (placement == nullptr) onHost_.resize(bytes / sizeof(Unit) + 2);
    const auto place = reinterpret_cast<uintptr_t>(
        placement == nullptr ? onHost_.data() : placement->allocate(rank, bytes + sizeof(Unit)));
    data_ = reinterpret_cast<void*>(place % (2 * sizeof(Unit)) == 0 ? place + sizeof(Unit) : place);
  }
  void* data() const { return data_; }

 private:
  struct alignas(16) Unit {
    std::byte bytes[16];
  };
  std::vector<Unit> onHost_;
  void* data_ = nullptr;
};

}  // namespace seqpar::attn::test
