// Cases of the forward kernels of linear attention: inputs in the kernels' format, and their results in fp64
// with bounds of the rounding errors. No CUDA.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "kernels/attn/linear/packing.h"

namespace seqpar::test {

/// Mixed: 0, -inf and everything between. Medium: about 2^-8 in 32 tokens. Alternating: chunks of 64 tokens are typical
/// or strong.
enum class Decays { Typical, Slow, Strong, Thirty, Mixed, Medium, Alternating };

struct ForwardSpec {
  int64_t batch = 1, tokens = 64;
  int heads = 2, qkHeads = 2, dk = 64, dv = 64;
  int type = seqparBfloat16;
  attn::Gate gate = attn::Gate::Channel;
  int gateType = seqparFloat32;
  Decays decays = Decays::Typical;
  bool initial = true;
  float size = 1;                ///< of keys and values
  float tilt = 1;                ///< further factor of keys, and divisor of values
  bool headsFirst = false;       ///< tensors are [batch][head][token], otherwise [batch][token][head]
  int64_t segmentTokens = 1024;  ///< a multiple of 64
  int64_t leadTokens = 0;        ///< before the first segment (launchForward()), at most; a multiple of 64
  int sequences = 0;             ///< maximum number of packed sequences that start among the tokens
  bool inputGates = false;       ///< the kernels get values and input gates with the case's values as products
  uint64_t seed = 0;
  std::string name() const;
};

/// A result in fp64, and how far from it the kernels' may be.
struct Expected {
  std::vector<double> value, bound;
};

struct ForwardCase {
  explicit ForwardCase(const ForwardSpec& spec);

  ForwardSpec spec;
  float scale;
  std::vector<char> q, k, v, gates;  ///< as the kernels read them
  std::vector<float> initial;
  std::vector<int64_t> starts;
  attn::LinearProblem layout;  ///< without addresses

  /// After the first `lead` tokens, if some are left and no sequences are packed.
  attn::PackedSegments segments(int64_t lead) const;

  enum class Place { Queries, Keys, Values, Gates, Initial };
  /// Puts `value` into some numbers of the tokens [begin, end), or into those of the initial state.
  void poison(Place place, float value, int64_t begin, int64_t end);

  /// Computes the expected results below, on all processors.
  void computeExpected();
  Expected out;           ///< [batch][heads][tokens][dv]
  Expected finalState;    ///< [batch][heads][dk][dv]
  Expected rankState;     ///< with an initial state of 0
  Expected rankLogDecay;  ///< [batch][heads][dk or 1]; a value below -87.3 represents all such values

  double queryAt(int64_t b, int64_t t, int h, int c) const;
  double valueAt(int64_t b, int64_t t, int h, int c) const;
  double keyAt(int64_t b, int64_t t, int h, int c) const;
  double gate(int64_t b, int64_t t, int h, int c) const;

 private:
  void computeHead(int64_t b, int h);
};

/// Half the largest relative error of a rounding to fp16 or bf16; all of it for fp32.
double roundingOf(int type);
double numberOf(const std::vector<char>& tensor, int type, int64_t index);
/// The largest error relative to its bound; infinity if a value is unexpectedly NaN or not NaN. `worst` receives the
/// index.
double excess(const Expected& expected, const std::vector<double>& found, int64_t* worst);

}  // namespace seqpar::test
