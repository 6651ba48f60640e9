// NCCL, opened at run time: a build with NCCL support also loads on machines without NCCL.
#pragma once

#include <string>

namespace seqpar {

/// As text: "NCCL 2.28.9", "no libnccl.so.2", or both versions if the library's differs from the header's.
std::string ncclReport();

}  // namespace seqpar
