// Functions that kernels and tests on the CPU share.
#pragma once

#ifdef __CUDACC__
#define SEQPAR_BOTH __host__ __device__ __forceinline__
#else
#define SEQPAR_BOTH inline
#endif
