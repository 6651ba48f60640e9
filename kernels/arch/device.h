// Declaration macros of device functions. Kernels share them with host code and with tests on CPU threads: device
// functions when nvcc compiles the header, ordinary functions otherwise.
#pragma once

#ifdef __CUDACC__
#define SEQPAR_BOTH __host__ __device__
#define SEQPAR_BOTH_INLINE __host__ __device__ __forceinline__
#define SEQPAR_DEVICE __device__ __forceinline__
/// For rare paths: a kernel that runs once is bound by its instruction fetches.
#define SEQPAR_DEVICE_NOINLINE __device__ __noinline__
#define SEQPAR_UNROLL _Pragma("unroll")
#define SEQPAR_ROLLED _Pragma("unroll 1")
#else
#define SEQPAR_BOTH
#define SEQPAR_BOTH_INLINE inline
#define SEQPAR_DEVICE inline
#define SEQPAR_DEVICE_NOINLINE inline
#define SEQPAR_UNROLL
#define SEQPAR_ROLLED
#endif
