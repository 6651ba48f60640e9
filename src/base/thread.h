// Threads that cannot be had: errors that say what for.
#pragma once

#include <system_error>
#include <thread>
#include <utility>

#include "base/error.h"

namespace seqpar {

/// A std::thread or std::jthread that runs body(). Throws a SystemError where the operating system gives none.
template <typename Thread = std::thread, typename Body>
Thread startThread(const char* what, Body&& body) {
  try {
    return Thread(std::forward<Body>(body));
  } catch (const std::system_error& error) {
    fail(seqparSystemError, "no thread for ", what, ": ", error.what());
  }
}

}  // namespace seqpar
