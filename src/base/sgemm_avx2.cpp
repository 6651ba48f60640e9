#include "base/sgemm_kernels.h"

namespace seqpar {

constinit const SgemmKernel kSgemmAvx2 = sgemm<32, 6>;

}  // namespace seqpar
