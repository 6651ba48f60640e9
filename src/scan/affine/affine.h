// The algebra of All-Scan on one rank: x -> A x + S, block by block. The algorithms (chain.cpp, ...) are written in
// terms of this interface and know nothing of heads, types or decays.
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

/// One rank's part of an All-Scan as the caller gave it, checked. Pointers may be null as seqparAllScan() says.
struct ScanProblem : ScanArrays<void> {
  seqparScanOp_t op = seqparScanDiag;
  seqparDirection_t direction = seqparForward;
  size_t heads = 0, dk = 0, dv = 0;
  seqparDataType_t stateType = seqparFloat32;
  seqparDataType_t wireType = seqparFloat32;
  seqparDecayForm_t decayForm = seqparDecayLinear;
  std::vector<unsigned char> headFlags;  ///< [heads], SEQPAR_SCAN_* bits
  bool first = false;                    ///< position 0

  size_t elements() const { return heads * dk * dv; }
};

/// A contiguous piece of the state that travels and is computed as one. What begin and end count is the operator's
/// business (elements, or column panels of heads).
struct Block {
  size_t begin = 0, end = 0;
};

/// One rank's affine map, cut into blocks. "Wire" memory holds a block's state densely, in wireType. "Coefficients" are
/// A in the form in which it travels and is combined, fp32: exponentiated, 0 where a flag cuts, transposed where
/// reverse asks for it. A coefficient of exactly 0 forgets what it multiplies, NaN included. Not thread safe: it owns
/// scratch memory.
class Affine {
 public:
  virtual ~Affine() = default;

  /// Cuts the state into at most `pieces` (>= 1) blocks of nearly equal size, fewer if it cannot be cut so finely. All
  /// ranks get the same blocks.
  virtual std::vector<Block> split(size_t pieces) const = 0;
  /// Cuts one block further. The parts' dense memory, one after the other, is not always the block's (MATRIX).
  virtual std::vector<Block> split(Block block, size_t pieces) const = 0;

  virtual size_t stateElements(Block block) const = 0;
  virtual size_t coefficientElements(Block block) const = 0;

  /// Writes S of the block to wire memory. At position 0: A x_0 + S, so that what position 0 sends depends on nothing
  /// before it.
  virtual void packState(Block block, Target wire) = 0;
  /// Writes A of the block. At position 0: zeros (see packState).
  virtual void packCoefficients(Block block, float* coefficients) = 0;

  /// The hop: takes x of the block (dense; nullptr at position 0, where x_0 is used), writes the caller's prefix and
  /// total where wanted, and A x + S to `wire` unless it is null. x and wire do not overlap. One pass over the data.
  virtual void hop(Block block, Values x, Target wire) = 0;

  /// (earlierA, earlierS) <- (laterA, laterS) o (earlierA, earlierS): earlierS = laterA earlierS + laterS, and, unless
  /// null, earlierA = laterA earlierA. Dense blocks; earlier ones in fp32.
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

/// The largest of the blocks that cannot be cut further. Looks at shape and operator only, in no time for any size.
BlockSize finestBlock(const ScanProblem& problem);

}  // namespace seqpar
