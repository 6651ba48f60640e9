// Routes and reductions executed for all ranks together, element by element, by their definitions.
#pragma once

#include <cstddef>
#include <random>
#include <vector>

#include "exchange/reduction.h"
#include "exchange/route.h"

namespace seqpar::test {

using Bytes = std::vector<std::byte>;
/// [rank][buffer]
using Buffers = std::vector<std::vector<Bytes>>;

/// The offsets of a region's bytes, in order.
std::vector<size_t> bytesOf(const StridedRegion& region);

/// Throws std::runtime_error if payloads differ in length, regions leave their buffer, or two received regions overlap.
void simulate(const std::vector<Route>& routes, const Buffers& sends, Buffers& receives);

/// As reduceOnHost(), for fp32, one element after the other. Throws std::runtime_error if payloads differ in length.
void simulate(const std::vector<Reduction>& reductions, const Buffers& sends, Buffers& receives);

/// Elements as bytes and back.
template <typename T>
Bytes toBytes(const std::vector<T>& values) {
  const auto* const begin = reinterpret_cast<const std::byte*>(values.data());
  return {begin, begin + values.size() * sizeof(T)};
}
template <typename T>
std::vector<T> fromBytes(const Bytes& bytes) {
  const auto* const begin = reinterpret_cast<const T*>(bytes.data());
  return {begin, begin + bytes.size() / sizeof(T)};
}

/// `ranks` lengths from 0 to `most`, some of them 0.
std::vector<size_t> randomLengths(std::mt19937_64& random, size_t ranks, size_t most);

/// The ranks 0..count-1 in order, or in any order.
std::vector<int> inOrder(size_t count);
std::vector<int> shuffled(std::mt19937_64& random, size_t count);

/// Pointers to the buffers of a rank, in the engine's form.
std::vector<const std::byte*> pointersTo(const std::vector<Bytes>& buffers);
std::vector<std::byte*> pointersTo(std::vector<Bytes>& buffers);

}  // namespace seqpar::test
