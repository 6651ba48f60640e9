// Calls that seqparScanDeviceCreate() and seqparScanDeviceDestroy() refuse; needs no GPU.
#include <catch2/catch.hpp>
#include <limits>
#include <string>

#include "seqpar/scan_device.h"

namespace {

/// The text of the refusal; "" if it was not one with this result.
std::string refused(seqparScanDevice_t* scan, int64_t heads, int64_t elements, int direction, seqparComm_t comm,
                    seqparResult_t result) {
  return seqparScanDeviceCreate(scan, heads, elements, direction, comm) == result ? seqparGetLastError(comm) : "";
}

}  // namespace

TEST_CASE("Handles for kernels are refused on host memory and for bad arguments, by name") {
  seqparComm_t comm = nullptr;
  REQUIRE(seqparCommInitAll(&comm, 1, nullptr) == seqparSuccess);
  seqparScanDevice_t scan = SEQPAR_SCAN_DEVICE_INITIALIZER;
  const auto most = std::numeric_limits<int64_t>::max();
  using Catch::Matchers::Contains;
  CHECK_THAT(refused(&scan, 1, 4, seqparForward, comm, seqparInvalidUsage), Contains("host memory"));
  CHECK_THAT(refused(nullptr, 1, 4, seqparForward, comm, seqparInvalidArgument), Contains("scan"));
  CHECK_THAT(refused(&scan, 0, 4, seqparForward, comm, seqparInvalidArgument), Contains("heads is 0"));
  CHECK_THAT(refused(&scan, 1, -4, seqparForward, comm, seqparInvalidArgument), Contains("elements is -4"));
  CHECK_THAT(refused(&scan, most, most, seqparForward, comm, seqparInvalidArgument), Contains("overflows"));
  CHECK_THAT(refused(&scan, 1, most, seqparReverse, comm, seqparInvalidArgument), Contains("overflows"));
  CHECK_THAT(refused(&scan, 1, 4, 2, comm, seqparInvalidArgument), Contains("direction is 2"));
  scan.magic = 1;
  CHECK_THAT(refused(&scan, 1, 4, seqparForward, comm, seqparInvalidArgument), Contains("magic"));
  scan = SEQPAR_SCAN_DEVICE_INITIALIZER;
  scan.size -= 8;
  CHECK_THAT(refused(&scan, 1, 4, seqparForward, comm, seqparInvalidArgument), Contains("size"));
  CHECK(seqparScanDeviceCreate(&scan, 1, 4, seqparForward, nullptr) == seqparInvalidArgument);
  scan = SEQPAR_SCAN_DEVICE_INITIALIZER;
  CHECK(seqparScanDeviceDestroy(&scan) == seqparInvalidArgument);
  CHECK(seqparScanDeviceDestroy(nullptr) == seqparInvalidArgument);
  CHECK(seqparCommDestroy(comm) == seqparSuccess);
}
