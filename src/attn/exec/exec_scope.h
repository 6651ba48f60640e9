// A call on an Exec.
#pragma once

#include <exception>
#include <span>

#include "attn/boundary.h"
#include "attn/exec/exec.h"

namespace seqpar::attn {

/// A call on an Exec ends however it ends.
class ExecScope {
 public:
  ExecScope(Exec& exec, void* stream, std::span<const Tensor> outputs) : exec_(exec) {
    exec.begin(stream);
    exec.guard(outputs);
  }
  ExecScope(const ExecScope&) = delete;
  ExecScope& operator=(const ExecScope&) = delete;
  ~ExecScope() {
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
