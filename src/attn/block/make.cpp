// The choice between block kernels.
#include "attn/block/block.h"
#include "attn/block/host.h"
#include "attn/block/tiles.h"
#include "seqpar/attn_plan.h"
#ifdef SEQPAR_ATTN_CUDA
#include "attn/block/cuda.h"
#endif

namespace seqpar::attn {

std::unique_ptr<Block> makeBlock(Exec& exec, const BlockShape& shape) {
#ifdef SEQPAR_ATTN_CUDA
  if (exec.device() != SEQPAR_HOST_DEVICE) return makeCudaBlock(exec, shape);
#endif
  auto host = std::make_unique<HostBlock>(static_cast<HostExec&>(exec), shape);
  if (shape.kernel.forward == nullptr) return host;
  return std::make_unique<TiledBlock>(exec, shape, std::move(host));
}

}  // namespace seqpar::attn

const char* seqparAttnGpuKernels(void) {
#ifdef SEQPAR_ATTN_CUDA
  return seqpar::attn::Sdpa::kernels().c_str();
#else
  return "none (built without CUDA)";
#endif
}
