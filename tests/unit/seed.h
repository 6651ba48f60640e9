// The seed of a Catch2 test.
#pragma once

#include <catch2/catch.hpp>

#include "common/draw_seed.h"

namespace seqpar::test {

/// Converts to its value; every failed assertion of its scope prints it.
class Seed {
 public:
  Seed()
      : message_(Catch::MessageBuilder("Seed", CATCH_INTERNAL_LINEINFO, Catch::ResultWas::Info) << "seed " << value_) {}
  operator unsigned() const { return value_; }  // NOLINT(google-explicit-constructor)

 private:
  const unsigned value_ = drawSeed();
  const Catch::ScopedMessage message_;
};

}  // namespace seqpar::test
