#include "kernels/attn/short_conv/args.h"

#include "kernels/attn/short_conv/run.h"

namespace seqpar::attn::short_conv {

size_t termsSize(const ConvTask& task) {
  return static_cast<size_t>(task.batch * backwardStretches(task).count * (task.width + 1) * task.channels) *
         sizeof(float);
}

}  // namespace seqpar::attn::short_conv
