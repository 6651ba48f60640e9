// Ownership of file descriptors and threads that remains valid when the process forks.
#pragma once

#include <pthread.h>
#include <sys/types.h>

#include <functional>
#include <utility>

namespace seqpar {

/// Owns a file descriptor. A forked child loses access to the file (the number refers to /dev/null there), so a
/// surviving child does not keep a dead parent's connections open.
class Descriptor {
 public:
  Descriptor() = default;
  explicit Descriptor(int number);
  Descriptor(Descriptor&& other) noexcept : number_(std::exchange(other.number_, -1)) {}
  Descriptor& operator=(Descriptor&& other) noexcept {
    std::swap(number_, other.number_);
    return *this;
  }
  ~Descriptor() { close(); }

  int get() const { return number_; }
  explicit operator bool() const { return number_ >= 0; }
  void close() noexcept;

 private:
  int number_ = -1;
};

/// Wakes a thread that sleeps in poll().
class Wake {
 public:
  Wake();
  int get() const { return event_.get(); }
  void signal() noexcept;
  void clear() noexcept;

 private:
  Descriptor event_;
};

/// A thread that blocks all signals and is joined at destruction; not in a forked child, where it does not exist.
class Worker {
 public:
  /// `body` must not throw.
  explicit Worker(std::function<void()> body);
  Worker(const Worker&) = delete;
  Worker& operator=(const Worker&) = delete;
  ~Worker();

  /// False in a forked child.
  bool exists() const;

 private:
  const pid_t process_;
  const std::function<void()> body_;
  pthread_t thread_{};  // std::thread cannot be abandoned in a forked child
};

}  // namespace seqpar
