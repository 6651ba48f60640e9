#include "base/nvtx.h"

#include <nvtx3/nvToolsExt.h>

namespace seqpar::nvtx {
namespace {

/// Null if no profiler is attached.
nvtxDomainHandle_t domain() noexcept {
  static const nvtxDomainHandle_t made = nvtxDomainCreateA("seqpar");
  return made;
}

nvtxEventAttributes_t attributes(const char* message) noexcept {
  nvtxEventAttributes_t event{};
  event.version = NVTX_VERSION;
  event.size = NVTX_EVENT_ATTRIB_STRUCT_SIZE;
  event.messageType = NVTX_MESSAGE_TYPE_ASCII;
  event.message.ascii = message;
  return event;
}

}  // namespace

void push(const char* message) noexcept {
  if (domain() == nullptr) return;
  const nvtxEventAttributes_t event = attributes(message);
  nvtxDomainRangePushEx(domain(), &event);
}

void push(const char* message, uint64_t bytes) noexcept {
  if (domain() == nullptr) return;
  nvtxEventAttributes_t event = attributes(message);
  event.payloadType = NVTX_PAYLOAD_TYPE_UNSIGNED_INT64;
  event.payload.ullValue = bytes;
  nvtxDomainRangePushEx(domain(), &event);
}

void pop() noexcept {
  if (domain() != nullptr) nvtxDomainRangePop(domain());
}

}  // namespace seqpar::nvtx
