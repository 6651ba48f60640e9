// The functions of libnccl.so.2 that we use. Header and library need not be of one version.
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

/// What opening the library came to; the same during the whole life of the process.
struct NcclFound {
  NcclLibrary library;
  std::string problem;  ///< in words; "" if the library can be used
};
const NcclFound& findNccl();

/// The library. InvalidUsage with the problem if there is none that can be used.
const NcclLibrary& requireNccl();

/// 22809 as "2.28.9".
std::string ncclVersionInWords(int code);

/// NCCL's results have the numbers of ours.
seqparResult_t ncclResultAsOurs(ncclResult_t result);

}  // namespace seqpar
