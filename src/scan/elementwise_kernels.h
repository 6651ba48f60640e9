// The loop of the elementwise hop, one for each Isa and triple of types. Each element is read once, combined and
// written to every place that wants it.
#pragma once

#include <cstddef>

#include "base/convert_kernels.h"
#include "base/simd.h"
#include "base/types.h"

namespace seqpar {

/// What one call of a kernel works on: `count` elements in a row.
struct HopRun {
  const void* x = nullptr;  ///< nullptr: zeros, and every coefficient counts as 0
  const void* s = nullptr;  ///< nullptr: zeros
  void* prefix = nullptr;   ///< gets x, in the type of s; nullptr: not wanted
  void* total = nullptr;    ///< gets c x + s, in the type of s; nullptr: not wanted
  void* wire = nullptr;     ///< gets c x + s; nullptr: not wanted
  /// From the first element's on: one for every element if span is 1, else one for every `span` elements.
  const float* coefficients = nullptr;
  size_t span = 1;            ///< 1 or a multiple of 16
  size_t skip = 0;            ///< elements of the first span that lie before the first element; a multiple of 16
  size_t count = 0;           ///< elements
  bool streamPrefix = false;  ///< store past the caches; prefix is aligned to kStreamAlign
  bool streamTotal = false;   ///< the same for total
};

using HopKernel = void (*)(const HopRun& run);

/// [type of x][type of s][type of wire], by the numbers of seqparDataType_t.
struct HopKernels {
  HopKernel kernel[3][3][3];
};

/// Enough for every Isa's streaming stores.
inline constexpr size_t kStreamAlign = 64;

extern const HopKernels kHopPortable;
#if defined(__x86_64__)
extern const HopKernels kHopAvx2;
extern const HopKernels kHopAvx512;
#endif

/// The kernels for `isa`; portable ones where this build has none for it.
const HopKernels& hopKernels(Isa isa);

template <class Lanes, class X, class S, class W>
struct HopLoop {
  using V = typename Lanes::V;
  static constexpr size_t kLanes = Lanes::kLanes;

  explicit HopLoop(const HopRun& run)
      : x(static_cast<const X*>(run.x)),
        s(static_cast<const S*>(run.s)),
        prefix(static_cast<S*>(run.prefix)),
        total(static_cast<S*>(run.total)),
        wire(static_cast<W*>(run.wire)),
        streamPrefix(run.streamPrefix),
        streamTotal(run.streamTotal) {}

  // Both inputs are loaded before anything is stored: outputs may be the inputs' memory.
  void whole(size_t i, V c) const {
    const V before = x != nullptr ? Lanes::load(x + i) : Lanes::zero();
    const V own = s != nullptr ? Lanes::load(s + i) : Lanes::zero();
    const V after = Lanes::multiplyAdd(c, before, own);
    if (prefix != nullptr) put(prefix + i, before, streamPrefix);
    if (total != nullptr) put(total + i, after, streamTotal);
    if (wire != nullptr) Lanes::store(wire + i, after);
  }

  void part(size_t i, size_t count, V c) const {
    const V before = x != nullptr ? loadPart<Lanes>(x + i, count) : Lanes::zero();
    const V own = s != nullptr ? loadPart<Lanes>(s + i, count) : Lanes::zero();
    const V after = Lanes::multiplyAdd(c, before, own);
    if (prefix != nullptr) storePart<Lanes>(prefix + i, before, count);
    if (total != nullptr) storePart<Lanes>(total + i, after, count);
    if (wire != nullptr) storePart<Lanes>(wire + i, after, count);
  }

  static void put(S* to, V v, bool stream) {
    if (stream) {
      Lanes::stream(to, v);
    } else {
      Lanes::store(to, v);
    }
  }

  const X* x;
  const S* s;
  S* prefix;
  S* total;
  W* wire;
  bool streamPrefix;
  bool streamTotal;
};

template <class Lanes, class X, class S, class W>
void hopKernel(const HopRun& run) {
  const HopLoop<Lanes, X, S, W> loop(run);
  const float* c = run.coefficients;
  size_t i = 0;
  if (run.span == 1) {
    for (; i + Lanes::kLanes <= run.count; i += Lanes::kLanes) {
      loop.whole(i, run.x != nullptr ? Lanes::load(c + i) : Lanes::zero());
    }
    if (i < run.count) loop.part(i, run.count - i, loadPart<Lanes>(c + i, run.count - i));
  } else {
    size_t spanEnd = run.span - run.skip;
    while (i < run.count) {
      const typename Lanes::V value = Lanes::set(run.x != nullptr ? *c : 0.0F);
      const size_t end = spanEnd < run.count ? spanEnd : run.count;
      for (; i + Lanes::kLanes <= end; i += Lanes::kLanes) loop.whole(i, value);
      if (i < end) loop.part(i, end - i, value);
      i = end;
      spanEnd += run.span;
      ++c;
    }
  }
  if (run.streamPrefix || run.streamTotal) Lanes::fence();
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
