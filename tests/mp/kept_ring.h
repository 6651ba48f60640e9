// Rings that a test keeps open, and rounds of rings in graphs that are replayed.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <vector>

#include "common/backend.h"
#include "seqpar/ring.h"

namespace seqpar::test {

/// A ring over all ranks of a communicator, of a random form that depends on `seed` alone. Tensors are written before
/// every round, with other bytes each time.
class KeptRing {
 public:
  /// Collective.
  KeptRing(seqparComm_t comm, std::uint64_t seed);
  KeptRing(const KeptRing&) = delete;
  KeptRing& operator=(const KeptRing&) = delete;
  /// Collective; the destructor does not do it.
  void close();

  /// One round; calls the function between each post and its wait. Throws at the first wrong byte.
  void run(std::uint64_t key, const std::function<void(int step)>& between);

  /// The calls of run() on `stream` without its checks: tensors are read from inputs(), and all current tensors, before
  /// and after each transfer, are copied into memory of the object.
  void enqueue(void* stream, const std::function<void(int step)>& between);
  /// Writes the tensors for `key` to enqueue()'s source.
  void setInputs(std::uint64_t key);
  /// Throws unless what enqueue() copied belongs to `key`.
  void check(std::uint64_t key) const;
  /// Transfers of a round.
  int steps() const { return params_.steps == 0 ? ranks_ - 1 : params_.steps; }

 private:
  struct Look {
    int step = 0, tensor = 0, origin = 0;
    Vector<unsigned char> bytes;
  };

  void draw(std::uint64_t seed);
  void open();
  void look(void* stream, int step, size_t& next);
  std::pair<void*, size_t> current(int tensor) const;

  seqparComm_t comm_;
  std::uint64_t seed_;
  int ranks_ = 0, rank_ = 0;
  seqparRingParams_t params_ = SEQPAR_RING_PARAMS_INITIALIZER;
  std::vector<size_t> sizes_;  ///< [place][tensor]
  bool callersBuffers_ = false;
  seqparRing_t ring_ = nullptr;
  std::uint64_t key_ = 0, before_ = 0;  ///< of the inputs, and of those before
  std::vector<Vector<unsigned char>> memory_, inputs_;
  std::vector<void*> pointers_;
  std::vector<Look> polls_;
};

/// A ring's round, with a shift concurrent with its first transfer, in a graph.
class CapturedRing {
 public:
  /// Collective. Only where backend()->hasGraphs().
  CapturedRing(seqparComm_t comm, std::uint64_t seed);
  CapturedRing(const CapturedRing&) = delete;
  CapturedRing& operator=(const CapturedRing&) = delete;
  /// Collective; the destructor does not call it. For every second seed, the ring is closed first, and the graph is
  /// replayed once more.
  void close();

  /// Collective: `times` replays with other inputs each. Throws at the first wrong byte.
  void replay(std::uint64_t key, int times);

 private:
  void shift();

  seqparComm_t comm_;
  std::uint64_t seed_;
  int ranks_ = 0, rank_ = 0;
  KeptRing ring_;
  Stream stream_;
  Vector<unsigned char> out_, in_;
  void* graph_ = nullptr;
};

}  // namespace seqpar::test
