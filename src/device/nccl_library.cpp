#include "device/nccl_library.h"

#include "base/error.h"

namespace seqpar {
namespace {

NcclFound open() {
  NcclFound found;
  NcclLibrary& nccl = found.library;
  nccl.file = SharedLibrary("libnccl.so.2");
  if (!nccl.file.opened()) {
    found.problem = "no libnccl.so.2";
    return found;
  }
  const auto getVersion = nccl.file.find<decltype(&ncclGetVersion)>("ncclGetVersion");
  if (getVersion == nullptr || getVersion(&nccl.version) != ncclSuccess) {
    found.problem = "a libnccl.so.2 without a version";
    return found;
  }
  const auto need = [&](const char* name, auto& into) { nccl.file.need(name, into, found.problem); };
  need("ncclGetErrorString", nccl.getErrorString);
  need("ncclGetLastError", nccl.getLastError);
  need("ncclGetUniqueId", nccl.getUniqueId);
  need("ncclCommInitRankConfig", nccl.commInitRankConfig);
  need("ncclCommSplit", nccl.commSplit);
  need("ncclCommAbort", nccl.commAbort);
  need("ncclCommGetAsyncError", nccl.commGetAsyncError);
  need("ncclCommCount", nccl.commCount);
  need("ncclCommUserRank", nccl.commUserRank);
  need("ncclCommCuDevice", nccl.commCuDevice);
  need("ncclGroupStart", nccl.groupStart);
  need("ncclGroupEnd", nccl.groupEnd);
  need("ncclSend", nccl.send);
  need("ncclRecv", nccl.recv);
  need("ncclAllGather", nccl.allGather);
  return found;
}

}  // namespace

const NcclFound& findNccl() {
  static const NcclFound found = open();
  return found;
}

const NcclLibrary& requireNccl() {
  const NcclFound& found = findNccl();
  if (!found.problem.empty()) fail(seqparInvalidUsage, "NCCL is needed, but there is ", found.problem);
  return found.library;
}

std::string ncclVersionInWords(int code) {
  return concat(code / 10000, ".", code / 100 % 100, ".", code % 100);
}

seqparResult_t ncclResultAsOurs(ncclResult_t result) {
  const bool known = result >= ncclSuccess && result <= ncclInProgress;
  return known ? static_cast<seqparResult_t>(result) : seqparRemoteError;
}

std::string NcclLibrary::describe(ncclResult_t result, const char* call, ncclComm_t comm) const {
  const char* detail = getLastError(comm);
  std::string text = concat(call, ": ", getErrorString(result));
  if (detail != nullptr && *detail != '\0') text += concat(" (", detail, ")");
  return text;
}

void NcclLibrary::check(ncclResult_t result, const char* call, ncclComm_t comm) const {
  if (result == ncclSuccess || result == ncclInProgress) return;
  throw Error(ncclResultAsOurs(result), describe(result, call, comm));
}

}  // namespace seqpar
