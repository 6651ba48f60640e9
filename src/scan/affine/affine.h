// The algebra of All-Scan on one rank: x -> A x + S, block by block. The algorithms (chain.cpp, ...) use only this
// interface and are independent of heads, types and decays.
#pragma once

#include <cstddef>
#include <memory>
#include <span>
#include <vector>

#include "base/target.h"
#include "kernels/scan/arrays.h"
#include "kernels/scan/values.h"
#include "seqpar/seqpar.h"

namespace seqpar {

/// One rank's part of an All-Scan as given by the caller, checked. Pointers may be null where seqparAllScan() allows
/// it.
struct ScanProblem : ScanArrays<void> {
  seqparScanOp_t op = seqparScanDiag;
  seqparDirection_t direction = seqparForward;
  size_t heads = 0, dk = 0, dv = 0;
  seqparDataType_t stateType = seqparFloat32;
  seqparDataType_t wireType = seqparFloat32;
  seqparDecayForm_t decayForm = seqparDecayLinear;
  std::vector<unsigned char> headFlags;  ///< [heads], SEQPAR_SCAN_* bits
  bool first = false;                    ///< position 0
  bool bounded = false;                  ///< products of transitions of several positions do not overflow

  /// Whether transitions may be multiplied before they meet a state.
  bool multipliesFreely() const { return bounded || op == seqparScanSum; }

  size_t elements() const { return heads * dk * dv; }
};

/// A contiguous piece of the state that is sent and computed as a unit. The operator defines the unit of the bounds
/// (elements, or column panels of heads).
struct Block {
  size_t begin = 0, end = 0;
};

/// One rank's affine map, divided into blocks. "Wire" memory holds a block's state densely, in wireType. "Coefficients"
/// are A in the form that is sent and combined, in fp32: exponentiated, 0 where a flag cuts, transposed for reverse. A
/// coefficient of exactly 0 discards its operand, even NaN. Not thread safe: it owns scratch memory.
class Affine {
 public:
  virtual ~Affine() = default;

  /// Updates everything derived from the arrays of the problem. Shape, types and flags are unchanged.
  virtual void refresh() {}

  /// Divides the state into at most `parts` (>= 1) blocks of nearly equal size, fewer if the state does not allow as
  /// many. All ranks get the same blocks.
  virtual std::vector<Block> split(size_t parts) const = 0;
  /// Divides one block further. The concatenated dense memory of the parts is not always that of the block (MATRIX).
  virtual std::vector<Block> split(Block block, size_t parts) const = 0;

  virtual size_t stateElements(Block block) const = 0;
  virtual size_t coefficientElements(Block block) const = 0;

  /// Writes S of the block to wire memory. At position 0: A x_0 + S, so the data that position 0 sends is absolute.
  virtual void packState(Block block, Target wire) = 0;
  /// Writes A of the block. At position 0: zeros (see packState).
  virtual void packCoefficients(Block block, float* coefficients) = 0;

  /// The hop: reads x of the block (dense; nullptr at position 0, which uses x_0), writes the caller's prefix and total
  /// if requested, and A x + S to `wire` unless it is null. x and wire do not overlap. One pass over the data.
  virtual void hop(Block block, Values x, Target wire) = 0;

  /// (earlierA, earlierS) <- (laterA, laterS) o (earlierA, earlierS): earlierS = laterA earlierS + laterS, and, unless
  /// null, earlierA = laterA earlierA. Dense blocks; the earlier map is in fp32.
  virtual void compose(Block block, const float* laterA, Values laterS, float* earlierA, float* earlierS) = 0;

  /// Copies a dense block of states between types.
  virtual void convert(Block block, Values from, Target to, seqparDataType_t toType) const = 0;
};

/// The operator for `problem`, which must outlive it.
std::unique_ptr<Affine> makeAffine(const ScanProblem& problem);

/// Elements of a block's state and coefficients.
struct BlockSize {
  size_t state = 0, coefficients = 0;
};

/// The largest of the blocks that cannot be divided further. Depends on shape and operator only, in constant time.
BlockSize finestBlock(const ScanProblem& problem);

}  // namespace seqpar
