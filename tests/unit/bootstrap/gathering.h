// Operations on an Allgather for bootstrap tests, and communicators of threads over a rendezvous.
#pragma once

#include <atomic>
#include <chrono>
#include <cstring>
#include <functional>
#include <thread>

#include "base/error.h"
#include "bootstrap/bootstrap.h"
#include "common/ranks.h"
#include "common/timeouts.h"

namespace seqpar::test {

/// Gathers `times` times, values of changing sizes, and throws if a result is wrong.
inline void checkGathers(Allgather& allgather, int rank, int nranks, int times) {
  expect(allgather.rank() == rank, "rank() is ", allgather.rank());
  expect(allgather.size() == nranks, "size() is ", allgather.size());
  for (int time = 0; time < times; ++time) {
    const size_t bytes = static_cast<size_t>(time) * 997 % 3001;
    const auto fill = [&](int member) { return static_cast<std::byte>(member * 31 + time); };
    const std::vector<std::byte> mine(bytes, fill(rank));
    std::vector<std::byte> all(bytes * static_cast<size_t>(nranks));
    allgather.gather(mine, all);
    for (size_t i = 0; i < all.size(); ++i) {
      expect(all[i] == fill(static_cast<int>(i / bytes)), "gather ", time, ", byte ", i, " is wrong");
    }
  }
}

/// The text of the error that a gather of `bytes` bytes throws, "" if it throws none.
inline std::string gatherError(Allgather& allgather, size_t bytes) {
  try {
    const std::vector<std::byte> mine(bytes);
    std::vector<std::byte> all(bytes * static_cast<size_t>(allgather.size()));
    allgather.gather(mine, all);
  } catch (const Error& error) {
    return error.what();
  }
  return "";
}

inline ControlOptions withTimeout(int milliseconds) {
  ControlOptions options;
  options.timeout = std::chrono::milliseconds(milliseconds);
  return options;
}

/// Returns once `done` is true.
inline void waitUntil(const std::function<bool()>& done) {
  while (!done()) std::this_thread::sleep_for(std::chrono::milliseconds(1));
}

/// A rank with its Health wired to its Control, as a communicator has them.
struct Rank {
  Health health;
  std::unique_ptr<Control> control;

  Rank(Allgather& oob, const ControlOptions& options) : control(Control::connect(oob, options, health)) {
    health.onFailure([this](seqparResult_t, const std::string& text) { control->announce(text); });
  }
};

/// Runs body(rank number, rank) on `nranks` threads with connected Controls; returns the exceptions' texts.
inline std::string onControls(int nranks, const ControlOptions& options, const std::function<void(int, Rank&)>& body) {
  auto group = makeLocalGroup(nranks, kNoTimeout);
  return onThreads(nranks, [&](int rank) {
    Rank mine(*group[static_cast<size_t>(rank)], options);
    body(rank, mine);
  });
}

}  // namespace seqpar::test
