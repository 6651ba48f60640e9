// Packets of a map of a range of vecs: one packet per vec with the state, then packets with the factors, four in each.
// Position 0 sends no factors: it has no predecessor.
#pragma once

#include "kernels/channel.h"
#include "kernels/scan/vecs.h"

namespace seqpar {

/// The most vecs of a step of ONESHOT, and of a shard of TRANSPOSED.
constexpr std::uint32_t kMostOneshotRow = 512;
constexpr std::uint32_t kMostTransposedShard = 512;

template <class Shape>
class MapPackets {
 public:
  using Factors = typename Vecs<Shape>::Factors;

  /// The last argument is the index of the map's first packet in its FIFO.
  SEQPAR_DEVICE MapPackets(const Vecs<Shape>& vecs, VecRange range, std::uint32_t begin)
      : vecs_(vecs), range_(range), begin_(begin), firstFactor_(vecs.factorNumber(range.begin, 0)) {}

  /// Packets of a map of `range`; `relative`: with factors.
  SEQPAR_DEVICE static std::uint32_t count(const Vecs<Shape>& vecs, VecRange range, bool relative) {
    if (!relative || range.size() == 0) return range.size();
    return range.size() + MapPackets(vecs, range, 0).factorPackets();
  }
  /// Upper bound of the packets of a map of `vecs` vecs.
  static constexpr std::uint32_t most(std::uint32_t vecs) { return vecs + (vecs * Shape::kFactors + 3) / 4 + 1; }

  SEQPAR_DEVICE std::uint32_t packetOf(std::uint32_t vec) const { return begin_ + (vec - range_.begin); }

  /// The words that a thread sends of its vec's factors: the thread with a factor's first element sends it.
  struct Words {
    std::uint32_t at[Shape::kFactors];  ///< kNone: another thread sends it
  };
  static constexpr std::uint32_t kNone = 0xffffffffU;

  SEQPAR_DEVICE Words words(std::uint32_t vec) const {
    Words words;
    for (int i = 0; i < Shape::kFactors; ++i) {
      const std::uint32_t number = vecs_.factorNumber(vec, i);
      const bool mine = vecs_.begins(number, vec, i) || (vec == range_.begin && i == 0);
      words.at[i] = mine ? wordOf(number) : kNone;
    }
    return words;
  }
  template <class Out>
  SEQPAR_DEVICE static void putFactors(const Out& out, const Words& words, const Factors& factors) {
    for (int i = 0; i < Shape::kFactors; ++i) {
      if (words.at[i] != kNone) out.putWord(words.at[i], sendable(asBits(factors.at[i]), kAbsentAsFloat));
    }
  }
  template <class Out>
  SEQPAR_DEVICE void putFactors(const Out& out, std::uint32_t vec, const Factors& factors) const {
    putFactors(out, words(vec), factors);
  }

  /// Polls once.
  template <class Memory>
  SEQPAR_DEVICE Factors pollFactors(const Receiver<Memory>& in, std::uint32_t vec) const {
    Factors factors;
    for (int i = 0; i < Shape::kFactors; ++i) {
      factors.at[i] = asFloat(in.pollWord(wordOf(vecs_.factorNumber(vec, i))));
    }
    return factors;
  }

  /// Waits for the factors of a vec; `factors` is the value that pollFactors() returned. Returns false on timeout.
  template <class Memory>
  SEQPAR_DEVICE bool awaitFactors(const Receiver<Memory>& in, std::uint32_t vec, Factors& factors) const {
    for (int i = 0; i < Shape::kFactors; ++i) {
      if (asBits(factors.at[i]) != kAbsent) continue;
      std::uint32_t word = kAbsent;
      if (!in.awaitWord(wordOf(vecs_.factorNumber(vec, i)), word)) return false;
      factors.at[i] = asFloat(word);
    }
    return true;
  }

  /// Called by all threads together, after a barrier that follows all polls.
  template <class Memory, class Group>
  SEQPAR_DEVICE void resetFactors(const Receiver<Memory>& in, const Group& group) const {
    if (range_.size() == 0) return;
    const std::uint32_t first = begin_ + range_.size();
    const std::uint32_t packets = factorPackets();
    SEQPAR_ROLLED
    for (std::uint32_t i = group.thread(); i < packets; i += group.threads()) in.reset(first + i);
  }

 private:
  SEQPAR_DEVICE std::uint32_t factorPackets() const {
    return (vecs_.factorNumber(range_.end - 1, Shape::kElements - 1) - firstFactor_ + 4) / 4;
  }
  SEQPAR_DEVICE std::uint32_t wordOf(std::uint32_t factor) const {
    return 4 * (begin_ + range_.size()) + (factor - firstFactor_);
  }

  const Vecs<Shape>& vecs_;
  VecRange range_;
  std::uint32_t begin_;
  std::uint32_t firstFactor_;
};

}  // namespace seqpar
