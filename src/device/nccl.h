// NCCL, opened at run time: a build with NCCL loads where there is none.
#pragma once

#include <string>

namespace seqpar {

/// In words: "NCCL 2.28.9", "no libnccl.so.2", or both versions where the library found is another than the header's.
std::string ncclReport();

}  // namespace seqpar
