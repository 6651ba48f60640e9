// The errors of a host stream's work.
#pragma once

#include <atomic>
#include <memory>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include "base/error.h"

namespace seqpar {

/// An error of a stream's work. Streams that wait for that work share it.
struct StreamFailure {
  StreamFailure(Error cause, bool spoilsLater) : error(std::move(cause)), spoils(spoilsLater) {}

  Error error;
  bool spoils;  ///< later work on the stream uses invalid data
  std::atomic<bool> reported{false};
};

using StreamFailures = std::vector<std::shared_ptr<StreamFailure>>;

/// Throws the first error, if any.
void throwFirst(const StreamFailures& failures);

/// The errors that no synchronize() of the stream has thrown yet.
class StreamErrors {
 public:
  /// Adds an error of the stream's own work, unless an earlier one is known.
  void keep(seqparResult_t result, const std::string& text, bool spoils);
  /// Adds an error that there is no memory for.
  void keepNoMemory() noexcept;
  /// Without the errors that another stream has thrown.
  StreamFailures unreported() const;
  /// Adds the errors of another stream.
  void inherit(const StreamFailures& failures);
  /// An error that spoils later work; or null.
  std::shared_ptr<const StreamFailure> spoiled() const;
  /// Removes all errors, marks them as reported and throws the first; std::bad_alloc if that is of keepNoMemory().
  void report();

 private:
  void dropReported();

  mutable std::mutex mutex_;
  StreamFailures failures_;                       ///< also those of other streams
  StreamFailures own_;                            ///< the stream's own ones of failures_
  std::shared_ptr<const StreamFailure> dropped_;  ///< the first one since report() that another stream has thrown
  bool noMemory_ = false;
  std::atomic<bool> any_{false};  ///< false: there is no error
};

}  // namespace seqpar
