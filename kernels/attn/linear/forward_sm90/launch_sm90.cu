#include "kernels/attn/linear/forward_sm90.h"

#include <cuda_runtime.h>

#include "kernels/attn/linear/forward_sm90/instances_sm90.h"
#include "kernels/attn/linear/forward_sm90/needed_chunks_sm90.cuh"
#include "kernels/attn/linear/launch.cuh"
#include "kernels/attn/linear/sequence.h"

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

int attribute(cudaDeviceAttr which) {
  int device = 0, value = 0;
  if (cudaGetDevice(&device) != cudaSuccess) return 0;
  return cudaDeviceGetAttribute(&value, which, device) == cudaSuccess ? value : 0;
}

__global__ void __launch_bounds__(NeededChunks::kThreads) neededChunks(const __grid_constant__ NeededChunks task) {
  __shared__ NeededChunks::Memory memory;
  ptx::griddepcontrolLaunchDependents();
  task.run(memory);
}

/// Launches NeededChunks, which starts after all earlier work.
cudaError_t findNeeded(int* needed, const LinearProblem& problem, bool backward, const Launch& launch) {
  LaunchRecord record;
  record.writes = {needed};
  record.overlaps = false;
  startsEarly(record, launch);
  const NeededChunks task{problem, needed, backward};
  const dim3 grid(static_cast<unsigned>(NeededChunks::ctas(problem)));
  return launchKernel(neededChunks, grid, NeededChunks::kThreads, 0, launch.stream, false, task);
}

template <Pass P>
bool launchStates(const SegmentStates& pass, int segments, const Input& keys, const Input& values, const Launch& launch,
                  int* needed, int& error) {
  const LinearProblem& problem = pass.problem;
  StatesKernel kernel;
  error = cudaSuccess;
  // A CTA takes a little longer for two heads of 64 columns than for one, and pass 3 overlaps a short second round.
  const int64_t single = itemCount(problem, pass.heads, segments, tilesOf(problem) * keyBlocks(problem.dk));
  const bool listed = needed != nullptr && problem.gate != Gate::Channel &&
                      NeededPieces::supports(problem, pass.segments.count),
             many = listed || 4 * single > 5 * int64_t{forward_sm90::ctasAtOnce(problem)},
             paired = joinsShortHeads(problem) || (pairs(pass) && many);
  if (!setArguments(kernel, pass, segments, keys, values, paired)) return false;
  if (kernel.items == 0) return true;
  KernelLaunch on = {launch.ctas, false, launch.stream};
  if (listed) {
    error = findNeeded(needed, problem, P == Pass::Backward, launch);
    if (error != cudaSuccess) return true;
    kernel.needed = needed;
    if (on.ctas == 0) on.ctas = forward_sm90::ctasAtOnce(problem);
  }
  const bool conditional = problem.gate == Gate::Channel && needed != nullptr;
  if (conditional) kernel.needed = needed;
  const bool early = startsEarly(recordOf(pass), launch);
  on.overlaps = early || conditional;  // the kernel waits before all accesses
  error = problem.type == seqparFloat16 ? runStates<Float16, P>(kernel, paired, on)
                                        : runStates<Bfloat16, P>(kernel, paired, on);
  return true;
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

namespace {

/// Whether a problem with at least `least` channels fits.
bool fitsFrom(int least, const LinearProblem& problem) {
  constexpr int64_t kMostTokens = INT64_C(1) << 30;
  return problem.type != seqparFloat32 && problem.dk >= least && problem.dk <= kMostKeyDimension &&
         problem.tokens > 0 && problem.tokens < kMostTokens && problem.batch > 0 && problem.batch < kMostTokens &&
         attribute(cudaDevAttrComputeCapabilityMajor) == 9 && attribute(cudaDevAttrComputeCapabilityMinor) == 0;
}

}  // namespace

bool fits(const LinearProblem& problem) {
  // Of heads with up to 64 channels, only two per CTA are faster here than in the other kernels.
  const bool paired = pairsHeads(problem) && hasFactors(problem);
  const int least = joinsShortHeads(problem) ? 0 : paired ? kSwizzleColumns : kSwizzleColumns + 1;
  return fitsFrom(least, problem);
}

size_t workspaceSize(const LinearProblem& problem) {
  return keyBlocks(problem.dk) == 1
             ? 0
             : static_cast<size_t>(forward_sm90::ctasAtOnce(problem)) * SweepMemory::kFloats * sizeof(float);
}

int ctasAtOnce(const LinearProblem&) {
  return attribute(cudaDevAttrMultiProcessorCount);
}

bool segmentStates(const SegmentStates& pass, int segments, const Launch& launch, int& error, int* needed) {
  return launchStates<Pass::Forward>(pass, segments, pass.problem.k, pass.problem.v, launch, needed, error);
}

bool segmentStateGradients(const SegmentStateGradients& pass, int segments, const Launch& launch, int& error,
                           int* needed) {
  const SegmentStates states = {pass.problem, pass.segments, pass.heads, pass.maps};
  return launchStates<Pass::Backward>(states, segments, pass.problem.q, pass.dOut, launch, needed, error);
}

bool packs(const Outputs& pass) {
  const LinearProblem& problem = pass.problem;
  OutputsKernel kernel;
  return fits(problem) && problem.gate != Gate::Channel && problem.dk == Shape::kChannels &&
         problem.dv % Shape::kColumns == 0 && setArguments(kernel, pass);
}

bool outputs(const Outputs& pass, const Launch& launch, int& error) {
  const LinearProblem& problem = pass.problem;
  OutputsKernel kernel;
  error = cudaSuccess;
  const bool wide = keyBlocks(problem.dk) > 1;
  if (wide && pass.workspace == nullptr) return false;
  if (!setArguments(kernel, pass)) return false;
  if (kernel.items == 0) return true;
  kernel.pass.mapsVisible = mapsVisible(pass, launch.sequence);
  const bool overlaps = startsEarly(recordOf(kernel.pass), launch);
  // The workspace has room for as many CTAs.
  const int most = forward_sm90::ctasAtOnce(problem),
            ctas = wide && (launch.ctas == 0 || launch.ctas > most) ? most : launch.ctas;
  const KernelLaunch how = {ctas, overlaps, launch.stream};
  error = problem.type == seqparFloat16 ? runOutputs<Float16>(kernel, how) : runOutputs<Bfloat16>(kernel, how);
  return true;
}

}  // namespace seqpar::attn::forward_sm90
