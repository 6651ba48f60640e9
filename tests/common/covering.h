// Pairwise coverage. A sanitizer multiplies the time of a test: there, products of three parameters are thinned out so
// that all pairs of values still occur.
#pragma once

#include <cstddef>
#include <initializer_list>
#include <vector>

#include "sanitized.h"

namespace seqpar::test {

#ifdef SEQPAR_SANITIZED
inline constexpr bool kSanitized = true;
#else
inline constexpr bool kSanitized = false;
#endif

/// Whether to run the i-th value of one parameter with the j-th of another and the k-th of a third, which has `count`.
/// Always without a sanitizer; otherwise with one k for each (i, j). All pairs occur if i and j each have at least
/// `count` consecutive values.
constexpr bool covers(std::size_t i, std::size_t j, std::size_t k, std::size_t count) {
  return !kSanitized || (i + j) % count == k;
}

/// All values; with a sanitizer the first `count`, for values that differ in numbers and not in accesses or barriers.
template <class T>
std::vector<T> thinned(std::initializer_list<T> all, std::size_t count = 1) {
  return {all.begin(), kSanitized ? all.begin() + count : all.end()};
}

}  // namespace seqpar::test
