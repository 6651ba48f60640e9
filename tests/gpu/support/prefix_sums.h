// Scans with known results: all elements of a rank's state are equal.
#pragma once

#include <random>

#include "gpu/support/device_backend.h"
#include "gpu/support/fill.h"

namespace seqpar::test {

/// One rank's buffers and stream on the current device.
class PrefixSums {
 public:
  static constexpr std::size_t kMost = 1 << 18;  ///< elements
  static constexpr int kStates = 8;

  explicit PrefixSums(seqparComm_t comm) : comm_(comm) {
    expectSuccess(seqparCommCount(comm, &ranks_), "seqparCommCount");
    expectSuccess(seqparCommUserRank(comm, &rank_), "seqparCommUserRank");
    for (int i = 0; i < kStates; ++i) {
      states_[i] = allocate(kMost);
      launchFill(states_[i], kMost, valueOf(i, rank_), stream());
    }
    prefix_ = allocate(kMost);
    wrong_ = reinterpret_cast<unsigned*>(allocate(1));
    expectCuda(cudaMemsetAsync(wrong_, 0, sizeof(unsigned), stream()), "cudaMemsetAsync");
    stream_.synchronize();
  }
  PrefixSums(const PrefixSums&) = delete;
  PrefixSums& operator=(const PrefixSums&) = delete;
  ~PrefixSums() {
    cudaStreamSynchronize(stream());
    for (auto* state : states_) seqparMemFree(state);
    seqparMemFree(prefix_);
    seqparMemFree(wrong_);
  }

  cudaStream_t stream() const { return static_cast<cudaStream_t>(stream_.get()); }

  /// Enqueues scan `number`, and its check.
  void enqueue(unsigned number, std::size_t elements, int algorithm, bool reverse) {
    const int state = static_cast<int>(number % kStates);
    seqparAllScanParams_t params = SEQPAR_ALL_SCAN_PARAMS_INITIALIZER;
    params.op = seqparScanSum;
    params.direction = reverse ? seqparReverse : seqparForward;
    params.heads = 1;
    params.dk = 1;
    params.dv = static_cast<int64_t>(elements);
    params.algorithm = algorithm;
    expectSuccess(seqparAllScan(states_[state], nullptr, nullptr, prefix_, nullptr, &params, comm_, stream()),
                  "seqparAllScan", comm_);
    float expected = 0;
    for (int other = reverse ? ranks_ - 1 : 0; other != rank_; other += reverse ? -1 : 1) {
      expected += valueOf(state, other);
    }
    launchCompare(prefix_, elements, expected, wrong_, stream());
  }

  /// Waits, and throws if any element of any result was wrong.
  void check(const char* what) {
    stream_.synchronize();
    seqparResult_t state = seqparSuccess;
    expectSuccess(seqparCommGetAsyncError(comm_, &state), "seqparCommGetAsyncError", comm_);
    expect(state == seqparSuccess, what, ": ", seqparGetLastError(comm_));
    unsigned wrong = 0;
    expectCuda(cudaMemcpyAsync(&wrong, wrong_, sizeof(wrong), cudaMemcpyDeviceToHost, stream()), "cudaMemcpyAsync");
    stream_.synchronize();
    expect(wrong == 0, what, ": ", wrong, " elements are wrong on rank ", rank_);
  }

 private:
  static float valueOf(int state, int rank) { return static_cast<float>(state * 64 + rank + 1); }

  float* allocate(std::size_t count) {
    void* memory = nullptr;
    expectSuccess(seqparMemAlloc(&memory, count * sizeof(float), comm_), "seqparMemAlloc", comm_);
    return static_cast<float*>(memory);
  }

  seqparComm_t comm_;
  int ranks_ = 0, rank_ = 0;
  Stream stream_;
  float* states_[kStates] = {};
  float* prefix_ = nullptr;
  unsigned* wrong_ = nullptr;
};

/// A scan's size and direction, drawn equally on all ranks.
struct DrawnScan {
  template <typename Random>
  explicit DrawnScan(Random& random) {
    elements = std::size_t{1} << random() % 19;
    elements = elements - random() % elements;
    // Includes DOUBLING, HIER and the baselines; none is refused for a sum between peers.
    algorithm = static_cast<int>(random() % (SEQPAR_SCAN_ALGORITHMS + 1));
    reverse = random() % 2 == 0;
  }
  std::size_t elements;
  int algorithm;
  bool reverse;
};

}  // namespace seqpar::test
