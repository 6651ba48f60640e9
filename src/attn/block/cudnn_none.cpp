// Replaces cudnn.cpp in builds without cuDNN's headers.
#include "attn/block/cudnn.h"
#include "base/error.h"

namespace seqpar::attn {

struct Sdpa::Rank {};

const std::string& Sdpa::problem() {
  static const std::string text = "this library was built with SEQPAR_CUDNN=OFF";
  return text;
}

const std::string& Sdpa::kernels() {
  static const std::string text = "fp32 band kernels (cuDNN: " + problem() + ")";
  return text;
}

Sdpa::Sdpa(int) {
  fail(seqparInvalidUsage, "attention by cuDNN: ", problem());
}

Sdpa::~Sdpa() = default;

std::string Sdpa::prepare(const SdpaShape&, size_t*) {
  return problem();
}

bool Sdpa::reserve(const SdpaShape&) {
  return false;
}

void Sdpa::loadOnce(const SdpaShape&, const std::function<void()>&) {
  fail(seqparInternalError, "attention by cuDNN: ", problem());
}

int64_t Sdpa::built() {
  return 0;
}

void Sdpa::run(const SdpaShape&, const SdpaPointers&, void*, void*) {
  fail(seqparInternalError, "attention by cuDNN: ", problem());
}

}  // namespace seqpar::attn
