// Both backward passes of linear attention on a GPU, for one rank's case, compared with the reference.
#pragma once

#include <cuda_runtime_api.h>

#include <memory>
#include <string>
#include <vector>

#include "support/gated_values.h"
#include "support/linear_backward_case.h"

namespace seqpar::test {

inline int failures = 0;

/// Ends the program where a call fails.
void checkCuda(cudaError_t error, const char* what);

/// Device memory, all bits set at first: NaN in every type. `offset`: bytes before the buffer.
class Memory {
 public:
  explicit Memory(size_t bytes, size_t offset = 0);
  template <class T>
  explicit Memory(const std::vector<T>& host, size_t offset = 0) : Memory(host.size() * sizeof(T), offset) {
    checkCuda(cudaMemcpy(get(), host.data(), bytes_, cudaMemcpyHostToDevice), "cudaMemcpy");
  }
  void poison();
  char* get() const { return memory_.get() + offset_; }
  float* floats() const { return reinterpret_cast<float*>(get()); }
  /// A copy; counts a failure if something was written behind the buffer.
  Bytes host() const;

 private:
  struct Free {
    void operator()(char* pointer) const { cudaFree(pointer); }
  };
  size_t bytes_, offset_;
  std::unique_ptr<char, Free> memory_;
};

/// The rounding errors of a value, each at most `unit` of it and independent: operands, states and results are rounded
/// once each. In fp16, values below 2^-14 have errors of 2^-25, so no tolerance is below `least`.
struct Tolerance {
  double unit, least;
  double values() const { return 4 * unit; }
  double gates(const BackwardCase& c) const { return values() * (1 + c.gateRoundings(64, least)); }
};
Tolerance toleranceOf(const BackwardShape& shape);

/// Relative errors in words, and whether all are small enough.
struct Errors {
  std::string text;
  bool good = true;
  void add(const char* name, const std::vector<double>& found, const std::vector<double>& expected, double most,
           double least = 0);
};

/// Both passes of one rank on the GPU.
struct Run {
  const BackwardCase& c;
  GatedValues gated;  ///< with input gates
  Memory q, k, v, gates, inputGates, dOut, spans, initial, dFinal, before, beforeLog;
  Memory after, afterLog, stateGradient, logDecay, dq, dk, dv, dGates, dInputGates, dInitial, workspace;
  attn::LinearProblem problem;
  attn::Segments segments;
  bool mapWanted = true;  ///< of all tokens

  /// `odd`: the addresses of gradients of tensors are multiples of an element's size only, so that kernels cannot write
  /// units of 16 bytes.
  explicit Run(const BackwardCase& given, bool odd = false);
  attn::SegmentStateGradients maps() const;
  attn::Gradients gradients() const;
  void launch(const attn::Launch& where) const;
  /// What the passes wrote, bit by bit; from kFirstGradient on, gradients.
  std::vector<Bytes> results() const;
  static constexpr int kFirstGradient = 3;
  /// All bits set again, of all that they write.
  void poisonResults();
  void compare(Errors& errors) const;
  /// Of dq, dk, dv and, if there are gates, theirs.
  void compareGradients(Errors& errors) const;
  void compareValues(Errors& errors, const Tolerance& most) const;
};

}  // namespace seqpar::test
