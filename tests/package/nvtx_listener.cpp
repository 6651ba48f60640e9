// A profiler that writes the ranges of the domain "seqpar" to stdout: what NVTX_INJECTION64_PATH names.
#include <nvtx3/nvToolsExt.h>

#include <cinttypes>
#include <cstdio>
#include <cstring>

namespace {

int domains;       ///< their handles only have to be no null pointers
int seqparDomain;  ///< that of the one that counts
thread_local int depth;

nvtxDomainHandle_t NVTX_API create(const char* name) {
  return reinterpret_cast<nvtxDomainHandle_t>(std::strcmp(name, "seqpar") == 0 ? &seqparDomain : &domains);
}

bool counts(nvtxDomainHandle_t domain) {
  return domain == reinterpret_cast<nvtxDomainHandle_t>(&seqparDomain);
}

int NVTX_API push(nvtxDomainHandle_t domain, const nvtxEventAttributes_t* event) {
  if (!counts(domain)) return 0;
  std::printf("%d push %s", depth, event->message.ascii);
  if (event->payloadType == NVTX_PAYLOAD_TYPE_UNSIGNED_INT64) std::printf(" %" PRIu64, event->payload.ullValue);
  std::printf("\n");
  return depth++;
}

int NVTX_API pop(nvtxDomainHandle_t domain) {
  if (!counts(domain)) return 0;
  std::printf("%d pop\n", --depth);
  return depth;
}

}  // namespace

extern "C" __attribute__((visibility("default"))) int InitializeInjectionNvtx2(NvtxGetExportTableFunc_t get) {
  const auto* const tables = static_cast<const NvtxExportTableCallbacks*>(get(NVTX_ETID_CALLBACKS));
  NvtxFunctionTable functions = nullptr;
  unsigned size = 0;
  if (tables == nullptr || tables->GetModuleFunctionTable(NVTX_CB_MODULE_CORE2, &functions, &size) == 0) return 0;
  if (size <= NVTX_CBID_CORE2_DomainCreateA) return 0;
  *functions[NVTX_CBID_CORE2_DomainCreateA] = reinterpret_cast<NvtxFunctionPointer>(create);
  *functions[NVTX_CBID_CORE2_DomainRangePushEx] = reinterpret_cast<NvtxFunctionPointer>(push);
  *functions[NVTX_CBID_CORE2_DomainRangePop] = reinterpret_cast<NvtxFunctionPointer>(pop);
  return 1;
}
