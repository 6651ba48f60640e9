// Common part of all ring algorithms: tensors rotate over the ranks while blocks are computed, and sums follow them.
#pragma once

#include <functional>
#include <memory>
#include <span>
#include <type_traits>
#include <variant>
#include <vector>

#include "attn/block/block.h"
#include "attn/exec/exec.h"
#include "attn/problem/problem.h"
#include "seqpar/ring.h"

namespace seqpar::attn {

/// Position of all tensors at each step; see seqpar/ring.h. A single ring is one window.
struct RingOrder {
  int ranks = 1, rank = 0;
  int inner = 1;  ///< ranks per window
  seqparDirection_t direction = seqparForward;
  int steps = 0;         ///< hops until every rank has processed its visible tensors
  bool queries = false;  ///< queries rotate; else keys

  /// The owner of the tensors that `rank` holds after `step` hops.
  int source(int step) const { return moved(rank, -step); }
  /// The rank that has the tensors of `rank` after `step` hops.
  int holder(int step) const { return moved(rank, step); }
  int holderOf(int otherRank, int step) const { return moved(otherRank, step); }
  int sourceOf(int otherRank, int step) const { return moved(otherRank, -step); }
  /// The step after which sums start to rotate. Nothing is added to them before the first hop, so in a single ring they
  /// skip it; in a double ring they must start with the tensors of a window.
  int firstSum() const { return inner == ranks ? 1 : 0; }

 private:
  int moved(int from, int hops) const;
};

/// A rotating tensor, or rows, of the tokens of a shard that other ranks need, as ranges of the shard one after the
/// other.
struct RingTensor {
  seqparDataType_t type;
  int64_t heads;
  int64_t dim;  ///< 0: rows, [batch][heads][tokens] fp32
};

class Rotation {
 public:
  /// `inputs` are read only; each holder except the owner adds to `sums`. `problem` must outlive this object.
  Rotation(const Problem& problem, Exec& exec, const RingOrder& order, std::vector<RingTensor> inputs,
           std::vector<RingTensor> sums);

  void carve(Arena& arena);
  void open();

  /// The number of rotating tokens of the rank's shard.
  int64_t tokens(int rank) const;
  /// The scores of this rank's shard and the rotating tokens of step `step`.
  std::vector<Rectangle> rectangles(int step) const;

  /// Starts a call, before turn(), with this rank's own inputs of all tokens. A single range of a dense input is sent
  /// without a copy.
  using Input = std::variant<Tensor, Rows>;
  void begin(std::span<const Input> own);

  struct Turn {
    /// The work of a step, overlapped with the transfers of the next step.
    std::function<void(int step)> compute;
    /// Called after compute(), which must not write to the sums: adds the step's contribution. `fresh`: the sums are
    /// uninitialized and are written; at step 0, with zeros. Empty function: there are no sums.
    std::function<void(int step, bool fresh)> addSums = {};
    /// Overlapped with the return of the sums. Calls no collectives.
    std::function<void()> meanwhile = [] {};
  };
  void turn(const Turn& turn);

  /// The current inputs and sums inside turn()'s functions: those of rank order().source(step).
  Tensor tensor(int input) const { return tensorAt(inputs_, inputRing_.get(), nullptr, input, current_); }
  Rows rows(int input) const { return rowsAt(inputs_, inputRing_.get(), nullptr, input, current_); }
  Tensor sumTensor(int sum) const { return tensorAt(sums_, sumRing_.get(), &sum_, sum, current_); }
  Rows sumRows(int sum) const { return rowsAt(sums_, sumRing_.get(), &sum_, sum, current_); }
  /// After turn(): the sums of other ranks for this rank's shard; none without hops.
  std::vector<Addend> homeAddends(int sum) const;
  /// The same for a partial result: a tensor, and its rows.
  struct HomePartial {
    Partial partial;
    int64_t first = 0;  ///< token of the shard
  };
  std::vector<HomePartial> homePartials(int out, int lse) const;

  const RingOrder& order() const { return order_; }

 private:
  using Ring = std::unique_ptr<std::remove_pointer_t<seqparRing_t>, decltype(&seqparRingDestroy)>;
  using Buffers = std::vector<void*>;

  size_t bytes(const RingTensor& ringTensor, int rank) const;
  Ring makeRing(const std::vector<RingTensor>& ringTensors, int firstStep, int steps) const;
  /// If inputs have visited every rank, the sums return with one more hop of their ring.
  bool homeIsNext() const { return order_.steps == order_.ranks - 1; }
  void* pointer(seqparRing_t ring, const Buffers* buffers, int index) const;
  Tensor tensorAt(const std::vector<RingTensor>& ringTensors, seqparRing_t ring, const Buffers* buffers, int index,
                  int rank) const;
  Rows rowsAt(const std::vector<RingTensor>& ringTensors, seqparRing_t ring, const Buffers* buffers, int index,
              int rank) const;
  Tensor tensorOf(const RingTensor& ringTensor, void* data, int rank) const;
  Rows rowsOf(const RingTensor& ringTensor, void* data, int rank) const;
  std::span<const TokenRange> ranges(int rank) const { return ranges_[static_cast<size_t>(rank)]; }
  const void* ready(int input, const Input& own);
  template <typename View>
  const void* ready(const View& own, const View& memory);
  Tensor homeTensor(int sum) const;
  Rows homeRows(int sum) const;
  void sendHome(void* stream);

  const Problem& problem_;
  Exec& exec_;
  RingOrder order_;
  std::vector<std::vector<TokenRange>> ranges_;  ///< [ranks]
  std::vector<RingTensor> inputs_, sums_;
  Buffers home_;  ///< [sums]: memory of returned sums, if not in their ring
  Buffers sum_;   ///< [sums]: memory of sums with no hop except the return
  Ring inputRing_{nullptr, &seqparRingDestroy}, sumRing_{nullptr, &seqparRingDestroy};
  int current_ = 0;
};

/// The ring of keys and values, or with `queries` of queries, with as many hops as at least one rank needs. Keys and
/// values move to higher ranks, queries to lower ranks, so windows and causal masks need the first hops only.
RingOrder ringOrder(const Problem& problem, int inner, bool queries);

}  // namespace seqpar::attn
