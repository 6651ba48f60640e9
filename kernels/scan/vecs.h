// The state of a rank in cells: what fits a line of the wire. A thread works on whole cells: this is their arithmetic,
// and how they come from memory and go there.
#pragma once

#include <cmath>
#include <cstdint>

#include "numbers.h"
#include "task.h"

namespace seqpar {

/// How cells are. `Elements`: of a line, 4 of fp32 or 8 of 16 bits. `Uniform`: one factor serves a whole cell. `Plain`:
/// states are fp32 too, all buffers are aligned, and cells are all whole.
template <int Elements, bool Uniform, bool Plain>
struct CellShape {
  static constexpr int kElements = Elements;
  static constexpr bool kUniform = Uniform;
  static constexpr bool kPlain = Plain;
  static constexpr int kFactors = Uniform ? 1 : Elements;
};
using PlainCells = CellShape<4, true, true>;
using UniformHalfCells = CellShape<8, true, false>;
using AnyCells = CellShape<4, false, false>;
using AnyHalfCells = CellShape<8, false, false>;

/// c x + s, and s itself where c is 0.
SEQPAR_LANE float multiplyAdd(float c, float x, float s) {
  return c == 0.0F ? s : fmaf(c, x, s);
}

template <class Shape>
class Cells {
 public:
  static constexpr int kElements = Shape::kElements;
  static constexpr int kFactors = Shape::kFactors;

  /// A cell of a state in memory, not yet looked at.
  struct Raw {
    std::uint32_t word[Shape::kElements];
  };
  struct Values {
    float at[Shape::kElements];
  };
  struct Factors {
    float at[Shape::kFactors];
  };

  SEQPAR_LANE explicit Cells(const ScanTask& task) : task_(task) {}

  /// Fetches this rank's S of a cell below `end` into a cache.
  template <class Memory>
  SEQPAR_LANE void prefetch(std::uint32_t cell, std::uint32_t end) const {
    if (cell >= end || task_.state == nullptr) return;
    Memory::prefetch(task_.state + static_cast<std::size_t>(cell) * kElements * (wide() ? 4 : 2));
  }

  /// A cell of one of the caller's states; null: zeros. What is past the end is zeros.
  SEQPAR_LANE Raw fetch(const std::byte* states, std::uint32_t cell) const {
    Raw raw{};
    if (states == nullptr) return raw;
    if (Shape::kPlain || (task_.aligned && whole(cell))) {
      const std::size_t lines = wide() ? kElements / 4 : 1;
      if (!wide() && kElements == 4) {
        const auto* from = reinterpret_cast<const Pair*>(states) + cell;
        raw.word[0] = from->word[0];
        raw.word[1] = from->word[1];
        return raw;
      }
      const auto* from = reinterpret_cast<const Line*>(states) + lines * cell;
      copyWords(readLine(from), raw, 0);
      if (kElements == 8 && lines == 2) copyWords(readLine(from + 1), raw, 4);
      return raw;
    }
    return fetchSingly(task_, states, cell);
  }

  SEQPAR_LANE Values widen(const Raw& raw) const {
    Values values;
    for (int i = 0; i < kElements; ++i) {
      values.at[i] = wide() ? asFloat(raw.word[i]) : fromHalf(task_.stateType, raw.word[i / 2] >> (16 * (i % 2)));
    }
    return values;
  }

  /// Writes a cell of one of the caller's states.
  SEQPAR_LANE void store(std::byte* states, std::uint32_t cell, const Values& values) const {
    if (!Shape::kPlain && !(task_.aligned && whole(cell))) return storeSingly(task_, states, cell, values);
    if (wide()) {
      auto* to = reinterpret_cast<Line*>(states) + static_cast<std::size_t>(kElements / 4) * cell;
      for (int i = 0; i < kElements; i += 4) {
        to[i / 4] =
            Line{{asBits(values.at[i]), asBits(values.at[i + 1]), asBits(values.at[i + 2]), asBits(values.at[i + 3])}};
      }
      return;
    }
    auto* to = reinterpret_cast<Pair*>(states) + static_cast<std::size_t>(kElements / 4) * cell;
    for (int i = 0; i < kElements; i += 4) {
      to[i / 4] = Pair{{toHalves(task_.stateType, values.at[i], values.at[i + 1]),
                        toHalves(task_.stateType, values.at[i + 2], values.at[i + 3])}};
    }
  }

  SEQPAR_LANE Line pack(const Values& values) const {
    Line line;
    if constexpr (kElements == 4) {
      for (int i = 0; i < 4; ++i) line.word[i] = sendable(asBits(values.at[i]), kAbsentAsFloat);
    } else {
      for (int i = 0; i < 4; ++i) {
        line.word[i] = sendable(toHalves(task_.wireType, values.at[2 * i], values.at[2 * i + 1]), kAbsentAsHalves);
      }
    }
    return line;
  }

  SEQPAR_LANE Values unpack(const Line& line) const {
    Values values;
    for (int i = 0; i < kElements; ++i) {
      values.at[i] =
          kElements == 4 ? asFloat(line.word[i]) : fromHalf(task_.wireType, line.word[i / 2] >> (16 * (i % 2)));
    }
    return values;
  }

  /// The number of the factor of an element; the last one's past the end.
  SEQPAR_LANE std::uint32_t factorNumber(std::uint32_t cell, int i) const {
    const std::uint32_t element = cell * kElements + static_cast<std::uint32_t>(i);
    return task_.span.quotient(Shape::kPlain || element < task_.elements ? element : task_.elements - 1);
  }

