// Values of the library's data types, and exact comparison of buffers.
#pragma once

#include <cstddef>
#include <span>

#include "names.h"
#include "seqpar/seqpar.h"

namespace seqpar::perf {

/// The data types by nccl-tests' names.
const Names& typeNames();

size_t bytesOf(int type);

/// Calls run() with a copy of `choices` for each type, with `type` set to it.
template <typename Choices, typename Run>
void forEachType(const Choices& choices, Run&& run) {
  for (const int type : choices.types) {
    Choices one = choices;
    one.type = type;
    run(one);
  }
}

/// Converts `values`, which must be exact in `type`, to `type`.
void encode(std::span<const float> values, int type, void* out);

/// Element `index` of a buffer of `type`.
float decode(const void* data, size_t index, int type);

/// The number of the `count` elements that differ in value; -0 equals 0, and NaN equals nothing.
size_t countWrong(const void* got, const void* want, size_t count, int type);

}  // namespace seqpar::perf
