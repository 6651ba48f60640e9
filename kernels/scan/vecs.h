// The state of a rank in vecs, the elements of one wire packet. A thread processes whole vecs: this file has their
// arithmetic, loads and stores.
#pragma once

#include <cmath>
#include <cstdint>

#include "kernels/arch/numbers.h"
#include "kernels/scan/task.h"

namespace seqpar {

/// Properties of vecs. `Elements`: per packet, 4 of fp32 or 8 of 16 bits. `Uniform`: a whole vec shares one factor.
/// `Fast`: states are fp32 too, all buffers are aligned, and all vecs are whole.
template <int Elements, bool Uniform, bool Fast>
struct VecShape {
  static constexpr int kElements = Elements;
  static constexpr bool kUniform = Uniform;
  static constexpr bool kFast = Fast;
  static constexpr int kFactors = Uniform ? 1 : Elements;
};
using FastVecs = VecShape<4, true, true>;
using UniformHalfVecs = VecShape<8, true, false>;
using AnyVecs = VecShape<4, false, false>;
using AnyHalfVecs = VecShape<8, false, false>;

/// c x + s; s if c is 0.
SEQPAR_DEVICE float multiplyAdd(float c, float x, float s) {
  return c == 0.0F ? s : fmaf(c, x, s);
}

template <class Shape>
class Vecs {
 public:
  static constexpr int kElements = Shape::kElements;
  static constexpr int kFactors = Shape::kFactors;

  /// A vec of a state in memory, loaded but not converted yet.
  struct Raw {
    std::uint32_t word[Shape::kElements];
  };
  struct Values {
    float at[Shape::kElements];
  };
  struct Factors {
    float at[Shape::kFactors];
  };

  SEQPAR_DEVICE explicit Vecs(const ScanTask& task) : task_(task) {}

  /// Prefetches this rank's S of a vec below `end`.
  template <class Memory>
  SEQPAR_DEVICE void prefetch(std::uint32_t vec, std::uint32_t end) const {
    if (vec >= end || task_.state == nullptr) return;
    Memory::prefetch(task_.state + static_cast<std::size_t>(vec) * kElements * (wide() ? 4 : 2));
  }

  /// Loads a vec of one of the caller's states; null: zeros. Elements past the end are zero.
  SEQPAR_DEVICE Raw fetch(const std::byte* states, std::uint32_t vec) const {
    Raw raw{};
    if (states == nullptr) return raw;
    if (Shape::kFast || (task_.aligned && whole(vec))) {
      const std::size_t packets = wide() ? kElements / 4 : 1;
      if (!wide() && kElements == 4) {
        const auto* from = reinterpret_cast<const Pair*>(states) + vec;
        raw.word[0] = from->word[0];
        raw.word[1] = from->word[1];
        return raw;
      }
      const auto* from = reinterpret_cast<const LamportPacket*>(states) + packets * vec;
      copyWords(readPacket(from), raw, 0);
      if (kElements == 8 && packets == 2) copyWords(readPacket(from + 1), raw, 4);
      return raw;
    }
    return fetchSingly(task_, states, vec);
  }

  SEQPAR_DEVICE Values widen(const Raw& raw) const {
    Values values;
    for (int i = 0; i < kElements; ++i) {
      values.at[i] = wide() ? asFloat(raw.word[i]) : fromHalf(task_.stateType, raw.word[i / 2] >> (16 * (i % 2)));
    }
    return values;
  }

  /// Writes a vec of one of the caller's states.
  SEQPAR_DEVICE void store(std::byte* states, std::uint32_t vec, const Values& values) const {
    if (!Shape::kFast && !(task_.aligned && whole(vec))) return storeSingly(task_, states, vec, values);
    if (wide()) {
      auto* to = reinterpret_cast<LamportPacket*>(states) + static_cast<std::size_t>(kElements / 4) * vec;
      for (int i = 0; i < kElements; i += 4) {
        to[i / 4] = LamportPacket{
            {asBits(values.at[i]), asBits(values.at[i + 1]), asBits(values.at[i + 2]), asBits(values.at[i + 3])}};
      }
      return;
    }
    auto* to = reinterpret_cast<Pair*>(states) + static_cast<std::size_t>(kElements / 4) * vec;
    for (int i = 0; i < kElements; i += 4) {
      to[i / 4] = Pair{{toHalves(task_.stateType, values.at[i], values.at[i + 1]),
                        toHalves(task_.stateType, values.at[i + 2], values.at[i + 3])}};
    }
  }

