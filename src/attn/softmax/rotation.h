// Tensors that go round the ranks while blocks are computed, and sums for them that follow behind: what all ring
// algorithms have in common.
#pragma once

#include <functional>
#include <memory>
#include <span>
#include <type_traits>
#include <variant>
#include <vector>

#include "attn/exec/exec.h"
#include "attn/problem/problem.h"
#include "seqpar/ring.h"

namespace seqpar::attn {

/// Who has whose tensors when, as seqpar/ring.h says. A plain ring is one window.
struct RingOrder {
  int ranks = 1, rank = 0;
  int inner = 1;  ///< ranks of a window
  seqparDirection_t direction = seqparForward;
  int steps = 0;         ///< hops until everybody has had what he needs
  bool queries = false;  ///< that travel; else keys

  /// The rank whose tensors `rank` has after `step` hops.
  int source(int step) const { return moved(rank, -step); }
  /// The rank that has the tensors of `rank` after `step` hops.
  int holder(int step) const { return moved(rank, step); }
  int sourceOf(int otherRank, int step) const { return moved(otherRank, -step); }
  /// The step after which sums begin to travel. Nothing is added to them before the first hop, so that in a plain ring
  /// they need not make it; in a double ring they have to begin where a window's tensors do.
  int firstSum() const { return inner == ranks ? 1 : 0; }

 private:
  int moved(int from, int hops) const;
};

/// What travels: of the tokens that other ranks need, a tensor or rows.
struct Traveller {
  seqparDataType_t type;
  int64_t heads;
  int64_t dim;  ///< 0: rows, [batch][heads][tokens] fp32
};

class Rotation {
 public:
  /// `inputs` are only read on their way, `sums` are added to by each holder but the owner. `problem` must outlive
  /// this.
  Rotation(const Problem& problem, Exec& exec, const RingOrder& order, std::vector<Traveller> inputs,
           std::vector<Traveller> sums);

  void carve(Arena& arena);
  void open();

  /// The tokens of the rank's shard that travel.
  const TokenRange& range(int rank) const { return ranges_[static_cast<size_t>(rank)]; }

  /// Begins a call, before turn(), with this rank's own inputs, of range(rank). They are sent from where they lie if
  /// they are dense.
  using Input = std::variant<Tensor, Rows>;
  void begin(std::span<const Input> own);

  struct Turn {
    /// What is done at a step, beside the transfers of the next one.
    std::function<void(int step)> compute;
    /// After compute(), before which nothing may be written to the sums: adds the step's share. `fresh`: they hold
    /// nothing yet and are written; at step 0, with zeros. Empty: there are no sums.
    std::function<void(int step, bool fresh)> addSums = {};
    /// Runs beside the sums' way home. Calls no collectives.
    std::function<void()> meanwhile = [] {};
  };
  void turn(const Turn& turn);

  /// The current inputs and sums, in turn()'s functions; those of rank order().source(step), of that rank's range.
  Tensor tensor(int input) const { return tensorAt(inputs_, inputRing_.get(), nullptr, input, current_); }
  Rows rows(int input) const { return rowsAt(inputs_, inputRing_.get(), nullptr, input, current_); }
  Tensor sumTensor(int sum) const { return tensorAt(sums_, sumRing_.get(), &sum_, sum, current_); }
  Rows sumRows(int sum) const { return rowsAt(sums_, sumRing_.get(), &sum_, sum, current_); }
  /// After turn(): what other ranks have added for range(rank) of this rank; without hops nothing, of no tokens.
  Tensor homeTensor(int sum) const;
  Rows homeRows(int sum) const;

  const RingOrder& order() const { return order_; }

 private:
  using Ring = std::unique_ptr<std::remove_pointer_t<seqparRing_t>, decltype(&seqparRingDestroy)>;
  using Buffers = std::vector<void*>;

  size_t bytes(const Traveller& traveller, int rank) const;
  Ring makeRing(const std::vector<Traveller>& travellers, int firstStep, int steps) const;
  /// Where inputs have been everywhere, the sums' way home is one more hop of their ring.
  bool homeIsNext() const { return order_.steps == order_.ranks - 1; }
  void* pointer(seqparRing_t ring, const Buffers* buffers, int index) const;
  Tensor tensorAt(const std::vector<Traveller>& travellers, seqparRing_t ring, const Buffers* buffers, int index,
                  int rank) const;
  Rows rowsAt(const std::vector<Traveller>& travellers, seqparRing_t ring, const Buffers* buffers, int index,
              int rank) const;
  Tensor tensorOf(const Traveller& traveller, void* data, int rank) const;
  Rows rowsOf(const Traveller& traveller, void* data, int rank) const;
  const void* ready(int input, const Input& own);
  void sendHome(void* stream);

  const Problem& problem_;
  Exec& exec_;
  RingOrder order_;
  std::vector<TokenRange> ranges_;  ///< [ranks]
  std::vector<Traveller> inputs_, sums_;
  Buffers home_;  ///< [sums]: where they come home, if not in their ring
  Buffers sum_;   ///< [sums]: where they are made if they make no hop but such a way home
  Ring inputRing_{nullptr, &seqparRingDestroy}, sumRing_{nullptr, &seqparRingDestroy};
  int current_ = 0;
};

/// The ring in which keys and values, or with `queries` queries, travel: as many hops as somebody needs. Keys and
/// values go up, queries down, so that windows and causal masks need what comes first.
RingOrder ringOrder(const Problem& problem, int inner, bool queries);

}  // namespace seqpar::attn
