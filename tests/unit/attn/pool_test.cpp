// A rank's threads on a host where the system cannot create threads.
#include <catch2/catch.hpp>

#include "attn/exec/pool.h"
#include "base/error.h"
#include "common/address_limit.h"
#include "common/sanitized.h"

#ifndef SEQPAR_SANITIZED
namespace {

using seqpar::Error;
using seqpar::attn::ThreadPool;
using seqpar::test::AddressLimit;

TEST_CASE("a failed thread creation of a rank is a SystemError and ends the other threads") {
  const AddressLimit limit(size_t{64} << 20);
  try {
    const ThreadPool pool(1000);
    FAIL("there were threads");
  } catch (const Error& error) {
    CHECK(error.result() == seqparSystemError);
    CHECK_THAT(error.what(), Catch::StartsWith("no thread for a rank's work: "));
  }
}

}  // namespace
#endif
