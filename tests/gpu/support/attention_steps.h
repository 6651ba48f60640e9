// Identical steps of a linear attention layer, forward and backward, with bitwise equal results.
#pragma once

#include <bit>
#include <cstring>
#include <vector>

#include "gpu/support/device_backend.h"
#include "gpu/support/fill.h"
#include "seqpar/attn.h"
#include "seqpar/attn_plan.h"

namespace seqpar::test {

/// One rank's plan, buffers and stream on the current device.
class AttentionSteps {
 public:
  explicit AttentionSteps(seqparComm_t comm) : comm_(comm) {
    int ranks = 0;
    expectSuccess(seqparCommCount(comm, &ranks), "seqparCommCount");
    seqparAttnDesc_t desc = SEQPAR_ATTN_DESC_INITIALIZER;
    desc.family = seqparAttnGla;
    desc.algorithm = seqparAttnZeco;
    desc.batch = 1;
    desc.tokens = int64_t{kTokens} * ranks;
    desc.heads = desc.kvHeads = kHeads;
    desc.headDim = desc.valueDim = kDim;
    desc.dataType = seqparBfloat16;
    desc.gateTypes[0] = seqparFloat32;
    require(seqparAttnPlanCreate(&plan_, &desc, comm), "seqparAttnPlanCreate");
    require(seqparAttnPlanPrepare(plan_, nullptr, 0), "seqparAttnPlanPrepare");
    constexpr auto kQuarters = std::bit_cast<float>(0x3E803E80U);  // two bf16 values
    for (auto* tensor : {&forward_.q, &forward_.k, &forward_.v, &backward_.dOut}) tensor->data = filled(kQuarters);
    forward_.gates[0].data = allocate(2 * kHalves);
    launchFill(static_cast<float*>(forward_.gates[0].data), 2 * kHalves, -1.0F / 64, stream());
    for (auto* tensor : {&forward_.out, &backward_.dq, &backward_.dk, &backward_.dv}) tensor->data = filled(0);
    backward_.dGates[0].data = allocate(2 * kHalves);
    forward_.saved = allocate(std::size_t{kHeads} * kDim * kDim);
    backward_.q = forward_.q;
    backward_.k = forward_.k;
    backward_.v = forward_.v;
    backward_.gates[0] = forward_.gates[0];
    backward_.saved = forward_.saved;
    stream_.synchronize();
  }
  AttentionSteps(const AttentionSteps&) = delete;
  AttentionSteps& operator=(const AttentionSteps&) = delete;
  ~AttentionSteps() {
    cudaStreamSynchronize(stream());
    seqparAttnPlanDestroy(plan_);
    for (auto* memory : memory_) seqparMemFree(memory);
  }

  cudaStream_t stream() const { return static_cast<cudaStream_t>(stream_.get()); }

  void enqueue(unsigned steps) {
    for (unsigned i = 0; i < steps; ++i) {
      require(seqparAttnForward(plan_, &forward_, stream()), "seqparAttnForward");
      require(seqparAttnBackward(plan_, &backward_, stream()), "seqparAttnBackward");
    }
  }

  /// Waits, and throws if the communicator has failed or the last step gave other bits than the first that was checked.
  void check(const char* what) {
    stream_.synchronize();
    seqparResult_t state = seqparSuccess;
    expectSuccess(seqparCommGetAsyncError(comm_, &state), "seqparCommGetAsyncError", comm_);
    expect(state == seqparSuccess, what, ": ", seqparGetLastError(comm_));
    std::vector<float> now;
    for (const auto* data : {forward_.out.data, backward_.dq.data, backward_.dk.data, backward_.dv.data}) {
      now.resize(now.size() + kHalves);
      expectCuda(cudaMemcpy(now.data() + now.size() - kHalves, data, kHalves * sizeof(float), cudaMemcpyDeviceToHost),
                 "cudaMemcpy");
    }
    if (expected_.empty()) expected_ = now;
    expect(std::memcmp(now.data(), expected_.data(), now.size() * sizeof(float)) == 0, what,
           ": other bits than before");
  }

 private:
  static constexpr int kTokens = 1024, kHeads = 8, kDim = 128;
  static constexpr std::size_t kHalves = std::size_t{kTokens} * kHeads * kDim / 2;  ///< a tensor's pairs of bf16

  static void require(seqparResult_t result, const char* call) {
    expect(result == seqparSuccess, call, ": ", seqparAttnGetLastError());
  }
  float* allocate(std::size_t count) {
    void* memory = nullptr;
    expectSuccess(seqparMemAlloc(&memory, count * sizeof(float), comm_), "seqparMemAlloc", comm_);
    memory_.push_back(memory);
    return static_cast<float*>(memory);
  }
  float* filled(float pair) {
    float* const memory = allocate(kHalves);
    launchFill(memory, kHalves, pair, stream());
    return memory;
  }

  seqparComm_t comm_;
  Stream stream_;
  seqparAttnPlan_t plan_ = nullptr;
  std::vector<void*> memory_;
  seqparAttnForwardArgs_t forward_ = SEQPAR_ATTN_FORWARD_INITIALIZER;
  seqparAttnBackwardArgs_t backward_ = SEQPAR_ATTN_BACKWARD_INITIALIZER;
  std::vector<float> expected_;
};

}  // namespace seqpar::test
