// Work on an Exec's side stream.
#pragma once

#include <exception>

#include "attn/exec/exec.h"

namespace seqpar::attn {

/// RAII scope of work that overlaps with the main stream: forks in the constructor; join() or the destructor waits for
/// it.
class Beside {
 public:
  explicit Beside(Exec& exec) : exec_(exec) { exec.fork(); }
  Beside(const Beside&) = delete;
  Beside& operator=(const Beside&) = delete;
  ~Beside() {
    if (joined_) return;
    try {
      exec_.join();
    } catch (const std::exception&) {
      // The caller sees the exception that is already propagating.
    }
  }
  void join() {
    joined_ = true;
    exec_.join();
  }

 private:
  Exec& exec_;
  bool joined_ = false;
};

}  // namespace seqpar::attn
