// libcudnn.so.9 as a library of this machine, opened at run time.
#pragma once

#include <string>

namespace seqpar::attn {

/// The reason why cuDNN cannot be used; empty if it can. Opens it at the first call.
const std::string& cudnnProblem();

}  // namespace seqpar::attn
