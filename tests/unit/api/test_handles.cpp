#include <algorithm>
#include <catch2/catch.hpp>
#include <cstring>
#include <string>

#include "common/ranks.h"

using namespace seqpar::test;
using Catch::Matchers::Contains;

namespace {

/// A communicator of one rank for one scope.
struct Single {
  Single() { REQUIRE(seqparCommInitAll(&comm, 1, nullptr) == seqparSuccess); }
  Single(const Single&) = delete;
  Single& operator=(const Single&) = delete;
  ~Single() { seqparCommDestroy(comm); }
  seqparComm_t comm = nullptr;
};

}  // namespace

TEST_CASE("every result code has a distinct text") {
  std::vector<std::string> texts;
  for (int result = seqparSuccess; result <= seqparInProgress; ++result) {
    texts.emplace_back(seqparGetErrorString(static_cast<seqparResult_t>(result)));
    CHECK_FALSE(texts.back().empty());
    CHECK(std::count(texts.begin(), texts.end(), texts.back()) == 1);
  }
  CHECK(std::string(seqparGetErrorString(static_cast<seqparResult_t>(99))) == "unknown result");
}

TEST_CASE("the version is the header's") {
  int version = 0;
  CHECK(seqparGetVersion(&version) == seqparSuccess);
  CHECK(version == SEQPAR_VERSION_CODE);
  CHECK(seqparGetVersion(nullptr) == seqparInvalidArgument);
  CHECK_THAT(seqparGetLastError(nullptr), Contains("seqparGetVersion") && Contains("version is NULL"));
}

TEST_CASE("handles that are NULL, stale, foreign or of another kind are refused by name") {
  seqparComm_t stale = nullptr;
  REQUIRE(seqparCommInitAll(&stale, 1, nullptr) == seqparSuccess);
  REQUIRE(seqparCommDestroy(stale) == seqparSuccess);
  seqparStream_t stream = nullptr;
  REQUIRE(seqparStreamCreate(&stream) == seqparSuccess);
  int foreign = 0;

  for (auto* handle : {seqparComm_t{nullptr}, stale, reinterpret_cast<seqparComm_t>(stream),
                       reinterpret_cast<seqparComm_t>(&foreign)}) {
    int count = -1;
    CHECK(seqparCommCount(handle, &count) == seqparInvalidArgument);
    CHECK(count == -1);
    CHECK_THAT(seqparGetLastError(nullptr), Contains("seqparCommCount") && Contains("comm"));
    CHECK(std::string(seqparGetLastError(handle)) == seqparGetLastError(nullptr));
  }
  CHECK(seqparCommDestroy(stale) == seqparInvalidArgument);
  CHECK(seqparCommAbort(stale) == seqparInvalidArgument);
  CHECK(seqparCommDestroy(nullptr) == seqparSuccess);
  CHECK(seqparCommAbort(nullptr) == seqparSuccess);

  const Single single;
  CHECK(seqparStreamSynchronize(reinterpret_cast<seqparStream_t>(single.comm)) == seqparInvalidArgument);
  CHECK(seqparStreamDestroy(stream) == seqparSuccess);
  CHECK(seqparStreamQuery(stream) == seqparInvalidArgument);
  CHECK(seqparStreamDestroy(nullptr) == seqparSuccess);
  CHECK(seqparEventDestroy(nullptr) == seqparSuccess);
  CHECK(seqparEventQuery(nullptr) == seqparInvalidArgument);
}

TEST_CASE("the last error of a communicator names call, argument, value and expectation") {
  const Single single;
  CHECK(std::string(seqparGetLastError(single.comm)).empty());
  seqparComm_t part = nullptr;
  CHECK(seqparCommSplit(single.comm, -7, 0, &part, nullptr) == seqparInvalidArgument);
  CHECK_THAT(seqparGetLastError(single.comm),
             Contains("seqparCommSplit") && Contains("color") && Contains("-7") && Contains("SEQPAR_SPLIT_NOCOLOR"));
  CHECK(std::string(seqparGetLastError(single.comm)) == seqparGetLastError(nullptr));
}

TEST_CASE("memory is aligned, freed once, and nothing else is freed") {
  const Single single;
  for (const size_t bytes : {size_t{1}, size_t{4096}, size_t{5} << 20}) {
    void* pointer = nullptr;
    REQUIRE(seqparMemAlloc(&pointer, bytes, single.comm) == seqparSuccess);
    CHECK(reinterpret_cast<uintptr_t>(pointer) % 4096 == 0);
    std::memset(pointer, 1, bytes);
    CHECK(seqparMemFree(pointer) == seqparSuccess);
    CHECK(seqparMemFree(pointer) == seqparInvalidArgument);
  }
  void* pointer = &pointer;
  CHECK(seqparMemAlloc(&pointer, 0, single.comm) == seqparSuccess);
  CHECK(pointer == nullptr);
  CHECK(seqparMemAlloc(&pointer, SIZE_MAX - 1, single.comm) == seqparSystemError);
  CHECK(seqparMemAlloc(nullptr, 8, single.comm) == seqparInvalidArgument);
  CHECK(seqparMemFree(nullptr) == seqparSuccess);
  int local = 0;
  CHECK(seqparMemFree(&local) == seqparInvalidArgument);
}

TEST_CASE("a stream that was destroyed after its use is refused, and its address may be used again") {
  for (int i = 0; i < 3; ++i) {
    seqparStream_t stream = nullptr;
    REQUIRE(seqparStreamCreate(&stream) == seqparSuccess);
    CHECK(seqparStreamSynchronize(stream) == seqparSuccess);
    CHECK(seqparStreamQuery(stream) == seqparSuccess);
    REQUIRE(seqparStreamDestroy(stream) == seqparSuccess);
    CHECK(seqparStreamSynchronize(stream) == seqparInvalidArgument);
    CHECK(seqparStreamDestroy(stream) == seqparInvalidArgument);
  }
}
