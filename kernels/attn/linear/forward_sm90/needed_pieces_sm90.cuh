// The items of pass 1 for maps that only a scan reads: pieces of the chunks that heads need (NeededChunks), with about
// equal work per CTA.
//
// Heads, or pairs of heads that share keys and need about as many chunks, follow each other; the list of their needed
// chunks, each from the rank's end on (backward: from its start), and kOfMap more for its map, is divided into ranges
// of equal length. A piece is the part of a range that one head, or pair, has. The map of piece i, from 0, is that of
// segment count - 1 - i (backward: i).
#pragma once

#include "kernels/attn/linear/forward_sm90/segment_chunks_sm90.cuh"
#include "kernels/attn/linear/forward_sm90/sweeps_sm90.cuh"

namespace seqpar::attn::forward_sm90 {

/// In shared memory, found by each CTA. All heads of the problem, not packed.
class NeededPieces {
 public:
  static constexpr int kMostHeads = 512;  ///< of all sequences
  static constexpr int kOfMap = 2;        ///< chunks that take as long as storing a map
  static constexpr int kBytes = kMostHeads * 4 + kMostHeads * 4 + kMostHeads * 2 + 64;

  SEQPAR_DEVICE explicit NeededPieces(char* shared)
      : upTo_(reinterpret_cast<int*>(shared)),
        chunks_(upTo_ + kMostHeads),
        heads_(reinterpret_cast<uint16_t*>(chunks_ + kMostHeads)),
        sums_(reinterpret_cast<int*>(heads_ + kMostHeads)) {}

  /// Whether the problem's maps can be found in this way; `segments`: maps of a head.
  static SEQPAR_BOTH_INLINE bool supports(const LinearProblem& problem, int segments) {
    const int64_t heads = problem.batch * problem.heads, chunks = (problem.tokens + kChunk - 1) / kChunk;
    return segments > 1 && heads <= kMostHeads && heads * (chunks + kOfMap) < INT64_C(1) << 30;
  }

  /// All threads of the CTA, with __syncthreads(). `together`: heads of an item; `ctas`: ranges.
  SEQPAR_DEVICE void find(const int* needed, const LinearProblem& problem, int segments, int together, int ctas) {
    const int thread = static_cast<int>(threadIdx.x), warp = thread / 32, lane = thread % 32;
    const int count = static_cast<int>(problem.batch) * problem.heads;
    if (thread < count) chunks_[thread] = needed[thread];
    __syncthreads();
    if (thread < count) {
      int place = thread;
      if (together > 1) place = placeOf(thread, problem.heads / problem.qkHeads);
      heads_[place] = static_cast<uint16_t>(thread);
    }
    __syncthreads();
    items_ = count / together;
    int sum = thread < items_ ? chunks_[heads_[thread * together]] + kOfMap : 0;
#pragma unroll
    for (int distance = 1; distance < 32; distance *= 2) {
      const int more = __shfl_up_sync(0xffffffffU, sum, distance);
      if (lane >= distance) sum += more;
    }
    if (lane == 31) sums_[warp] = sum;
    __syncthreads();
    for (int i = 0; i < warp; ++i) sum += sums_[i];
    if (thread < items_) upTo_[thread] = sum;
    __syncthreads();
    total_ = upTo_[items_ - 1];
    // n chunks overlap with at most (n - 2) / length + 2 ranges.
    const int chunks = static_cast<int>((problem.tokens + kChunk - 1) / kChunk);
    length_ = max((total_ + ctas - 1) / ctas, max(chunks - 2, 0) / (segments - 1) + 1);
  }
  SEQPAR_DEVICE int ranges() const {
    return (total_ + length_ - 1) / length_;
  }

  /// Calls act(piece) for each piece of range `number`, with its head, second head, sequence, segment and tokens.
  template <Pass P, class Act>
  SEQPAR_DEVICE void each(int number, const LinearProblem& problem, int segments, int together, const Act& act) const {
    const int end = min((number + 1) * length_, total_);
    int first = number * length_, place = placeAt(first);
    while (first < end) {
      const int start = place == 0 ? 0 : upTo_[place - 1], needed = upTo_[place] - kOfMap, last = min(needed, end),
                next = min(upTo_[place], end), index = number - start / length_;
      if (first >= needed) {
        first = next;
        ++place;
        continue;
      }
      Sweep piece{};
      piece.segment = P == Pass::Forward ? segments - 1 - index : index;
      piece.before = piece.segment;
      piece.after = segments - 1 - piece.segment;
      piece.isLast = last == needed;
      const int head = heads_[place * together];
      piece.batch = head / problem.heads;
      piece.head = head % problem.heads;
      piece.second = together > 1 ? heads_[place * together + 1] % problem.heads : piece.head;
      const int64_t chunks = (problem.tokens + kChunk - 1) / kChunk;
      const int64_t begin = P == Pass::Forward ? chunks - (last - start) : first - start;
      piece.begin = begin * kChunk;
      piece.end = min((begin + last - first) * kChunk, problem.tokens);
      act(piece);
      first = next;
      ++place;
    }
  }

 private:
  /// The place of a head among those of its group: those that need more chunks come first.
  SEQPAR_DEVICE int placeOf(int head, int group) const {
    const int first = head / group * group, mine = chunks_[head];
    int place = first;
    for (int other = first; other < first + group; ++other) {
      const int chunks = chunks_[other];
      place += chunks > mine || (chunks == mine && other < head) ? 1 : 0;
    }
    return place;
  }
  /// The item with chunk `number` of the list.
  SEQPAR_DEVICE int placeAt(int number) const {
    int low = 0, high = items_ - 1;  // the first place with upTo_ > number
    while (low < high) {
      const int middle = (low + high) / 2;
      if (upTo_[middle] > number) {
        high = middle;
      } else {
        low = middle + 1;
      }
    }
    return low;
  }

  int* upTo_;        ///< [items]: the ends of their parts of the list
  int* chunks_;      ///< [heads]
  uint16_t* heads_;  ///< [items][together]
  int* sums_;        ///< of warps
  int items_ = 0, total_ = 0, length_ = 1;
};

}  // namespace seqpar::attn::forward_sm90
