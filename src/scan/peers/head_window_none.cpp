// In a build without CUDA there are no device communicators.
#include "base/error.h"
#include "scan/peers/head_window.h"

namespace seqpar {

std::unique_ptr<HeadWindow> makeHeadWindow(Communicator&, int64_t, int64_t, seqparDirection_t) {
  fail(seqparInternalError, "a window for heads in a build without CUDA");
}

}  // namespace seqpar
