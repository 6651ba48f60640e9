// The functions of libnccl.so.2 that this library uses. Header and library may have different versions.
#pragma once

#include <nccl.h>

#include <string>

#include "base/error.h"
#include "base/shared_library.h"

namespace seqpar {

/// Typed pointers into the library.
struct NcclLibrary {
  SharedLibrary file;
  int version = 0;  ///< as NCCL_VERSION_CODE

  decltype(&ncclGetErrorString) getErrorString = nullptr;
  decltype(&ncclGetLastError) getLastError = nullptr;
  decltype(&ncclGetUniqueId) getUniqueId = nullptr;
  decltype(&ncclCommInitRankConfig) commInitRankConfig = nullptr;
  decltype(&ncclCommSplit) commSplit = nullptr;
  decltype(&ncclCommAbort) commAbort = nullptr;
  decltype(&ncclCommGetAsyncError) commGetAsyncError = nullptr;
  decltype(&ncclCommCount) commCount = nullptr;
  decltype(&ncclCommUserRank) commUserRank = nullptr;
  decltype(&ncclCommCuDevice) commCuDevice = nullptr;
  decltype(&ncclGroupStart) groupStart = nullptr;
  decltype(&ncclGroupEnd) groupEnd = nullptr;
  decltype(&ncclSend) send = nullptr;
  decltype(&ncclRecv) recv = nullptr;
  decltype(&ncclAllGather) allGather = nullptr;

  /// Throws Error in the name of `call` unless `result` is success or in progress.
  void check(ncclResult_t result, const char* call, ncclComm_t comm = nullptr) const;
  /// NCCL's text for a failure.
  std::string describe(ncclResult_t result, const char* call, ncclComm_t comm) const;
};

/// The result of opening the library; constant for the life of the process.
struct NcclFound {
  NcclLibrary library;
  std::string problem;  ///< as text; "" if the library can be used
};
const NcclFound& findNccl();

/// The library. Throws InvalidUsage with the problem if no usable one was found.
const NcclLibrary& requireNccl();

/// 22809 as "2.28.9".
std::string ncclVersionInWords(int code);

/// NCCL's result codes are numerically equal to seqparResult_t's.
seqparResult_t ncclResultAsOurs(ncclResult_t result);

}  // namespace seqpar
