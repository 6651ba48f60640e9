// Storage of the thread variables that every call accesses.
#pragma once

/// In a library without CUDA, an access is one load. A library with the CUDA runtime has 12 KiB of thread variables,
/// more than glibc reserves for libraries that a program opens later: there, an access calls a function of glibc.
#if SEQPAR_SMALL_THREAD_VARIABLES
#define SEQPAR_THREAD_VARIABLE [[gnu::tls_model("initial-exec")]]
#else
#define SEQPAR_THREAD_VARIABLE
#endif
