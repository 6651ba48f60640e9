// The C boundary of this library: exceptions become results, and their text seqparAttnGetLastError()'s.
#pragma once

#include <exception>
#include <new>
#include <string>

#include "base/error.h"
#include "base/memory.h"
#include "base/nvtx.h"

namespace seqpar::attn {

/// Stores `text` as the calling thread's latest error.
void setLastError(const std::string& text) noexcept;
/// Also prefixes the text with the call, unless it is the prefix already: errors inside a plan do not know the call.
void setLastError(const char* call, const char* text) noexcept;

/// So that an error without memory has a text.
void reserveLastError();

/// Runs body(), which throws Error to fail, as the C function `call`.
template <typename Body>
seqparResult_t guard(const char* call, Body&& body) noexcept {
  const nvtx::Range range(call);
  try {
    reserveLastError();
    body();
    return seqparSuccess;
  } catch (const Error& error) {
    setLastError(call, error.what());
    return error.result();
  } catch (const std::bad_alloc&) {
    setLastError(call, kNoMemory);
    return seqparSystemError;
  } catch (const std::exception& error) {
    setLastError(call, error.what());
    return seqparInternalError;
  }
}

/// Throws an Error for a failed call of libseqpar, with the error text of `comm` (may be null).
void require(seqparResult_t result, const char* call, seqparComm_t comm);

}  // namespace seqpar::attn
