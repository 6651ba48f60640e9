#include "base/convert_kernels.h"
#include "base/simd_avx512.h"

namespace seqpar {

constinit const ConvertKernels kConvertAvx512 = makeConvertKernels<LanesAvx512>();

}  // namespace seqpar
