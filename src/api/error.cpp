// Versions and error texts.
#include <cstring>
#include <map>
#include <string>

#include "api/boundary.h"
#include "base/thread_object.h"

using namespace seqpar;

extern "C" {

SEQPAR_API const char* seqparGetErrorString(seqparResult_t result) {
  int number = 0;  // callers in C may pass any integer
  static_assert(sizeof(number) == sizeof(result));
  std::memcpy(&number, &result, sizeof(number));
  switch (number) {
    case seqparSuccess:
      return "success";
    case seqparUnhandledCudaError:
      return "a CUDA call failed";
    case seqparSystemError:
      return "the operating system or a network library refused something";
    case seqparInternalError:
      return "internal error: a defect of the library, or ranks with different arguments";
    case seqparInvalidArgument:
      return "an argument is invalid";
    case seqparInvalidUsage:
      return "the call is not valid here or now";
    case seqparRemoteError:
      return "another rank failed, left, or did not answer in time";
    case seqparInProgress:
      return "in progress";
  }
  return "unknown result";
}

SEQPAR_API const char* seqparGetLastError(seqparComm_t comm) {
  if (comm == nullptr) return threadError().c_str();
  const auto entry = comms().find(comm);
  if (!entry || !entry->callers.enter(nullptr)) {
    return threadError().empty() ? "seqparGetLastError: comm is not an open communicator" : threadError().c_str();
  }
  const std::lock_guard lock(entry->mutex);
  // The cause of the communicator's end explains more than the errors of later calls; among those, the first was the
  // one that was waiting.
  const auto& health = entry->comm->health();
  // A thread of a plan asks too: each thread has its own text per communicator, which another thread's call keeps.
  struct Texts {
    std::map<seqparComm_t, std::string> of;
  };
  auto& texts = ofThread<Texts>().of;
  const char* kept = kNoMemory;
  try {
    std::string& text = texts[comm];
    text = health.ok() ? entry->comm->lastError() : entry->ending.empty() ? health.text() : entry->ending;
    kept = text.c_str();
  } catch (const std::bad_alloc&) {
    kept = kNoMemory;
  }
  entry->callers.leave(nullptr);
  return kept;
}

SEQPAR_API seqparResult_t seqparGetVersion(int* version) {
  return atBoundary("seqparGetVersion", [&] {
    requirePointer("seqparGetVersion", "version", version);
    *version = SEQPAR_VERSION_CODE;
  });
}

}  // extern "C"
