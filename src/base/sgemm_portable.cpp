#include "base/sgemm_kernels.h"

namespace seqpar {

constinit const SgemmKernel kSgemmPortable = sgemm<16, 4>;

}  // namespace seqpar
