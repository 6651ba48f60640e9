// A call on an Exec.
#pragma once

#include <exception>
#include <span>

#include "attn/boundary.h"
#include "attn/exec/exec.h"

namespace seqpar::attn {

/// A call on an Exec ends however it ends.
class CallScope {
 public:
  CallScope(Exec& exec, void* stream, std::span<const Tensor> outputs) : exec_(exec) {
    exec.begin(stream);
    exec.guard(outputs);
  }
  CallScope(const CallScope&) = delete;
  CallScope& operator=(const CallScope&) = delete;
  ~CallScope() {
    try {
      exec_.finish();
    } catch (const std::exception& error) {
      setLastError(error.what());
    }
  }

 private:
  Exec& exec_;
};

}  // namespace seqpar::attn
