// A forward by kernels of kernels/attn/linear/chunks, on an emulated CTA, compared with the reference in fp64.
#pragma once

#include "linear_backward_check.h"

namespace seqpar::attn::backward::test {

/// The arguments of a case with one segment per head, and space for its results.
class ChunksRun {
 public:
  /// `gated`: with input gates.
  ChunksRun(const BackwardCase& c, bool gated, uint64_t seed)
      : case_(c),
        problem_(c.problem(c.q.data(), c.k.data(), c.v.data(), c.gates.data())),
        values_(c.v, problem_, seed),
        out_(static_cast<size_t>(c.reference.valueSize()) + 8, 0xffff),
        finalState_(c.stateGradient.size(), NAN),
        at_(out_.data()) {
    if (gated) values_.giveTo(problem_);
    while (reinterpret_cast<uintptr_t>(at_) % 16 != 0) ++at_;
    task = taskOf(problem_, c.segmentsAt(nullptr), {0, problem_.heads}, c.dOutput(at_));
    task.initial = c.initial.empty() ? nullptr : c.initial.data();
  }
  ChunksRun(const ChunksRun&) = delete;
  ChunksRun& operator=(const ChunksRun&) = delete;

  float* finalState() { return finalState_.data(); }
  /// `notFinite`: number of the first outputs, which are not finite.
  void check(size_t notFinite = 0) const { checkFinal(checkOutputs(notFinite)); }
  /// Returns the reference, without outputs that are not finite.
  seqpar::test::LinearOutputs checkOutputs(size_t notFinite = 0) const {
    seqpar::test::LinearOutputs expected = seqpar::test::linearReference(case_.reference, case_.inputs);
    std::vector<double> found;
    for (size_t i = 0; i < notFinite; ++i) {
      const float number = ptx::lowOf<Bf16>(at_[i]);
      REQUIRE(!std::isfinite(number));
    }
    expected.out.erase(expected.out.begin(), expected.out.begin() + static_cast<std::ptrdiff_t>(notFinite));
    for (size_t i = 0; i < expected.out.size(); ++i) found.push_back(ptx::lowOf<Bf16>(at_[notFinite + i]));
    checkError("out", found, expected.out, 0x1p-7);
    return expected;
  }

  Task task;

 private:
  void checkFinal(const seqpar::test::LinearOutputs& expected) const {
    checkError("final state", wide(finalState_), expected.finalState, 0x1p-8);
  }

  const BackwardCase& case_;
  LinearProblem problem_;
  seqpar::test::GatedValues values_;
  std::vector<uint16_t> out_;
  std::vector<float> finalState_;
  uint16_t* at_;  ///< in out_, aligned to 16 bytes
};

}  // namespace seqpar::attn::backward::test
