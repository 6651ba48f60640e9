// Random inputs of linear attention, its recurrence and the gradients of it token by token in fp64, and bounds of what
// fp32 arithmetic may differ from them.
#pragma once

#include <cstddef>
#include <cstdint>
#include <random>
#include <string>
#include <vector>

#include "seqpar/attn_plan.h"

namespace seqpar::test {

enum class DecayStrength {
  Weak,    ///< logarithms of -0.05 on average
  Strong,  ///< of -5 on average, -30 among them
  Mixed,   ///< zeros, strong ones and -inf next to each other
};

/// Keys of the delta families: correlated keys make their systems of equations hard.
enum class Keys {
  Independent,
  Walk,  ///< each is close to the one before it
  Same,  ///< nearly equal
};

/// The whole problem. Arrays hold values that are exact in the data types, as fp32.
struct LinearCase {
  int family = seqparAttnGla;
  size_t batch = 1, tokens = 0, heads = 1, keyHeads = 1, dk = 1, dv = 1;
  std::vector<int64_t> cuSeqlens;  ///< empty: not packed
  float scale = 0.5f;
  int dataType = seqparFloat32, gateType = seqparFloat32, betaType = seqparFloat32;
  bool normalize = false;  ///< delta families
  Keys keys = Keys::Independent;
  float mostBeta = 1;  ///< of the delta families' betas; some are 0, some this
  bool hasInitial = false, hasFinalGradient = false;
  DecayStrength strength = DecayStrength::Weak;

  // Filled by fill():
  std::vector<float> q, k, v, gate, beta, dOut, dFinal;
  std::vector<float> initial;  ///< [batch or sequences][heads][dk][dv]

  const seqparAttnFamilyInfo_t& row() const;
  size_t gateWidth() const;                           ///< log-decays per token and head; 0: not by tokens
  bool hasGate() const { return decayShape() >= 0; }  ///< a log-decay
  bool hasBeta() const { return shapeOf("beta") >= 0; }
  bool perHead() const { return decayShape() == seqparAttnGatePerHead; }
  bool perChannel() const { return decayShape() == seqparAttnGatePerChannel; }
  bool delta() const { return row().transition == seqparScanMatrix; }
  size_t states() const { return batch * heads * dk * dv; }
  size_t group() const { return heads / keyHeads; }
  void fill(unsigned seed);
  std::string describe() const;

 private:
  int shapeOf(const char* name) const;  ///< seqparAttnGateShape_t; -1: the family has no such gate
  int decayShape() const { return shapeOf("log_decay"); }
  void fillKeys(std::mt19937& random);
  void fillBetas(std::mt19937& random);
};

/// The ids of all families of linear attention.
std::vector<int> linearFamilies();

/// A value with the sum of the magnitudes of its terms.
struct Bounded {
  std::vector<double> value, magnitude;
  void assign(size_t count) {
    value.assign(count, 0);
    magnitude.assign(count, 0);
  }
};

struct LinearReference {
  Bounded out, dq, dk, dv, dGate, dBeta, dInitial;
  /// GLA, shape of dGate: magnitudes of the terms of up to 64 earlier tokens of the sequence. The kernels for GPUs
  /// subtract these terms from a value at the start of a chunk: rounded terms cancel exactly, except in fp32 sums.
  std::vector<double> dGateEarlier;
  Bounded final;
  std::vector<Bounded> before;  ///< the state before each requested token

  /// `borders`: tokens for which the state before them is requested. `threads`: 0: one per processor.
  LinearReference(const LinearCase& c, const std::vector<size_t>& borders, unsigned threads = 0);
};

/// `value` as a result of `type` on a GPU: fp16 results saturate.
double saturated(double value, int type);

/// Empty, or where `found` differs from the reference by more than fp32 arithmetic over `terms` terms and a rounding to
/// `type` can cause. `offset`: index of the first element in the reference. `least`: a difference that is always
/// allowed.
std::string farFrom(const Bounded& expected, const std::vector<float>& found, double terms, int type, size_t offset = 0,
                    double least = 0);

}  // namespace seqpar::test
