// Failed thread creation: errors that name the thread's purpose.
#pragma once

#include <system_error>
#include <thread>
#include <utility>

#include "base/error.h"

namespace seqpar {

/// A std::thread or std::jthread that runs body(). Throws a SystemError if the operating system cannot create it.
template <typename Thread = std::thread, typename Body>
Thread startThread(const char* what, Body&& body) {
  try {
    return Thread(std::forward<Body>(body));
  } catch (const std::system_error& error) {
    fail(seqparSystemError, "no thread for ", what, ": ", error.what());
  }
}

}  // namespace seqpar