  /// True if that factor, the one of the given number, serves no element before.
  SEQPAR_LANE bool begins(std::uint32_t number, std::uint32_t cell, int i) const {
    return number * task_.span.divisor() == cell * kElements + static_cast<std::uint32_t>(i);
  }

  /// This rank's factors of a cell, exponentiated; 0 in heads that forget.
  SEQPAR_LANE Factors factors(std::uint32_t cell) const { return decayed(cell, givenFactors(cell)); }

  /// This rank's factors of a cell as the caller gave them: only fetched.
  SEQPAR_LANE Factors givenFactors(std::uint32_t cell) const {
    Factors given;
    for (int i = 0; i < kFactors; ++i) {
      given.at[i] = task_.transition == nullptr ? 1.0F : task_.transition[factorNumber(cell, i)];
    }
    return given;
  }
  /// They, exponentiated; 0 in heads that forget.
  SEQPAR_LANE Factors decayed(std::uint32_t cell, const Factors& given) const {
    Factors all;
    for (int i = 0; i < kFactors; ++i) all.at[i] = has(task_.forgets, cell, i) ? 0.0F : decayed(given.at[i]);
    return all;
  }

  /// c x + s.
  SEQPAR_LANE static Values apply(const Factors& c, const Values& x, const Values& s) {
    Values after;
    for (int i = 0; i < kElements; ++i) after.at[i] = multiplyAdd(c.at[i % kFactors], x.at[i], s.at[i]);
    return after;
  }

  /// The factors of (c after a).
  SEQPAR_LANE static Factors compose(const Factors& c, const Factors& a) {
    Factors both;
    for (int i = 0; i < kFactors; ++i) both.at[i] = c.at[i] == 0.0F || a.at[i] == 0.0F ? 0.0F : c.at[i] * a.at[i];
    return both;
  }

  /// What position 0 hops from, in a cell of which `factors` are its own: x_0, or zeros, which factors do not count
  /// for.
  SEQPAR_LANE Values firstX(std::uint32_t cell, Factors& factors) const {
    if (task_.initial != nullptr) return widen(fetch(task_.initial, cell));
    factors = Factors{};
    return Values{};
  }

  /// Writes the outputs of a hop from x to `after`.
  SEQPAR_LANE void finish(std::uint32_t cell, Values x, const Values& after) const {
    if (task_.prefix != nullptr) store(task_.prefix, cell, reset(cell, x));
    if (task_.total != nullptr) store(task_.total, cell, after);
  }

 private:
  struct alignas(8) Pair {
    std::uint32_t word[2];
  };

  SEQPAR_LANE Values reset(std::uint32_t cell, Values x) const {
    if (!task_.flags) return x;
    // Where factors are uniform, one head has the whole cell.
    if constexpr (Shape::kUniform) {
      return has(task_.resets, cell, 0) ? Values{} : x;
    } else {
      for (int i = 0; i < kElements; ++i) x.at[i] = has(task_.resets, cell, i) ? 0.0F : x.at[i];
      return x;
    }
  }

  SEQPAR_LANE bool wide() const { return Shape::kPlain || task_.stateType == seqparFloat32; }
  SEQPAR_LANE bool whole(std::uint32_t cell) const { return (cell + 1) * kElements <= task_.elements; }

  SEQPAR_LANE static void copyWords(const Line& line, Raw& raw, int at) {
    for (int i = 0; i < 4; ++i) raw.word[at + i] = line.word[i];
  }

  SEQPAR_RARE static Raw fetchSingly(const ScanTask& task, const std::byte* states, std::uint32_t cell) {
    Raw raw{};
    for (int i = 0; i < kElements; ++i) {
      const std::uint32_t element = cell * kElements + static_cast<std::uint32_t>(i);
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
  SEQPAR_RARE static void storeSingly(const ScanTask& task, std::byte* states, std::uint32_t cell, Values values) {
    for (int i = 0; i < kElements; ++i) {
      const std::uint32_t element = cell * kElements + static_cast<std::uint32_t>(i);
      if (element >= task.elements) break;
      if (task.stateType == seqparFloat32) {
        reinterpret_cast<std::uint32_t*>(states)[element] = asBits(values.at[i]);
      } else {
        const std::uint32_t half = toHalves(task.stateType, values.at[i], 0.0F);
        reinterpret_cast<std::uint16_t*>(states)[element] = static_cast<std::uint16_t>(half);
      }
    }
  }

  SEQPAR_LANE static float fromHalf(seqparDataType_t type, std::uint32_t bits) {
    return type == seqparBfloat16 ? bfloatToFloat(bits & 0xffffU) : halfToFloat(bits & 0xffffU);
  }
  SEQPAR_LANE static std::uint32_t toHalves(seqparDataType_t type, float low, float high) {
    return type == seqparBfloat16 ? floatsToBfloats(low, high) : floatsToHalves(low, high);
  }

  SEQPAR_LANE bool has(const std::uint32_t* bits, std::uint32_t cell, int i) const {
    if (!task_.flags) return false;
    const std::uint32_t element = cell * kElements + static_cast<std::uint32_t>(Shape::kUniform ? 0 : i);
    const std::uint32_t head = task_.head.quotient(element < task_.elements ? element : task_.elements - 1);
    return (bits[head / 32] >> (head % 32) & 1U) != 0;
  }

  SEQPAR_LANE float decayed(float given) const {
    if (task_.decayForm == seqparDecayLinear) return given;
    return task_.decayForm == seqparDecayLog ? expf(given) : exp2f(given);
  }

  const ScanTask& task_;
};

}  // namespace seqpar
