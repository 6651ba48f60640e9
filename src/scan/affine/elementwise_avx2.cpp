#include "base/simd_avx2.h"
#include "scan/affine/elementwise_kernels.h"

namespace seqpar {

constinit const HopKernels kHopAvx2 = makeHopKernels<LanesAvx2>();

}  // namespace seqpar
