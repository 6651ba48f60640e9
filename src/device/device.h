// The accelerators of this machine, as far as a host communicator needs to know of them.
#pragma once

#include <string>

namespace seqpar {

/// In words: "built without CUDA", "CUDA: no driver", "2 GPUs, NCCL 2.28.9". Found out at the first call, which in a
/// build with CUDA initializes the CUDA driver if there is one.
std::string deviceReport();

/// True for memory that the CPU must not touch: CUDA device memory and arrays. Managed memory and pinned host memory
/// are host memory. Works in every build, and loads nothing: where no part of the process uses CUDA, no pointer is of a
/// device.
bool isDevicePointer(const void* pointer) noexcept;

/// True for all memory that CUDA manages: of devices, managed, and pinned host memory.
bool isKnownToDriver(const void* pointer) noexcept;

}  // namespace seqpar
