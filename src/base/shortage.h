// Error numbers of a process or a system that is out of descriptors or memory.
#pragma once

#include <cerrno>

namespace seqpar {

inline bool isShortage(int error) {
  return error == EMFILE || error == ENFILE || error == ENOBUFS || error == ENOMEM;
}

}  // namespace seqpar
