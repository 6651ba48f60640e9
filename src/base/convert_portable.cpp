#include "base/convert_kernels.h"
#include "base/simd_portable.h"

namespace seqpar {

constinit const ConvertKernels kConvertPortable = makeConvertKernels<LanesPortable>();

}  // namespace seqpar
