#include "attn/boundary.h"

#include "base/thread_object.h"
#include "seqpar/attn.h"

namespace seqpar::attn {
namespace {

std::string& lastError() {
  struct Latest {
    std::string text;
  };
  return ofThread<Latest>().text;
}

}  // namespace

void setLastError(const std::string& text) noexcept {
  assignText(lastError(), text);
}

void setLastError(const char* call, const char* text) noexcept {
  assignCallText(lastError(), call, text);
}

void reserveLastError() {
  reserveText(lastError());
}

void require(seqparResult_t result, const char* call, seqparComm_t comm) {
  if (result == seqparSuccess) return;
  std::string text = seqparGetLastError(comm);
  if (text.empty()) text = seqparGetErrorString(result);
  fail(result, call, ": ", text);
}

}  // namespace seqpar::attn

const char* seqparAttnGetLastError(void) {
  return seqpar::attn::lastError().c_str();
}
