#include "kernels/attn/linear/forward_sm90/tensor_map_sm90.h"

#include <cuda_runtime.h>

namespace seqpar::attn::forward_sm90 {
namespace {

using Encode = decltype(&cuTensorMapEncodeTiled);

/// The driver's function, without linking to the driver; NULL if there is none.
Encode driverFunction() {
  static const Encode function = [] {
    void* found = nullptr;
    cudaDriverEntryPointQueryResult result = cudaDriverEntryPointSymbolNotFound;
    constexpr unsigned kSince = 12000;
    const cudaError_t error =
        cudaGetDriverEntryPointByVersion("cuTensorMapEncodeTiled", &found, kSince, cudaEnableDefault, &result);
    return error == cudaSuccess && result == cudaDriverEntryPointSuccess ? reinterpret_cast<Encode>(found) : nullptr;
  }();
  return function;
}

CUtensorMapDataType typeOf(int type) {
  if (type == seqparFloat32) return CU_TENSOR_MAP_DATA_TYPE_FLOAT32;
  return type == seqparFloat16 ? CU_TENSOR_MAP_DATA_TYPE_FLOAT16 : CU_TENSOR_MAP_DATA_TYPE_BFLOAT16;
}

}  // namespace

bool encodeMap(CUtensorMap& map, const TensorBox& box, const LinearProblem& problem) {
  const Encode encode = driverFunction();
  if (encode == nullptr) return false;
  const int64_t size = box.type == seqparFloat32 ? 4 : 2;
  constexpr int64_t kAny = 16;  // bytes: valid stride for dimensions with one element, where the caller's stride may be
                                // arbitrary
  const auto stride = [&](int64_t elements, int64_t count) {
    return static_cast<cuuint64_t>(count > 1 ? elements * size : kAny);
  };
  const cuuint64_t dimensions[4] = {static_cast<cuuint64_t>(box.columns), static_cast<cuuint64_t>(box.heads),
                                    static_cast<cuuint64_t>(problem.tokens), static_cast<cuuint64_t>(problem.batch)};
  const cuuint64_t strides[3] = {stride(box.tensor.head, box.heads), stride(box.tensor.token, problem.tokens),
                                 stride(box.tensor.batch, problem.batch)};
  const cuuint32_t boxes[4] = {static_cast<cuuint32_t>(box.boxColumns), 1, static_cast<cuuint32_t>(box.boxTokens), 1};
  const cuuint32_t steps[4] = {1, 1, 1, 1};
  return encode(&map, typeOf(box.type), 4, const_cast<void*>(box.tensor.data), dimensions, strides, boxes, steps,
                CU_TENSOR_MAP_INTERLEAVE_NONE, box.swizzled ? CU_TENSOR_MAP_SWIZZLE_128B : CU_TENSOR_MAP_SWIZZLE_NONE,
                CU_TENSOR_MAP_L2_PROMOTION_L2_256B, CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE) == CUDA_SUCCESS;
}

}  // namespace seqpar::attn::forward_sm90
