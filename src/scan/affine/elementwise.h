// Operators with one coefficient per element of the state: SUM, SCALAR and DIAG.
#pragma once

#include <vector>

#include "scan/affine/affine.h"
#include "scan/affine/elementwise_kernels.h"

namespace seqpar {

/// Blocks are ranges of elements; inner bounds are multiples of 16. The coefficient of element e has index e / span.
class Elementwise final : public Affine {
 public:
  explicit Elementwise(const ScanProblem& problem);

  /// 16 elements, chosen to overlap the most coefficients.
  static BlockSize finest(const ScanProblem& problem);

  void refresh() override;
  std::vector<Block> split(size_t parts) const override;
  std::vector<Block> split(Block block, size_t parts) const override;
  size_t stateElements(Block block) const override;
  size_t coefficientElements(Block block) const override;
  void packState(Block block, Target wire) override;
  void packCoefficients(Block block, float* coefficients) override;
  void hop(Block block, Values x, Target wire) override;
  void compose(Block block, const float* laterA, Values laterS, float* earlierA, float* earlierS) override;
  void convert(Block block, Values from, Target to, seqparDataType_t toType) const override;

 private:
  /// Pointers to the first element of a block.
  struct Operands {
    Values x;
    Values s;
    void* prefix = nullptr;
    void* total = nullptr;
    Target wire;
    seqparDataType_t wireType = seqparFloat32;
  };

  /// Of the whole state.
  const float* ownCoefficients() const { return given_ ? problem_.transition : made_.data(); }
  bool resets(size_t head) const;
  Values firstX(Block block) const;
  void runOwn(Block block, const Operands& operands);
  void run(Block block, const float* coefficients, const Operands& operands);

  const ScanProblem& problem_;
  const HopKernels& kernels_;
  size_t span_;
  bool given_;                 // the coefficients are the caller's array
  std::vector<float> made_;    // else, of the whole state
  std::vector<float> spread_;  // one per element of a tile, if spans do not fit the kernels
  bool anyResets_ = false;
};

}  // namespace seqpar
