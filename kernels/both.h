// What functions are declared with that kernels share with host code and with tests on CPU threads: kernels when nvcc
// reads a header, ordinary functions otherwise.
#pragma once

#ifdef __CUDACC__
#define SEQPAR_BOTH __host__ __device__
#define SEQPAR_BOTH_INLINE __host__ __device__ __forceinline__
#define SEQPAR_DEVICE __device__ __forceinline__
/// What is rare is kept out of the way: a kernel that runs once is as fast as its instructions come.
#define SEQPAR_RARE __device__ __noinline__
#define SEQPAR_UNROLL _Pragma("unroll")
#define SEQPAR_ROLLED _Pragma("unroll 1")
#else
#define SEQPAR_BOTH
#define SEQPAR_BOTH_INLINE inline
#define SEQPAR_DEVICE inline
#define SEQPAR_RARE inline
#define SEQPAR_UNROLL
#define SEQPAR_ROLLED
#endif
