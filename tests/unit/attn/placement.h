// Where ranks' arguments lie in a test, and how their calls run.
#pragma once

#include <cstddef>
#include <functional>
#include <string>
#include <vector>

namespace seqpar::attn::test {

/// Memory and streams of ranks that are not on a host. Tests without one use host memory.
struct Placement {
  std::function<void*(int rank, size_t bytes)> allocate;                         ///< lives as long as the case
  std::function<void(int rank, void* to, const void* from, size_t bytes)> copy;  ///< in either direction, complete
  /// calls(stream) on a stream, whose work it waits for.
  std::function<std::string(int rank, const std::function<std::string(void* stream)>& calls)> run;
  std::function<void()> meet;  ///< all ranks
};

/// Host memory, and its copy where the rank's calls want it.
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

}  // namespace seqpar::attn::test
