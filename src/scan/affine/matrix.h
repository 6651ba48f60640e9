// The operator with a matrix A per head.
#pragma once

#include <vector>

#include "scan/affine/affine.h"

namespace seqpar {

/// Blocks are ranges of panels of 16 columns of a head; the last panel of a head may be narrower. A block is whole
/// heads, or panels of one head. A block's state is dense per head: consecutive heads, each with dk rows of the block's
/// columns. A block's coefficients are, for each head, `keep` (1, or 0 if the head forgets), then the dk x dk matrix.
class Matrix final : public Affine {
 public:
  explicit Matrix(const ScanProblem& problem);

  /// A panel with its head's matrix.
  static BlockSize finest(const ScanProblem& problem);

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
  /// The heads [head, headEnd) and in each the columns [column, column + width).
  struct Region {
    size_t head, headEnd;
    size_t column, width;
  };
  /// One head's part of a block in memory: dk rows, `stride` elements apart.
  struct Rows {
    const void* data = nullptr;  // nullptr: zeros
    seqparDataType_t type = seqparFloat32;
    size_t stride = 0;
  };
  struct OutRows {
    Target target;
    seqparDataType_t type = seqparFloat32;
    size_t stride = 0;
  };

  Region region(Block block) const;
  bool has(size_t head, unsigned flags) const { return (problem_.headFlags[head] & flags) != 0; }
  size_t headElements(const Region& part) const { return problem_.dk * part.width; }
  Rows own(const void* data, size_t head, const Region& part) const;
  OutRows own(void* data, size_t head, const Region& part) const;
  void copy(Rows from, OutRows to, size_t width) const;
  const float* asFloat(Rows from, size_t width, std::vector<float>& scratch, size_t& stride) const;
  void hopHead(size_t head, const Region& part, Rows x, OutRows prefix, OutRows total, OutRows wire);

  const ScanProblem& problem_;
  size_t panels_;  // of a head
  std::vector<float> x_;
  std::vector<float> after_;
};

}  // namespace seqpar
