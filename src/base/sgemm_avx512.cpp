#include "base/sgemm_kernels.h"

namespace seqpar {

constinit const SgemmKernel kSgemmAvx512 = sgemm<64, 12>;

}  // namespace seqpar