  SEQPAR_DEVICE LamportPacket pack(const Values& values) const {
    LamportPacket packet;
    if constexpr (kElements == 4) {
      for (int i = 0; i < 4; ++i) packet.word[i] = sendable(asBits(values.at[i]), kAbsentAsFloat);
    } else {
      for (int i = 0; i < 4; ++i) {
        packet.word[i] = sendable(toHalves(task_.wireType, values.at[2 * i], values.at[2 * i + 1]), kAbsentAsHalves);
      }
    }
    return packet;
  }

  SEQPAR_DEVICE Values unpack(const LamportPacket& packet) const {
    Values values;
    for (int i = 0; i < kElements; ++i) {
      values.at[i] =
          kElements == 4 ? asFloat(packet.word[i]) : fromHalf(task_.wireType, packet.word[i / 2] >> (16 * (i % 2)));
    }
    return values;
  }

  /// Index of an element's factor; past the end, of the last element's.
  SEQPAR_DEVICE std::uint32_t factorNumber(std::uint32_t vec, int i) const {
    const std::uint32_t element = vec * kElements + static_cast<std::uint32_t>(i);
    return task_.span.quotient(Shape::kFast || element < task_.elements ? element : task_.elements - 1);
  }

  /// True if element i is the first one that uses factor `number`.
  SEQPAR_DEVICE bool begins(std::uint32_t number, std::uint32_t vec, int i) const {
    return number * task_.span.divisor() == vec * kElements + static_cast<std::uint32_t>(i);
  }

  /// This rank's factors of a vec, exponentiated; 0 in heads that forget.
  SEQPAR_DEVICE Factors factors(std::uint32_t vec) const { return decayed(vec, factorsAt(vec)); }

  /// This rank's factors of a vec as the caller gave them: only loaded.
  SEQPAR_DEVICE Factors factorsAt(std::uint32_t vec) const {
    Factors given;
    for (int i = 0; i < kFactors; ++i) {
      given.at[i] = task_.transition == nullptr ? 1.0F : task_.transition[factorNumber(vec, i)];
    }
    return given;
  }
  /// `given`, exponentiated; 0 in heads that forget.
  SEQPAR_DEVICE Factors decayed(std::uint32_t vec, const Factors& given) const {
    Factors all;
    for (int i = 0; i < kFactors; ++i) all.at[i] = has(task_.forgets, vec, i) ? 0.0F : decayed(given.at[i]);
    return all;
  }

  /// c x + s.
  SEQPAR_DEVICE static Values apply(const Factors& c, const Values& x, const Values& s) {
    Values after;
    for (int i = 0; i < kElements; ++i) after.at[i] = multiplyAdd(c.at[i % kFactors], x.at[i], s.at[i]);
    return after;
  }

  /// The factors of (c after a).
  SEQPAR_DEVICE static Factors compose(const Factors& c, const Factors& a) {
    Factors both;
    for (int i = 0; i < kFactors; ++i) both.at[i] = c.at[i] == 0.0F || a.at[i] == 0.0F ? 0.0F : c.at[i] * a.at[i];
    return both;
  }

  /// The x that position 0 hops from, in a vec with factors `factors`: x_0, or zeros; in the latter case sets `factors`
  /// to 0.
  SEQPAR_DEVICE Values firstX(std::uint32_t vec, Factors& factors) const {
    if (task_.initial != nullptr) return widen(fetch(task_.initial, vec));
    factors = Factors{};
    return Values{};
  }

