// Host memory for buffers.
#pragma once

#include <cstddef>
#include <memory>

namespace seqpar {

struct FreePages {
  void operator()(std::byte* memory) const noexcept;
};

using Pages = std::unique_ptr<std::byte, FreePages>;

/// Memory aligned to 4096, not initialized; from 2 MiB on aligned to that, and on large pages where the system allows
/// it. bytes > 0. SystemError in the name of `what` if there is no memory.
Pages allocatePages(size_t bytes, const char* what);

}  // namespace seqpar
