// Random calls with known results: collectives, rings, meshes, streams, splits and plans.
#pragma once

#include <cstdint>
#include <random>
#include <vector>

#include "seqpar/mesh.h"
#include "seqpar/seqpar.h"

namespace seqpar::test {

/// Each value differs from `expected` by less than `tolerance`.
bool allNear(const std::vector<float>& values, float expected, float tolerance = 1e-5f);

/// The calls of one rank. All ranks draw the same calls from the same seed.
class RandomCalls {
 public:
  RandomCalls(seqparComm_t comm, uint64_t seed);

  enum class Kind {
    Any,      ///< of any size
    Small,    ///< a collective of small messages that creates nothing
    Plan,     ///< creates a plan, runs it and destroys it
    Objects,  ///< creates and destroys other objects; not drawn alone
  };
  /// The next call. Its result; Success also if the output was wrong, which wrong() counts.
  seqparResult_t next(Kind kind = Kind::Any);

  /// Continues on another communicator of the same ranks.
  void use(seqparComm_t comm) { comm_ = comm; }

  long succeeded() const { return succeeded_; }
  int wrong() const { return wrong_; }
  /// The name of the latest call.
  const char* latest() const { return latest_; }
  /// The text of the latest error: the call and its cause.
  const char* error() const;

 private:
  seqparResult_t scan();
  seqparResult_t sendReceive();
  seqparResult_t allGather();
  seqparResult_t reduceScatter();
  seqparResult_t ring();
  seqparResult_t mesh();
  seqparResult_t attention();
  seqparResult_t linear();
  seqparResult_t shortConv();
  seqparResult_t redistribute();
  seqparResult_t heads();
  seqparResult_t lse();
  seqparResult_t halo();
  seqparResult_t onStream();
  seqparResult_t split();
  seqparResult_t unevenRing();
  seqparResult_t shift();
  seqparResult_t meshReductions();
  seqparResult_t meshSums(seqparMesh_t mesh, int axis, const std::vector<int>& group, int position);
  seqparResult_t meshOutputs(seqparMesh_t mesh, const std::vector<int>& group, int position);
  seqparResult_t meshSteps(seqparMesh_t mesh, int axis, const std::vector<int>& group, int position);
  seqparResult_t ranges();
  seqparResult_t lseByHeads();

  size_t length();
  /// The communicator for the memory of seqparMemAlloc(), in half of the calls; null: ordinary memory.
  seqparComm_t drawMemory() { return below(2) == 0 ? comm_ : nullptr; }
  /// A random divisor of the number of ranks.
  int divisor();
  int below(int end) { return static_cast<int>(random_() % static_cast<uint64_t>(end)); }
  void expect(bool right) { wrong_ += right ? 0 : 1; }

  seqparComm_t comm_;
  std::mt19937_64 random_;
  int rank_ = 0, ranks_ = 1;
  bool small_ = false;  ///< the latest call is of Kind::Small
  long succeeded_ = 0;
  int wrong_ = 0;
  const char* latest_ = "";
  bool plans_ = false;  ///< the latest call is one of the attention library
};

}  // namespace seqpar::test
