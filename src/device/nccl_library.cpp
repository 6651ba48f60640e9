#include "device/nccl_library.h"

#include <dlfcn.h>

#include "base/error.h"

namespace seqpar {
namespace {

template <typename Function>
void need(NcclFound& found, const char* name, Function& into) {
  into = found.library.find<Function>(name);
  if (into == nullptr && found.problem.empty()) found.problem = concat("a libnccl.so.2 without ", name);
}

NcclFound open() {
  NcclFound found;
  NcclLibrary& nccl = found.library;
  // A process that has NCCL already, as frameworks do, must go on with that one.
  nccl.file = dlopen("libnccl.so.2", RTLD_LAZY | RTLD_NOLOAD);
  if (nccl.file == nullptr) nccl.file = dlopen("libnccl.so.2", RTLD_LAZY | RTLD_LOCAL);
  if (nccl.file == nullptr) {
    found.problem = "no libnccl.so.2";
    return found;
  }
  const auto getVersion = nccl.find<decltype(&ncclGetVersion)>("ncclGetVersion");
  if (getVersion == nullptr || getVersion(&nccl.version) != ncclSuccess) {
    found.problem = "a libnccl.so.2 that tells no version";
    return found;
  }
  need(found, "ncclGetErrorString", nccl.getErrorString);
  need(found, "ncclGetLastError", nccl.getLastError);
  need(found, "ncclGetUniqueId", nccl.getUniqueId);
  need(found, "ncclCommInitRankConfig", nccl.commInitRankConfig);
  need(found, "ncclCommAbort", nccl.commAbort);
  need(found, "ncclCommGetAsyncError", nccl.commGetAsyncError);
  need(found, "ncclCommCount", nccl.commCount);
  need(found, "ncclCommUserRank", nccl.commUserRank);
  need(found, "ncclCommCuDevice", nccl.commCuDevice);
  need(found, "ncclGroupStart", nccl.groupStart);
  need(found, "ncclGroupEnd", nccl.groupEnd);
  need(found, "ncclSend", nccl.send);
  need(found, "ncclRecv", nccl.recv);
  need(found, "ncclAllGather", nccl.allGather);
  return found;
}

}  // namespace

void* NcclLibrary::symbol(const char* name) const {
  return dlsym(file, name);
}

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
