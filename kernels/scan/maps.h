// What the algorithms send of a range of cells: a line a cell with the state, then lines with its factors, four to a
// line. Position 0 sends no factors: nothing comes before it.
#pragma once

#include "cells.h"
#include "lane.h"

namespace seqpar {

/// The most cells of a step of ONESHOT, and of a shard of TRANSPOSED.
constexpr std::uint32_t kMostOneshotRow = 512;
constexpr std::uint32_t kMostTransposedShard = 512;

template <class Shape>
class MapLines {
 public:
  using Factors = typename Cells<Shape>::Factors;

  /// `begin`: the number of the map's first line in its channel.
  SEQPAR_LANE MapLines(const Cells<Shape>& cells, CellRange range, std::uint32_t begin)
      : cells_(cells), range_(range), begin_(begin), firstFactor_(cells.factorNumber(range.begin, 0)) {}

  /// Lines of a map of `range`; `relative`: with factors.
  SEQPAR_LANE static std::uint32_t count(const Cells<Shape>& cells, CellRange range, bool relative) {
    if (!relative || range.size() == 0) return range.size();
    return range.size() + MapLines(cells, range, 0).factorLines();
  }
  /// More than this many lines a map of `cells` cells never has.
  static constexpr std::uint32_t most(std::uint32_t cells) { return cells + (cells * Shape::kFactors + 3) / 4 + 1; }

  SEQPAR_LANE std::uint32_t lineOf(std::uint32_t cell) const { return begin_ + (cell - range_.begin); }

  /// The words that a thread sends of its cell's factors: each is sent by the thread that has its first element here.
  struct Words {
    std::uint32_t at[Shape::kFactors];  ///< kNone: another thread's
  };
  static constexpr std::uint32_t kNone = 0xffffffffU;

  SEQPAR_LANE Words words(std::uint32_t cell) const {
    Words words;
    for (int i = 0; i < Shape::kFactors; ++i) {
      const std::uint32_t number = cells_.factorNumber(cell, i);
      const bool mine = cells_.begins(number, cell, i) || (cell == range_.begin && i == 0);
      words.at[i] = mine ? wordOf(number) : kNone;
    }
    return words;
  }
  template <class Out>
  SEQPAR_LANE static void putFactors(const Out& out, const Words& words, const Factors& factors) {
    for (int i = 0; i < Shape::kFactors; ++i) {
      if (words.at[i] != kNone) out.putWord(words.at[i], sendable(asBits(factors.at[i]), kAbsentAsFloat));
    }
  }
  template <class Out>
  SEQPAR_LANE void putFactors(const Out& out, std::uint32_t cell, const Factors& factors) const {
    putFactors(out, words(cell), factors);
  }

  /// Looks once.
  template <class Memory>
  SEQPAR_LANE Factors lookFactors(const Receiver<Memory>& in, std::uint32_t cell) const {
    Factors factors;
    for (int i = 0; i < Shape::kFactors; ++i) {
      factors.at[i] = asFloat(in.lookWord(wordOf(cells_.factorNumber(cell, i))));
    }
    return factors;
  }

  /// Waits for the factors of a cell, of which `factors` is what lookFactors() gave. False: gave up.
  template <class Memory>
  SEQPAR_LANE bool awaitFactors(const Receiver<Memory>& in, std::uint32_t cell, Factors& factors) const {
    for (int i = 0; i < Shape::kFactors; ++i) {
      if (asBits(factors.at[i]) != kAbsent) continue;
      std::uint32_t word = kAbsent;
      if (!in.awaitWord(wordOf(cells_.factorNumber(cell, i)), word)) return false;
      factors.at[i] = asFloat(word);
    }
    return true;
  }

  /// After a barrier behind all looks, by all threads together.
  template <class Memory, class Group>
  SEQPAR_LANE void resetFactors(const Receiver<Memory>& in, const Group& group) const {
    if (range_.size() == 0) return;
    const std::uint32_t first = begin_ + range_.size();
    const std::uint32_t lines = factorLines();
    SEQPAR_ROLLED
    for (std::uint32_t i = group.thread(); i < lines; i += group.threads()) in.reset(first + i);
  }

 private:
  SEQPAR_LANE std::uint32_t factorLines() const {
    return (cells_.factorNumber(range_.end - 1, Shape::kElements - 1) - firstFactor_ + 4) / 4;
  }
  SEQPAR_LANE std::uint32_t wordOf(std::uint32_t factor) const {
    return 4 * (begin_ + range_.size()) + (factor - firstFactor_);
  }

  const Cells<Shape>& cells_;
  CellRange range_;
  std::uint32_t begin_;
  std::uint32_t firstFactor_;
};

}  // namespace seqpar
