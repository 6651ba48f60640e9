#include "base/simd_avx512.h"
#include "scan/affine/elementwise_kernels.h"

namespace seqpar {

constinit const HopKernels kHopAvx512 = makeHopKernels<LanesAvx512>();

}  // namespace seqpar
