#include "base/convert_kernels.h"
#include "base/simd_avx2.h"

namespace seqpar {

constinit const ConvertKernels kConvertAvx2 = makeConvertKernels<LanesAvx2>();

}  // namespace seqpar
