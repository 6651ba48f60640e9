// Calls on an Exec.
#pragma once

#include <exception>
#include <span>

#include "attn/agreement.h"
#include "attn/boundary.h"
#include "attn/exec/exec.h"

namespace seqpar::attn {

/// Runs `body` as a call on an Exec, between begin() and finish().
template <typename Body>
void runOn(Exec& exec, void* stream, std::span<const Tensor> outputs, const Body& body) {
  exec.begin(stream);
  exec.guard(outputs);
  try {
    body();
  } catch (...) {
    try {
      exec.finish();
    } catch (const std::exception&) {
      // The first error is the relevant one.
    }
    throw;
  }
  exec.finish();
}

/// A pass of all ranks: `call` with `arguments`, which must be equal on all ranks. If a pass fails on this rank after
/// its start, the communicator is ended, since the other ranks would wait for this rank's messages.
template <typename Body>
void runPass(const char* call, std::span<const seqparCompared_t> arguments, Exec& exec, seqparComm_t comm, void* stream,
             std::span<const Tensor> outputs, const Body& body) {
  const OuterCall parts(call, arguments, comm, stream);
  runOn(exec, stream, outputs, [&] {
    try {
      exec.follow();
      body();
    } catch (const Error& error) {
      const auto result = endCommunicator(call, comm, error.result(), error.what());
      exec.awaitSideWork();
      if (result != error.result()) fail(result, call, ": the communicator was aborted during the call");
      throw;
    } catch (const std::bad_alloc&) {
      endCommunicator(call, comm, seqparSystemError, kNoMemory);
      exec.awaitSideWork();
      throw;
    } catch (const std::exception& error) {
      endCommunicator(call, comm, seqparInternalError, error.what());
      exec.awaitSideWork();
      throw;
    }
  });
}

}  // namespace seqpar::attn
