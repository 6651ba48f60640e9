// Failed allocations: errors name the requested bytes and the purpose.
#include "base/memory.h"

#include <catch2/catch.hpp>
#include <new>
#include <string>

#include "common/sanitized.h"
#include "seqpar/seqpar.h"

TEST_CASE("an allocation that fails is an error with its size and purpose") {
  try {
    seqpar::allocateFor("a test", 12345, []() -> int { throw std::bad_alloc(); });
    FAIL("no error");
  } catch (const seqpar::Error& error) {
    CHECK(error.result() == seqparSystemError);
    CHECK(std::string(error.what()) == "no memory: 12345 bytes for a test");
  }
  CHECK(seqpar::allocateFor("a test", 4, [] { return 3; }) == 3);
}

#ifndef SEQPAR_SANITIZED
TEST_CASE("seqparMemAlloc reports the failed size, and the communicator stays usable") {
  seqparComm_t comm = nullptr;
  REQUIRE(seqparCommInitAll(&comm, 1, nullptr) == seqparSuccess);
  void* memory = nullptr;
  // As many as the interface takes, and more than a process has addresses for.
  CHECK(seqparMemAlloc(&memory, size_t{1} << 48, comm) == seqparSystemError);
  CHECK(memory == nullptr);
  CHECK(std::string(seqparGetLastError(comm)) == "seqparMemAlloc: no memory: 281474976710656 bytes for the caller");
  REQUIRE(seqparMemAlloc(&memory, 64, comm) == seqparSuccess);
  CHECK(seqparMemFree(memory) == seqparSuccess);
  CHECK(seqparCommDestroy(comm) == seqparSuccess);
}
#endif