  /// Writes the outputs of a hop from x to `after`.
  SEQPAR_DEVICE void finish(std::uint32_t vec, Values x, const Values& after) const {
    if (task_.prefix != nullptr) store(task_.prefix, vec, reset(vec, x));
    if (task_.total != nullptr) store(task_.total, vec, after);
  }

 private:
  struct alignas(8) Pair {
    std::uint32_t word[2];
  };

  SEQPAR_DEVICE Values reset(std::uint32_t vec, Values x) const {
    if (!task_.flags) return x;
    // With uniform factors, the whole vec belongs to one head.
    if constexpr (Shape::kUniform) {
      return has(task_.resets, vec, 0) ? Values{} : x;
    } else {
      for (int i = 0; i < kElements; ++i) x.at[i] = has(task_.resets, vec, i) ? 0.0F : x.at[i];
      return x;
    }
  }

  SEQPAR_DEVICE bool wide() const { return Shape::kFast || task_.stateType == seqparFloat32; }
  SEQPAR_DEVICE bool whole(std::uint32_t vec) const { return (vec + 1) * kElements <= task_.elements; }

  SEQPAR_DEVICE static void copyWords(const LamportPacket& packet, Raw& raw, int at) {
    for (int i = 0; i < 4; ++i) raw.word[at + i] = packet.word[i];
  }

  SEQPAR_DEVICE_NOINLINE static Raw fetchSingly(const ScanTask& task, const std::byte* states, std::uint32_t vec) {
    Raw raw{};
    for (int i = 0; i < kElements; ++i) {
      const std::uint32_t element = vec * kElements + static_cast<std::uint32_t>(i);
      if (element >= task.elements) break;
      if (task.stateType == seqparFloat32) {
        raw.word[i] = reinterpret_cast<const std::uint32_t*>(states)[element];
      } else {
        raw.word[i / 2] |= static_cast<std::uint32_t>(reinterpret_cast<const std::uint16_t*>(states)[element])
                           << (16 * (i % 2));
      }
    }
    return raw;
  }
  SEQPAR_DEVICE_NOINLINE static void storeSingly(const ScanTask& task, std::byte* states, std::uint32_t vec,
                                                 Values values) {
    for (int i = 0; i < kElements; ++i) {
      const std::uint32_t element = vec * kElements + static_cast<std::uint32_t>(i);
      if (element >= task.elements) break;
      if (task.stateType == seqparFloat32) {
        reinterpret_cast<std::uint32_t*>(states)[element] = asBits(values.at[i]);
      } else {
        const std::uint32_t half = toHalves(task.stateType, values.at[i], 0.0F);
        reinterpret_cast<std::uint16_t*>(states)[element] = static_cast<std::uint16_t>(half);
      }
    }
  }

  SEQPAR_DEVICE static float fromHalf(seqparDataType_t type, std::uint32_t bits) {
    return type == seqparBfloat16 ? bfloatToFloat(bits & 0xffffU) : halfToFloat(bits & 0xffffU);
  }
  SEQPAR_DEVICE static std::uint32_t toHalves(seqparDataType_t type, float low, float high) {
    return type == seqparBfloat16 ? floatsToBfloats(low, high) : floatsToHalves(low, high);
  }

  SEQPAR_DEVICE bool has(const std::uint32_t* bits, std::uint32_t vec, int i) const {
    if (!task_.flags) return false;
    const std::uint32_t element = vec * kElements + static_cast<std::uint32_t>(Shape::kUniform ? 0 : i);
    const std::uint32_t head = task_.head.quotient(element < task_.elements ? element : task_.elements - 1);
    return (bits[head / 32] >> (head % 32) & 1U) != 0;
  }

  SEQPAR_DEVICE float decayed(float given) const {
    if (task_.decayForm == seqparDecayLinear) return given;
    return task_.decayForm == seqparDecayLog ? expf(given) : exp2f(given);
  }

  const ScanTask& task_;
};

}  // namespace seqpar
