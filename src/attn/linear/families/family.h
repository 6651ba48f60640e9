// The families of linear attention: the transition A in S_t = A_t S_(t-1) + B_t, and the gates that determine it.
#pragma once

#include <array>
#include <memory>
#include <span>
#include <string_view>

#include "attn/exec/tensor.h"
#include "seqpar/attn_plan.h"

namespace seqpar::attn {
class Exec;
}

namespace seqpar::attn::linear {

struct Shard;
class Passes;

constexpr const char* kLogDecay = "log_decay";
constexpr const char* kBeta = "beta";

struct GateRow {
  const char* name = nullptr;
  seqparAttnGateShape_t shape = seqparAttnGatePerHead;
};

/// The optional input gate of the families whose transition is no matrix: a factor of each token's update.
constexpr GateRow kInputGate{"input", seqparAttnGatePerToken};

/// A row of the table of families: in the folder of its passes, which a RegisteredFamily adds to the table.
struct Family {
  seqparAttnFamily_t id = seqparAttnSum;
  const char* name = nullptr;
  const char* function = nullptr;  ///< in seqpar.torch and seqpar.jax (python/generate_families.py)
  const char* paper = nullptr;
  seqparScanOp_t transition = seqparScanSum;  ///< the kind of A
  size_t gateCount = 0;
  std::array<GateRow, SEQPAR_ATTN_MAX_GATES> gateRows{};  ///< the input gate is not counted
  std::unique_ptr<Passes> (*makeHost)(const Shard& shard, Exec& exec) = nullptr;
  const char* (*whyNoKernel)(const Shard& shard) = nullptr;  ///< why GPUs do not support a shard; NULL: they do
  std::unique_ptr<Passes> (*makeDevice)(const Shard& shard, Exec& exec) = nullptr;  ///< in builds with CUDA

  std::span<const GateRow> gates() const { return {gateRows.data(), gateCount}; }
  /// The gates of a call.
  std::span<const GateRow> rowsWith(bool inputGate) const { return {gateRows.data(), gateCount + (inputGate ? 1 : 0)}; }
  /// The index of a gate; gateCount if the family has none of this name.
  size_t find(std::string_view gate) const {
    size_t i = 0;
    while (i < gateCount && gateRows[i].name != gate) ++i;
    return i;
  }
  /// A delta rule: takes `normalize`.
  bool isDelta() const { return transition == seqparScanMatrix; }
  bool takesInputGate() const { return gateCount < gateRows.size() && gateRows[gateCount].name != nullptr; }
  /// Whether the family has this gate, with one value per head.
  bool perHead(size_t gate) const { return gate < gateCount && gateRows[gate].shape == seqparAttnGatePerHead; }
};

/// Adds a row to the table: a variable of static storage in the row's file.
class RegisteredFamily {
 public:
  explicit RegisteredFamily(const Family& row) noexcept : row_(row), next_(first_) { first_ = this; }

  const Family& row() const { return row_; }
  const RegisteredFamily* next() const { return next_; }
  /// Head of the list of all, in no order; nullptr after the last.
  static const RegisteredFamily* first() { return first_; }

 private:
  Family row_;
  const RegisteredFamily* next_;
  static constinit const RegisteredFamily* first_;
};

/// The family with this id; null if it is not a linear attention family.
const Family* findFamily(int id);
/// All rows, in the order of their ids.
std::span<const Family> families();

/// Decays per token and head: headDim or 1.
inline int64_t decayWidth(const Family& family, int64_t headDim) {
  const size_t gate = family.find(kLogDecay);
  return gate < family.gateCount && family.gateRows[gate].shape == seqparAttnGatePerChannel ? headDim : 1;
}

/// A call's gates or their gradients by the family's rows; the tensors after them are empty.
using Gates = std::array<Tensor, SEQPAR_ATTN_MAX_GATES>;

}  // namespace seqpar::attn::linear
