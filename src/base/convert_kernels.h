// The loops of convert.h, one for each Isa and pair of types.
#pragma once

#include <cstddef>

#include "base/simd.h"
#include "base/types.h"

namespace seqpar {

using ConvertKernel = void (*)(const void* from, void* to, std::size_t count);

/// [from type][to type], by the numbers of seqparDataType_t.
struct ConvertKernels {
  ConvertKernel kernel[3][3];
};

extern const ConvertKernels kConvertPortable;
#if defined(__x86_64__)
extern const ConvertKernels kConvertAvx2;
extern const ConvertKernels kConvertAvx512;
#endif

/// The kernels for `isa`; portable ones if this build contains none for it.
const ConvertKernels& convertKernels(Isa isa);

/// fetch() of `count` < kLanes elements; the other lanes are 0.
template <class Lanes, class T>
auto fetchPart(const T* from, std::size_t count) {
  T part[Lanes::kLanes] = {};
  for (std::size_t i = 0; i < count; ++i) part[i] = from[i];
  return Lanes::fetch(static_cast<const T*>(part));
}

/// store() of the first `count` < kLanes lanes.
template <class Lanes, class T, class Raw>
void storePart(T* to, Raw raw, std::size_t count) {
  T part[Lanes::kLanes];
  Lanes::store(part, raw);
  for (std::size_t i = 0; i < count; ++i) to[i] = part[i];
}

template <class Lanes, class From, class To>
void convertKernel(const void* from, void* to, std::size_t count) {
  const From* f = static_cast<const From*>(from);
  To* t = static_cast<To*>(to);
  std::size_t i = 0;
  for (; i + Lanes::kLanes <= count; i += Lanes::kLanes) {
    Lanes::store(t + i, Lanes::narrow(t, Lanes::widen(f, Lanes::fetch(f + i))));
  }
  if (i == count) return;
  storePart<Lanes>(t + i, Lanes::narrow(t, Lanes::widen(f, fetchPart<Lanes>(f + i, count - i))), count - i);
}

template <class Lanes>
constexpr ConvertKernels makeConvertKernels() {
  return {
      {{convertKernel<Lanes, float, float>, convertKernel<Lanes, float, Half>, convertKernel<Lanes, float, Bfloat16>},
       {convertKernel<Lanes, Half, float>, convertKernel<Lanes, Half, Half>, convertKernel<Lanes, Half, Bfloat16>},
       {convertKernel<Lanes, Bfloat16, float>, convertKernel<Lanes, Bfloat16, Half>,
        convertKernel<Lanes, Bfloat16, Bfloat16>}}};
}

}  // namespace seqpar
