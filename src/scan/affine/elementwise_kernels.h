// The loop of the elementwise hop, one for each Isa and triple of types. Each element is read once, combined, and
// written to every requested output.
#pragma once

#include <cstddef>
#include <cstdint>

#include "base/convert_kernels.h"
#include "base/simd.h"
#include "base/types.h"

namespace seqpar {

/// Arguments of one kernel call: `count` consecutive elements.
struct HopRun {
  const void* x = nullptr;  ///< nullptr: zeros, and every coefficient counts as 0
  const void* s = nullptr;  ///< nullptr: zeros
  void* prefix = nullptr;   ///< receives x, in the type of s; nullptr: not written
  void* total = nullptr;    ///< receives c x + s, in the type of s; nullptr: not written
  void* wire = nullptr;     ///< receives c x + s; nullptr: not written
  bool streamed = false;    ///< wire is written past the caches
  /// Starting at the first element's coefficient: one per element if span is 1, otherwise one per `span` elements.
  const float* coefficients = nullptr;
  size_t span = 1;   ///< 1 or a multiple of 16
  size_t skip = 0;   ///< elements of the first span that precede the first element; a multiple of 16
  size_t count = 0;  ///< elements
};

using HopKernel = void (*)(const HopRun& run);

/// [type of x][type of s][type of wire], indexed by seqparDataType_t.
struct HopKernels {
  HopKernel kernel[3][3][3];
};

extern const HopKernels kHopPortable;
#if defined(__x86_64__)
extern const HopKernels kHopAvx2;
extern const HopKernels kHopAvx512;
#endif

/// The kernels for `isa`; portable ones if this build has none for it.
const HopKernels& hopKernels(Isa isa);

// Memory accesses of a loop: kLanes elements, or fewer at the end.
template <class Lanes>
struct WholeAccess {
  template <class T>
  auto fetch(const T* from) const {
    return Lanes::fetch(from);
  }
  template <class T, class Raw>
  void store(T* to, Raw raw) const {
    Lanes::store(to, raw);
  }
  template <class T, class Raw>
  void stream(T* to, Raw raw) const {
    Lanes::stream(to, raw);
  }
};

template <class Lanes>
struct PartAccess {
  size_t count;
  template <class T>
  auto fetch(const T* from) const {
    return fetchPart<Lanes>(from, count);
  }
  template <class T, class Raw>
  void store(T* to, Raw raw) const {
    storePart<Lanes>(to, raw, count);
  }
  template <class T, class Raw>
  void stream(T* to, Raw raw) const {
    store(to, raw);
  }
};

template <class A, class B>
inline constexpr bool kSameType = false;
template <class A>
inline constexpr bool kSameType<A, A> = true;

template <class Lanes, class X, class S, class W>
struct HopLoop {
  using V = typename Lanes::V;

  explicit HopLoop(const HopRun& run)
      : x(static_cast<const X*>(run.x)),
        s(static_cast<const S*>(run.s)),
        prefix(static_cast<S*>(run.prefix)),
        total(static_cast<S*>(run.total)),
        wire(static_cast<W*>(run.wire)),
        streamed(run.streamed && reinterpret_cast<uintptr_t>(run.wire) % (Lanes::kLanes * sizeof(W)) == 0) {}

  // Both inputs are read before any output is written, so outputs may alias them. A value with two outputs of one type
  // is rounded once; a value that keeps its type is not rounded.
  template <class Access>
  void step(size_t i, V c, const Access& access) const {
    const V own = s != nullptr ? Lanes::widen(s, access.fetch(s + i)) : Lanes::zero();
    V after = own;
    if (x != nullptr) {
      const auto raw = access.fetch(x + i);
      const V before = Lanes::widen(x, raw);
      after = Lanes::multiplyAdd(c, before, own);
      if (prefix != nullptr) {
        if constexpr (kSameType<X, S>) {
          access.store(prefix + i, raw);
        } else {
          access.store(prefix + i, Lanes::narrow(prefix, before));
        }
      }
    } else if (prefix != nullptr) {
      access.store(prefix + i, Lanes::narrow(prefix, Lanes::zero()));
    }
    if constexpr (kSameType<S, W>) {
      const auto rounded = Lanes::narrow(wire, after);
      if (total != nullptr) access.store(total + i, rounded);
      if (wire != nullptr) send(i, rounded, access);
    } else {
      if (total != nullptr) access.store(total + i, Lanes::narrow(total, after));
      if (wire != nullptr) send(i, Lanes::narrow(wire, after), access);
    }
  }

  template <class Raw, class Access>
  void send(size_t i, Raw raw, const Access& access) const {
    if (streamed) {
      access.stream(wire + i, raw);
    } else {
      access.store(wire + i, raw);
    }
  }

  const X* x;
  const S* s;
  S* prefix;
  S* total;
  W* wire;
  bool streamed;
};

template <class Lanes, class X, class S, class W>
void hopKernel(const HopRun& run) {
  constexpr size_t kLanes = Lanes::kLanes;
  const HopLoop<Lanes, X, S, W> loop(run);
  const WholeAccess<Lanes> whole;
  const float* c = run.coefficients;
  size_t i = 0;
  if (run.span == 1) {
    for (; i + kLanes <= run.count; i += kLanes) loop.step(i, Lanes::fetch(c + i), whole);
    if (i < run.count) {
      const size_t rest = run.count - i;
      loop.step(i, fetchPart<Lanes>(c + i, rest), PartAccess<Lanes>{rest});
    }
  } else {
    size_t spanEnd = run.span - run.skip;
    while (i < run.count) {
      const typename Lanes::V value = Lanes::set(*c);
      const size_t end = spanEnd < run.count ? spanEnd : run.count;
      for (; i + kLanes <= end; i += kLanes) loop.step(i, value, whole);
      if (i < end) loop.step(i, value, PartAccess<Lanes>{end - i});
      i = end;
      spanEnd += run.span;
      ++c;
    }
  }
  if (loop.streamed) Lanes::fence();
}

template <class Lanes, class X, class S>
constexpr void fillHopKernels(HopKernel (&row)[3]) {
  row[0] = hopKernel<Lanes, X, S, float>;
  row[1] = hopKernel<Lanes, X, S, Half>;
  row[2] = hopKernel<Lanes, X, S, Bfloat16>;
}

template <class Lanes, class X>
constexpr void fillHopKernels(HopKernel (&plane)[3][3]) {
  fillHopKernels<Lanes, X, float>(plane[0]);
  fillHopKernels<Lanes, X, Half>(plane[1]);
  fillHopKernels<Lanes, X, Bfloat16>(plane[2]);
}

template <class Lanes>
constexpr HopKernels makeHopKernels() {
  HopKernels all{};
  fillHopKernels<Lanes, float>(all.kernel[0]);
  fillHopKernels<Lanes, Half>(all.kernel[1]);
  fillHopKernels<Lanes, Bfloat16>(all.kernel[2]);
  return all;
}

}  // namespace seqpar
