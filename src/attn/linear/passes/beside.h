// Work on an Exec's side stream.
#pragma once

#include <exception>

#include "attn/exec/exec.h"

namespace seqpar::attn {

/// Work beside main: begins when made, and is waited for by join(), or at the end if an exception comes first.
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
      // What is on its way already is what the caller will hear of.
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
