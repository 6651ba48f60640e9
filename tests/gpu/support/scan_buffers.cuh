// One rank's buffers of a scan, in device memory.
#pragma once

#include <map>

#include "ranks.cuh"
#include "scan_case.h"

namespace seqpar::test {

class DeviceBuffers {
 public:
  /// `device` is the GPU of the rank. Every state starts `shift` bytes after an aligned address. Transitions, which are
  /// fp32, are shifted by whole elements.
  DeviceBuffers(const ScanCase& scanCase, int rank, Outputs outputs, int device, std::size_t shift)
      : host_(scanCase, rank, outputs), problem_(host_.problem()), device_(device) {
    const CurrentDevice current(device);
    bytes_ = problem_.elements() * bytesOf(problem_.stateType);
    problem_.transition =
        static_cast<const float*>(mirror(problem_.transition, scanCase.spec.transitionElements() * sizeof(float),
                                         (shift + sizeof(float) - 1) / sizeof(float) * sizeof(float)));
    problem_.initial = mirror(problem_.initial, bytes_, shift);
    problem_.state = mirror(problem_.state, bytes_, shift);
    prefix_ = problem_.prefix;
    total_ = problem_.total;
    problem_.prefix = const_cast<void*>(mirror(prefix_, bytes_, shift));
    problem_.total = const_cast<void*>(mirror(total_, bytes_, shift));
  }

  const ScanProblem& problem() const { return problem_; }

  /// Outputs as floats; call it after the work is done.
  std::vector<float> prefixValues() {
    fetch(prefix_, problem_.prefix);
    return host_.prefixValues();
  }
  std::vector<float> totalValues() {
    fetch(total_, problem_.total);
    return host_.totalValues();
  }
  bool wantsPrefix() const { return host_.wantsPrefix(); }
  bool wantsTotal() const { return host_.wantsTotal(); }

 private:
  static std::size_t bytesOf(seqparDataType_t type) { return type == seqparFloat32 ? 4 : 2; }

  /// Device memory with the contents of a host buffer; the same for the same buffer.
  const void* mirror(const void* host, std::size_t bytes, std::size_t shift) {
    if (host == nullptr) return nullptr;
    DeviceMemory& memory = memory_[host];
    if (!memory) {
      memory = allocateDevice(bytes + shift, "a test");
      checkCuda(cudaMemcpy(memory.get() + shift, host, bytes, cudaMemcpyDefault), "cudaMemcpy");
    }
    return memory.get() + shift;
  }

  void fetch(void* host, const void* device) const {
    const CurrentDevice current(device_);
    checkCuda(cudaMemcpy(host, device, bytes_, cudaMemcpyDefault), "cudaMemcpy");
  }

  ScanBuffers host_;
  ScanProblem problem_;
  int device_;
  std::size_t bytes_ = 0;
  void *prefix_ = nullptr, *total_ = nullptr;
  std::map<const void*, DeviceMemory> memory_;
};

}  // namespace seqpar::test
