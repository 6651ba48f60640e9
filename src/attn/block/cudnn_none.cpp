// In place of cudnn.cpp in a build without cuDNN's headers.
#include "attn/block/cudnn.h"
#include "base/error.h"

namespace seqpar::attn {

struct Sdpa::Rank {};

const std::string& Sdpa::problem() {
  static const std::string text = "this library was built without cudnn_frontend.h or cudnn.h";
  return text;
}

Sdpa::Sdpa() {
  fail(seqparInvalidUsage, "attention by cuDNN: ", problem());
}

Sdpa::~Sdpa() = default;

std::string Sdpa::prepare(const SdpaShape&, size_t*) {
  return problem();
}

void Sdpa::run(const SdpaShape&, const SdpaPointers&, void*, void*) {
  fail(seqparInternalError, "attention by cuDNN: ", problem());
}

}  // namespace seqpar::attn
