// Stubs for builds without CUDA.
#include <stdexcept>

#include "gpu.h"
#include "group.h"
#include "names.h"
#include "nccl.h"

namespace seqpar::perf {
namespace {

constexpr const char* kReason = "this build has no CUDA; expected one with -DSEQPAR_CUDA=ON";

}  // namespace

int gpuCount() {
  throw UsageError(std::string("option --device: ") + kReason);
}

size_t gpuMemoryInUse() {
  throw std::logic_error(kReason);
}

void gpuUse(int) {
  throw std::logic_error(kReason);
}

std::unique_ptr<Gpu> makeGpu(Group&, int, int) {
  throw std::logic_error(kReason);
}

void gpuCopy(void*, const void*, size_t) {
  throw std::logic_error(kReason);
}

void gpuFill(void*, int, size_t) {
  throw std::logic_error(kReason);
}

std::unique_ptr<Nccl> makeNccl(Group&, std::string& reason, std::span<const int>) {
  reason = kReason;
  return nullptr;
}

}  // namespace seqpar::perf
