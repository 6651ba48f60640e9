// Tensors that go round the ranks while blocks are computed, and sums for them that follow one hop behind: what all
// ring algorithms have in common.
#pragma once

#include <functional>
#include <memory>
#include <type_traits>
#include <vector>

#include "attn/exec/exec.h"
#include "attn/plan/problem.h"
#include "seqpar/ring.h"

namespace seqpar::attn {

/// Who has whose tensors when, as seqpar/ring.h says. A plain ring is one window.
struct RingOrder {
  int ranks = 1, rank = 0;
  int inner = 1;  ///< ranks of a window
  seqparDirection_t direction = seqparForward;
  int steps = 0;  ///< hops until everybody has had what he needs

  /// The rank whose tensors `rank` has after `step` hops.
  int source(int step) const { return moved(-step); }
  /// The rank that has the tensors of `rank` after `step` hops.
  int holder(int step) const { return moved(step); }

 private:
  int moved(int hops) const;
};

/// What travels: tokens of a sharding, as a tensor or as rows.
struct Traveller {
  const Sharding* tokens;
  seqparDataType_t type;
  int64_t heads;
  int64_t dim;  ///< 0: rows, [batch][heads][tokens] fp32
};

class Rotation {
 public:
  /// `inputs` are only read on their way, `sums` are added to by each holder. `problem` must outlive this.
  Rotation(const Problem& problem, Exec& exec, const RingOrder& order, std::vector<Traveller> inputs,
           std::vector<Traveller> sums);

  void carve(Arena& arena);
  void open();

  /// The buffers that the caller fills before turn(): this rank's own inputs.
  Tensor ownTensor(int input) const { return tensorAt(inputs_, inputRing_.get(), input, order_.rank); }
  Rows ownRows(int input) const { return rowsAt(inputs_, inputRing_.get(), input, order_.rank); }

  /// For each step: compute(step), then addSums(step), if there are sums, before which nothing may be written to them.
  /// At step 0 sums hold nothing yet. Transfers of the next step run beside compute().
  void turn(const std::function<void(int step)>& compute, const std::function<void(int step)>& addSums = {});
  /// Begins a call: own tensors are the current ones.
  void reset();

  /// The current inputs and sums, in turn()'s functions; those of rank order().source(step).
  Tensor tensor(int input) const { return tensorAt(inputs_, inputRing_.get(), input, current_); }
  Rows rows(int input) const { return rowsAt(inputs_, inputRing_.get(), input, current_); }
  Tensor sumTensor(int sum) const { return tensorAt(sums_, sumRing_.get(), sum, current_); }
  Rows sumRows(int sum) const { return rowsAt(sums_, sumRing_.get(), sum, current_); }
  /// After turn(): the whole sums of this rank's own tensors.
  Tensor homeTensor(int sum) const;
  Rows homeRows(int sum) const;

  const RingOrder& order() const { return order_; }

 private:
  using Ring = std::unique_ptr<std::remove_pointer_t<seqparRing_t>, decltype(&seqparRingDestroy)>;

  size_t bytes(const Traveller& traveller, int rank) const;
  Ring makeRing(const std::vector<Traveller>& travellers, bool unchanged) const;
  void* pointer(const seqparRing_t ring, int index) const;
  Tensor tensorAt(const std::vector<Traveller>& travellers, seqparRing_t ring, int index, int rank) const;
  Rows rowsAt(const std::vector<Traveller>& travellers, seqparRing_t ring, int index, int rank) const;
  Tensor tensorOf(const Traveller& traveller, void* data, int rank) const;
  Rows rowsOf(const Traveller& traveller, void* data, int rank) const;
  void sendHome();

  const Problem& problem_;
  Exec& exec_;
  RingOrder order_;
  std::vector<Traveller> inputs_, sums_;
  std::vector<void*> home_;  ///< [sums]: where they come home; without hops: where they are made
  Ring inputRing_{nullptr, &seqparRingDestroy}, sumRing_{nullptr, &seqparRingDestroy};
  int current_ = 0;
};

/// The ring in which keys and values, or with `queries` queries, travel: as many hops as somebody needs. Keys and
/// values go up, queries down, so that windows and causal masks need what comes first.
RingOrder ringOrder(const Problem& problem, int inner, bool queries);

}  // namespace seqpar::attn
