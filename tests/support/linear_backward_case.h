// A drawn case of the backward kernels of linear attention: inputs in the kernels' types, the maps of segments, and the
// gradients of the fp64 reference for the same values.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "kernels/attn/linear/packing.h"
#include "support/reference_linear.h"

namespace seqpar::test {

struct BackwardShape {
  int64_t batch = 1, tokens = 64;
  int heads = 1, qkHeads = 1, dk = 64, dv = 64;
  int type = seqparBfloat16;
  attn::Gate gate = attn::Gate::Channel;
  int gateType = seqparFloat32;
  int64_t segmentTokens = 512;
  double decay = 0.05;  ///< mean of -log a; infinity: some decays are 0, others 1
  bool mixed = false;   ///< log-decays are 0, -inf, -1e4 and others next to each other, and some rows of v are 0
  bool states = true;   ///< an initial state and a gradient of the final one
  attn::Maps content = attn::Maps::Prefix;       ///< of the maps
  double qScale = 1, kScale = 1, dOutScale = 1;  ///< standard deviations
  int smallest = 0, largest = 0;  ///< if not both 0: rows are scaled by 2^-smallest to 2^largest, in each 64 tokens
  bool scalesKeys = false;        ///< those of q and k; otherwise those of v and dOut
  std::vector<int64_t> starts;
  bool inputGates = false;  ///< the kernels get values and input gates with the case's values as products
  std::string name() const;
};

using Bytes = std::vector<char>;

struct BackwardCase {
  BackwardShape shape;
  LinearShape reference;
  LinearInputs inputs;                                    ///< as the kernels see them
  std::vector<double> dOutValues, dFinalValues;           ///< likewise
  Bytes q, k, v, gates, dOut;                             ///< dense, of their types
  std::vector<float> initial, dFinal;                     ///< empty: none
  attn::Segments segments;                                ///< without spans
  std::vector<attn::Span> spans;                          ///< empty: not packed
  std::vector<float> before, beforeLog, after, afterLog;  ///< StateMaps
  std::vector<float> stateGradient, logDecay;             ///< the rank's reverse map
  LinearGradients expected;
  LinearGradients magnitudes() const;  ///< sums of the magnitudes of the expected gradients' terms

  BackwardCase(const BackwardShape& shape, uint64_t seed);

  enum class Place { Queries, Keys, Values, Gates, Outputs, States };
  /// Packed: sets some inputs of the sequence [begin, end) to `value`: elements of a tensor and the maps of the
  /// sequence's segments, or its incoming states.
  void poison(Place place, double value, int64_t begin, int64_t end);

  /// With the addresses of the tensors; strides are the dense ones.
  attn::LinearProblem problem(const void* q, const void* k, const void* v, const void* gates) const;
  /// With the address of the spans.
  attn::Segments segmentsAt(const attn::Span* at) const;
  /// Whether the rank's incoming state is the state of the first token's sequence.
  bool continues() const { return inputs.begins.empty() || inputs.begins.front() == 0; }
  attn::Input dOutput(const void* data) const;
  int64_t gateNumbers() const;  ///< of the gates' tensor
  /// The expected gradient of the gates, shaped as the kernels give it: of channels, tokens or heads.
  std::vector<double> expectedGates() const;
  /// The norm of the rounding errors of the gates' gradients relative to the gradients, if dq and dk have relative
  /// errors of 1: a gate's gradient is a sum of q dq - k dk to the end of its chunk of `chunk` tokens. With strong
  /// decays nearly all of it cancels, and the rounding errors dominate.
  double gateRoundings(int64_t chunk, double least = 0) const;
};

/// Numbers of a type as fp64.
std::vector<double> valuesOf(const Bytes& bytes, int type);
/// ||found - expected|| / ||expected||, NaN where anything is. The norm is taken as at least that of numbers of size
/// `least`, and as 1 if it is 0.
double relativeError(const std::vector<double>& found, const std::vector<double>& expected, double least = 0);

}  // namespace seqpar::test
