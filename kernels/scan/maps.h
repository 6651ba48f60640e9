// What the algorithms send of a range of cells: a line a cell with the state, behind lines with its factors, four to a
// line. Position 0 sends no factors: nothing comes before it.
#pragma once

#include "cells.h"
#include "lane.h"

namespace seqpar {

template <class Shape>
class MapLines {
 public:
  using Factors = typename Cells<Shape>::Factors;

  SEQPAR_LANE MapLines(const ScanTask& task, const Cells<Shape>& cells, CellRange range, bool relative)
      : task_(task), cells_(cells), range_(range) {
    if (!relative || range.size() == 0) return;
    firstFactor_ = cells.factorNumber(range.begin, 0);
    const std::uint32_t end = cells.factorNumber(range.end - 1, Shape::kElements - 1) + 1;
    factorLines_ = (end - firstFactor_ + 3) / 4;
  }

  /// More than this many lines a map of `cells` cells never has.
  static constexpr std::uint32_t mostLines(std::uint32_t cells) {
    return cells + (cells * Shape::kFactors + 3) / 4 + 1;
  }

  SEQPAR_LANE std::uint32_t lines() const { return factorLines_ + range_.size(); }
  SEQPAR_LANE std::uint32_t lineOf(std::uint32_t cell) const { return factorLines_ + (cell - range_.begin); }

  /// Each factor is sent by the thread that has its first element here.
  template <class Memory>
  SEQPAR_LANE void putFactors(const Sender<Memory>& out, std::uint32_t cell, const Factors& factors) const {
    if (factorLines_ == 0) return;
    for (int i = 0; i < Shape::kFactors; ++i) {
      const std::uint32_t number = cells_.factorNumber(cell, i);
      const bool begins = number * task_.span.divisor() == cell * Shape::kElements + static_cast<std::uint32_t>(i);
      if (!begins && (cell != range_.begin || i != 0)) continue;
      out.putWord(number - firstFactor_, sendable(asBits(factors.at[i]), kAbsentAsFloat));
    }
  }

  /// Looks once.
  template <class Memory>
  SEQPAR_LANE Factors lookFactors(const Receiver<Memory>& in, std::uint32_t cell) const {
    Factors factors;
    for (int i = 0; i < Shape::kFactors; ++i) factors.at[i] = asFloat(in.lookWord(wordOf(cell, i)));
    return factors;
  }

  /// Waits for the factors of a cell, of which `factors` is what lookFactors() gave. False: gave up.
  template <class Memory>
  SEQPAR_LANE bool awaitFactors(const Receiver<Memory>& in, std::uint32_t cell, Factors& factors) const {
    for (int i = 0; i < Shape::kFactors; ++i) {
      if (asBits(factors.at[i]) != kAbsent) continue;
      std::uint32_t word = kAbsent;
      if (!in.awaitWord(wordOf(cell, i), word)) return false;
      factors.at[i] = asFloat(word);
    }
    return true;
  }

  /// After a barrier behind all looks, by all threads together.
  template <class Memory, class Group>
  SEQPAR_LANE void resetFactors(const Receiver<Memory>& in, const Group& group) const {
    for (std::uint32_t i = group.thread(); i < factorLines_; i += group.threads()) in.reset(i);
  }

 private:
  SEQPAR_LANE std::uint32_t wordOf(std::uint32_t cell, int i) const {
    return cells_.factorNumber(cell, i) - firstFactor_;
  }

  const ScanTask& task_;
  const Cells<Shape>& cells_;
  CellRange range_;
  std::uint32_t firstFactor_ = 0;
  std::uint32_t factorLines_ = 0;
};

/// The maps of all positions for one range of cells.
template <class Shape>
struct MapsOfPositions {
  MapLines<Shape> absolute, relative;

  SEQPAR_LANE MapsOfPositions(const ScanTask& task, const Cells<Shape>& cells, CellRange range)
      : absolute(task, cells, range, false), relative(task, cells, range, true) {}
  SEQPAR_LANE const MapLines<Shape>& of(int position) const { return position == 0 ? absolute : relative; }
};

}  // namespace seqpar
