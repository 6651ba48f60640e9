// Loops for the compiler to vectorize, for several processors.
#pragma once

// Compiled for several instruction sets; the loader picks the best one that the processor supports. Not with
// sanitizers: the loader would run their code before they have started.
#if defined(__x86_64__) && defined(__GNUC__) && !defined(__clang__) && !defined(SEQPAR_SANITIZED)
#define SEQPAR_VECTOR_CLONES __attribute__((target_clones("arch=x86-64-v4", "arch=x86-64-v3", "default")))
#define SEQPAR_HAS_VECTOR_CLONES true
#else
#define SEQPAR_VECTOR_CLONES
#define SEQPAR_HAS_VECTOR_CLONES false
#endif

namespace seqpar {

constexpr bool kHasVectorClones = SEQPAR_HAS_VECTOR_CLONES;

/// exp(r) for |r| <= ln(2) / 2, by a polynomial, for a number or a vector. Always inline: an out-of-line copy would use
/// one instruction set only.
template <class T>
[[gnu::always_inline]] inline T exponentialNearZero(T r) {
  T p = r * (1.0f / 5040.0f) + 1.0f / 720.0f;
  p = p * r + 1.0f / 120.0f;
  p = p * r + 1.0f / 24.0f;
  p = p * r + 1.0f / 6.0f;
  p = p * r + 0.5f;
  p = (p * r) * r + r + 1.0f;
  return p;
}

}  // namespace seqpar
