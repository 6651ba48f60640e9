// All-Scan problems for tests: all ranks' inputs, and one rank's buffers in the caller's types.
#pragma once

#include <cstddef>
#include <cstdint>
#include <iosfwd>
#include <vector>

#include "common/backend.h"
#include "scan/affine/affine.h"

namespace seqpar::test {

/// Length of a transition argument.
size_t transitionElements(seqparScanOp_t op, size_t heads, size_t dk);

struct ScanSpec {
  int size = 1;  ///< ranks
  seqparScanOp_t op = seqparScanDiag;
  seqparDirection_t direction = seqparForward;
  size_t heads = 1, dk = 1, dv = 1;
  size_t sequences = 1;  ///< divides heads
  seqparDataType_t stateType = seqparFloat32;
  seqparDataType_t wireType = seqparFloat32;
  seqparDecayForm_t decayForm = seqparDecayLinear;
  bool flags = false;    ///< with random flags
  bool initial = false;  ///< with an initial state

  size_t elements() const { return heads * dk * dv; }
  size_t transitionElements() const { return test::transitionElements(op, heads, dk); }
  /// The rank at position p.
  int rankAt(int position) const { return direction == seqparForward ? position : size - 1 - position; }
};

std::ostream& operator<<(std::ostream& out, const ScanSpec& spec);

/// Exact: every partial result in any order of evaluation is exact in both types of the spec, for up to 16 ranks.
/// Random: states in [-1, 1], and transitions that do not enlarge.
enum class Numbers { Exact, Random };

/// All ranks' inputs. States are values of stateType.
struct ScanCase {
  struct Rank {
    std::vector<float> state;
    std::vector<float> transition;     ///< in decayForm
    std::vector<unsigned char> flags;  ///< [sequences]
  };
  ScanSpec spec;
  std::vector<Rank> ranks;
  std::vector<float> initial;  ///< empty: none

  unsigned char flagsOf(int rank, size_t head) const { return ranks[rank].flags[head / (spec.heads / spec.sequences)]; }
};

/// The same for the same arguments, in every process.
ScanCase makeScanCase(const ScanSpec& spec, Numbers numbers, std::uint64_t seed);

/// The outputs that a rank requests, and their destination.
enum class Outputs { Both, PrefixOnly, TotalOnly, PrefixInPlace, TotalInPlace };

/// One rank's buffers.
class ScanBuffers {
 public:
  ScanBuffers(const ScanCase& scanCase, int rank, Outputs outputs);
  ScanBuffers(ScanBuffers&&) = default;

  const void* state() const { return state_.data(); }
  const float* transition() const { return transition_.empty() ? nullptr : transition_.data(); }
  /// nullptr if the case has none.
  const void* initial() const { return initial_.empty() ? nullptr : initial_.data(); }
  void* prefix();
  void* total();

  /// These buffers as the scan sees them. The buffers must outlive the problem.
  ScanProblem problem();

  bool wantsPrefix() const { return outputs_ != Outputs::TotalOnly; }
  bool wantsTotal() const { return outputs_ != Outputs::PrefixOnly; }
  /// Outputs as floats.
  std::vector<float> prefixValues();
  std::vector<float> totalValues();
  /// True if the inputs are unchanged, except for a state that is also an output.
  bool inputsIntact() const;

 private:
  std::vector<float> decode(const void* data) const;

  const ScanCase* case_;
  int rank_;
  Outputs outputs_;
  Vector<std::byte> state_, initial_, prefix_, total_;
  Vector<float> transition_;
};

}  // namespace seqpar::test
