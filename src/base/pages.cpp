#include "base/pages.h"

#include <sys/mman.h>

#include <cstdint>
#include <cstdlib>

#include "base/memory.h"

namespace seqpar {
namespace {

constexpr size_t kPage = 4096;
constexpr size_t kLargePage = size_t{2} << 20;

}  // namespace

void FreePages::operator()(std::byte* memory) const noexcept {
  std::free(memory);  // NOLINT: the unique pointer that calls this owns it
}

Pages allocatePages(size_t bytes, const char* what) {
  const size_t alignment = bytes >= kLargePage ? kLargePage : kPage;
  if (bytes > SIZE_MAX - alignment) failNoMemory(what, bytes);
  Pages pages(static_cast<std::byte*>(std::aligned_alloc(alignment, (bytes + alignment - 1) / alignment * alignment)));
  if (pages == nullptr) failNoMemory(what, bytes);
  if (alignment == kLargePage) madvise(pages.get(), bytes, MADV_HUGEPAGE);  // a hint; small pages work, too
  return pages;
}

}  // namespace seqpar
