#include "base/simd_portable.h"
#include "scan/affine/elementwise_kernels.h"

namespace seqpar {

constinit const HopKernels kHopPortable = makeHopKernels<LanesPortable>();

}  // namespace seqpar
