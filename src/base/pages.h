// Host memory for buffers.
#pragma once

#include <cstddef>
#include <memory>

namespace seqpar {

struct FreePages {
  void operator()(std::byte* memory) const noexcept;
};

using Pages = std::unique_ptr<std::byte, FreePages>;

/// Uninitialized memory, aligned to 4096 bytes; from 2 MiB on aligned to 2 MiB, with large pages if the system allows
/// it. bytes > 0. SystemError in the name of `what` if there is no memory.
Pages allocatePages(size_t bytes, const char* what);

}  // namespace seqpar
