// Ranks as threads for tests. Catch2's assertions belong to the main thread, so a rank's body throws what it finds
// wrong.
#pragma once

#include <functional>
#include <sstream>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

#include "seqpar/seqpar.h"

namespace seqpar::test {

/// Throws with the parts as text unless `condition` holds.
template <typename... Parts>
void expect(bool condition, const Parts&... parts) {
  if (condition) return;
  std::ostringstream text;
  (text << ... << parts);
  throw std::runtime_error(text.str());
}

/// Throws unless `result` is success; names `call` and the library's text.
inline void expectSuccess(seqparResult_t result, const char* call, seqparComm_t comm = nullptr) {
  expect(result == seqparSuccess, call, ": ", seqparGetErrorString(result), ": ", seqparGetLastError(comm));
}

/// Runs body(rank) for every rank on a separate thread; returns the exceptions' texts, one line "rank R: text" each.
inline std::string onThreads(int ranks, const std::function<void(int)>& body) {
  std::vector<std::string> errors(static_cast<size_t>(ranks));
  {
    std::vector<std::jthread> threads;
    for (int rank = 0; rank < ranks; ++rank) {
      threads.emplace_back([&, rank] {
        try {
          body(rank);
        } catch (const std::exception& error) {
          errors[static_cast<size_t>(rank)] = error.what();
        }
      });
    }
  }
  std::string all;
  for (int rank = 0; rank < ranks; ++rank) {
    const auto& error = errors[static_cast<size_t>(rank)];
    if (!error.empty()) all += "rank " + std::to_string(rank) + ": " + error + "\n";
  }
  return all;
}

/// Creates a communicator of `ranks` threads, runs body(comm, rank) on each, and destroys the communicator.
inline std::string onCommunicator(int ranks, const std::function<void(seqparComm_t, int)>& body) {
  std::vector<seqparComm_t> comms(static_cast<size_t>(ranks));
  if (seqparCommInitAll(comms.data(), ranks, nullptr) != seqparSuccess) {
    return std::string("seqparCommInitAll: ") + seqparGetLastError(nullptr);
  }
  auto errors = onThreads(ranks, [&](int rank) { body(comms[static_cast<size_t>(rank)], rank); });
  const auto leaving = onThreads(ranks, [&](int rank) {
    expectSuccess(seqparCommDestroy(comms[static_cast<size_t>(rank)]), "seqparCommDestroy");
  });
  // After a failed body the communicator may be lost, so leaving fails, too; that error would hide the cause.
  return errors.empty() ? leaving : errors;
}

}  // namespace seqpar::test
